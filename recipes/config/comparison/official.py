"""Official examples as facts: snapshots in configs/official, or a local checkout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from recipes.config import yaml_io
from recipes.config.comparison import native
from recipes.config.comparison.catalogue import EXAMPLES, REPOSITORIES, SHORT, Engine
from recipes.config.suggest import did_you_mean
from recipes.errors import RecipeError
from recipes.paths import CONFIGS

SNAPSHOTS = CONFIGS / "official"


@dataclass(frozen=True)
class Official:
    """One official example, in the schema's keys.

    Attributes:
        engine: easyr1 or verl.
        name: its name in `--against`.
        title: head of its column.
        origin: repository, commit and file, in words.
        values: every key that the example determines, its engine's defaults included.
        said: the keys that its launcher or shared configuration sets; the others are defaults.
        outside: keys of the engine that the schema has no counterpart for.
    """

    engine: Engine
    name: str
    title: str
    origin: str
    values: Mapping[str, Any]
    said: frozenset[str]
    outside: Mapping[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """Every name that `--against` knows without a checkout."""
    return [f"{engine}:{name}" for engine, examples in EXAMPLES.items() for name in examples]


def chosen(words: Iterable[str], checkout: Path | None = None) -> list[Official]:
    """The examples that `--against` asks for: `easyr1`, `easyr1:7b`, `verl:qwen3_8b_gsm8k`; each once, in order.

    With a checkout, its own files are read, and every launcher in it has a name. Raises RecipeError for an unknown one.
    """
    wanted: dict[tuple[Engine, str], None] = {}
    for word in words:
        for part in word.split(","):
            wanted.update(dict.fromkeys(_named(part.strip(), checkout is None)))
    return [_read(engine, name) if checkout is None else _from(checkout, engine, name) for engine, name in wanted]


def _named(word: str, known_only: bool) -> list[tuple[Engine, str]]:
    engine, colon, name = word.partition(":")
    if engine not in get_args(Engine):
        raise RecipeError(
            f"unknown official example {word!r}",
            where="--against",
            fix=did_you_mean(word, names()) or "begin with easyr1 or verl, for instance easyr1:7b",
        )
    if not colon:
        return [(engine, each) for each in SHORT[engine].values()]
    name = SHORT[engine].get(name, name)
    if known_only and name not in EXAMPLES[engine]:
        listed = [each.partition(":")[2] for each in names() if each.startswith(f"{engine}:")]
        raise RecipeError(
            f"unknown official example {word!r}",
            where="--against",
            fix=did_you_mean(name, listed) or f"use one of {', '.join(listed)}, or name a checkout",
        )
    return [(engine, name)]


def _read(engine: Engine, name: str) -> Official:
    tree = snapshot(f"{engine}_{name}")
    below = [snapshot(f"{engine}_{layer}") for layer in tree["below"]]
    hidden = next((layer["values"] for layer in below if layer["layer"] == "defaults"), {})
    shared = next((layer["values"] for layer in below if layer["layer"] == "config"), {})
    return _joined(engine, name, tree["title"], tree["commit"], tree["file"], hidden, shared, tree["values"])


def snapshot(stem: str) -> dict[str, Any]:
    """One file of configs/official as it is."""
    return yaml_io.read(SNAPSHOTS / f"{stem}.yaml", f"configs/official/{stem}.yaml")


def _from(checkout: Path, engine: Engine, name: str) -> Official:
    from recipes.config.comparison import checkout as local

    held = local.engine_of(checkout)
    if held != engine:
        raise RecipeError(f"{engine}:{name} is not in a checkout of {held}", where=str(checkout))
    example = local.find_example(checkout, engine, name)
    hidden, shared = local.hidden_defaults(checkout, engine), local.shared_configuration(checkout, engine)
    said = local.launcher_values(checkout, example)
    return _joined(engine, name, example.title, local.commit_of(checkout), example.file, hidden, shared, said)


def _joined(
    engine: Engine,
    name: str,
    title: str,
    commit: str,
    file: str,
    hidden: Mapping[str, Any],
    shared: Mapping[str, Any],
    launcher: Mapping[str, Any],
) -> Official:
    origin = f"{REPOSITORIES[engine]}, commit {commit}, {file}"
    said, values = {**shared, **launcher}, {**hidden, **shared, **launcher}
    if engine == "easyr1":
        return Official(engine, name, title, origin, values, frozenset(said))
    outside = {
        key: value
        for key, value in launcher.items()
        if not native.has_counterpart(key) and not native.repeats(key, launcher)
    }
    return Official(
        engine, name, title, origin, native.to_schema(values), frozenset(native.told_by(set(said))), outside
    )
