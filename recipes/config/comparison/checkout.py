"""Official values from a local checkout of EasyR1 or verl: defaults, shared configuration, launcher."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from recipes.config import yaml_io
from recipes.config.comparison import shell
from recipes.config.comparison.catalogue import EXAMPLES, Engine, Example
from recipes.config.comparison.dataclass_defaults import defaults
from recipes.config.comparison.native import has_counterpart
from recipes.config.layers import flatten
from recipes.config.suggest import did_you_mean
from recipes.errors import RecipeError

EASYR1_CLASSES = (
    "verl/trainer/config.py",
    "verl/workers/config.py",
    "verl/workers/actor/config.py",
    "verl/workers/critic/config.py",
    "verl/workers/reward/config.py",
    "verl/workers/rollout/config.py",
)
EASYR1_CONFIG = "examples/config.yaml"
VERL_DEFAULTS = "verl/trainer/config/_generated_ppo_trainer.yaml"
VALIDATION = "worker.rollout.val_override_config"


def commit_of(checkout: Path) -> str:
    """The commit that is checked out. Raises RecipeError where git does not know it."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RecipeError("git cannot say which commit this is", where=str(checkout)) from error
    return done.stdout.strip()


def engine_of(checkout: Path) -> Engine:
    """Which of the two repositories a folder holds. Raises RecipeError where it is neither."""
    if (checkout / EASYR1_CONFIG).is_file() and (checkout / EASYR1_CLASSES[0]).is_file():
        return "easyr1"
    if (checkout / VERL_DEFAULTS).is_file():
        return "verl"
    raise RecipeError(
        "this is no checkout of EasyR1 or verl", where=str(checkout), fix="name the folder that holds examples/"
    )


def hidden_defaults(checkout: Path, engine: Engine) -> dict[str, Any]:
    """What holds where neither configuration nor launcher says anything; of verl's, those the schema can express."""
    if engine == "easyr1":
        values = defaults([checkout / name for name in EASYR1_CLASSES], "PPOConfig")
        return {key: value for key, value in values.items() if key != VALIDATION}
    tree = flatten(yaml_io.read(checkout / VERL_DEFAULTS, VERL_DEFAULTS))
    return {key: _resolved(tree, value) for key, value in tree.items() if has_counterpart(key)}


def _resolved(tree: dict[str, Any], value: Any) -> Any:
    """verl's `${oc.select:other.key,default}` as its value; other interpolations stay text."""
    if not (isinstance(value, str) and value.startswith("${oc.select:")):
        return value
    key, _, default = value.removeprefix("${oc.select:").removesuffix("}").partition(",")
    return _resolved(tree, tree[key]) if key in tree else yaml_io.parse(default.strip())


def shared_configuration(checkout: Path, engine: Engine) -> dict[str, Any]:
    """EasyR1's launchers all start from one YAML file; verl's from the defaults."""
    return flatten(yaml_io.read(checkout / EASYR1_CONFIG, EASYR1_CONFIG)) if engine == "easyr1" else {}


def find_example(checkout: Path, engine: Engine, name: str) -> Example:
    """The launcher of that name: one that we know, or any in the checkout's examples."""
    folder = "examples" if engine == "easyr1" else "examples/grpo_trainer"
    known = EXAMPLES[engine].get(name)
    stems = {path.stem: path for path in sorted((checkout / folder).glob("*.sh"))}
    if known is not None and (checkout / known.file).is_file():
        return known
    for stem in (name, f"{name}_grpo", f"run_{name}"):
        if stem in stems:
            label = {"easyr1": "EasyR1", "verl": "verl"}[engine]
            return Example(f"{label}, {name}", str(stems[stem].relative_to(checkout)))
    raise RecipeError(
        f"there is no example {name!r}",
        where=str(checkout / folder),
        fix=did_you_mean(name, stems) or "see that folder",
    )


def launcher_values(checkout: Path, example: Example) -> dict[str, Any]:
    """What the launcher itself sets, without the name of the configuration file."""
    try:
        text = (checkout / example.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the launcher: {error}", where=str(checkout / example.file)) from error
    return {key: value for key, value in shell.arguments(text, example.file).items() if key != "config"}
