"""Writing configs/official: a file for an engine's defaults, one for a shared configuration, one for each launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.config import yaml_io
from recipes.config.comparison import checkout as local
from recipes.config.comparison.catalogue import EXAMPLES, REPOSITORIES, Engine
from recipes.config.comparison.official import SNAPSHOTS
from recipes.config.resolve import shown_path

HEAD = {
    "defaults": "Values that hold where an official example says nothing: the engine's own defaults at this commit.",
    "config": "Values of the configuration that every launcher of the engine starts from.",
    "launcher": "Values that an official launcher sets; what it leaves unsaid is in the files named by `below`.",
}
FORM = "# Facts: keys and values, nothing else. Written by scripts/collect_official.py."
NATIVE = "# Keys are verl's own; recipes/config/comparison/native.py reads them as the schema's."


def write(checkout: Path, folder: Path = SNAPSHOTS) -> list[str]:
    """Write every snapshot of the checkout's engine into `folder`; returns the files' names as messages show them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for stem, tree in snapshots(checkout).items():
        notes = [f"# {HEAD[tree['layer']]}", FORM, *([NATIVE] if tree["engine"] == "verl" else [])]
        path = folder / f"{stem}.yaml"
        path.write_text("\n".join(notes) + "\n" + yaml_io.dump(tree), encoding="utf-8")
        written.append(shown_path(path))
    return written


def snapshots(checkout: Path) -> dict[str, dict[str, Any]]:
    """Stem of the file -> its tree."""
    engine = local.engine_of(checkout)
    source: dict[str, Any] = {
        "engine": engine,
        "repository": REPOSITORIES[engine],
        "commit": local.commit_of(checkout),
    }
    shared = local.shared_configuration(checkout, engine)
    below = ["config", "defaults"] if shared else ["defaults"]
    found = {f"{engine}_defaults": {"layer": "defaults", **source, **_defaults(checkout, engine)}}
    if shared:
        found[f"{engine}_config"] = {"layer": "config", **source, "file": local.EASYR1_CONFIG, "values": shared}
    for name, example in EXAMPLES[engine].items():
        found[f"{engine}_{name}"] = {
            "layer": "launcher",
            **source,
            "file": example.file,
            "title": example.title,
            "below": below,
            "values": local.launcher_values(checkout, example),
        }
    return found


def _defaults(checkout: Path, engine: Engine) -> dict[str, Any]:
    file = list(local.EASYR1_CLASSES) if engine == "easyr1" else local.VERL_DEFAULTS
    return {"file": file, "values": local.hidden_defaults(checkout, engine)}
