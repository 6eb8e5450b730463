"""From a task's name to a resolved recipe: four layers, each key with the layer that set it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from recipes.config import derived, machine, text
from recipes.config.layers import Setting, Source, nest
from recipes.config.machine import has_packed_attention, kind_of_machine, lacks_flash_attention, lacks_liger
from recipes.config.merge import check_names, merge, schema_name, settings_of, validated
from recipes.config.paths import located
from recipes.config.schema import Recipe, leaves
from recipes.config.schema.trainer import EngineName
from recipes.config.text import did_you_mean
from recipes.config.variables import is_on, read_arguments, read_settings
from recipes.errors import RecipeError
from recipes.paths import CONFIGS, ROOT, checkpoint_dir, run_dir

PRESET = "algorithm.preset"
"""The key that names one; the variable ALGORITHM sets it."""
FOLDER = CONFIGS / "algorithms"


@dataclass(frozen=True)
class Algorithm:
    """One file of `configs/algorithms`.

    Attributes:
        name: the file's, and the value of ALGORITHM.
        title: what the field calls it.
        paper: arXiv number.
        changes: what it does that the others do not.
        use: when it helps.
        settings: the keys it sets, as a layer of its own.
    """

    name: str
    title: str
    paper: str
    changes: str
    use: str
    settings: tuple[Setting, ...]

    @property
    def values(self) -> dict[str, Any]:
        """Dotted keys and their values."""
        return {setting.path: setting.value for setting in self.settings}


def names() -> list[str]:
    """Every algorithm that has a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str, where: str = "algorithm") -> Algorithm:
    """The algorithm of that name. Raises RecipeError naming the nearest one; `where` says who asked."""
    known = names()
    if name not in known:
        raise RecipeError(
            f"unknown algorithm {name!r}",
            where=where,
            fix=did_you_mean(name, known) or f"use one of {', '.join(known)}",
        )
    shown = f"configs/algorithms/{name}.yaml"
    tree = text.read(FOLDER / f"{name}.yaml", shown)
    about = tree.pop("about")
    settings = settings_of(tree, Source("algorithm", shown))
    check_names(settings)
    return Algorithm(name, settings=tuple(settings), **about)


def layered(files: list[Setting], user: list[Setting]) -> list[Setting]:
    """Every setting in order, with those of the chosen algorithm.

    One that a file names stands below all files, so that what the files say wins; one that the user names in this run
    wins over all files. Variables and arguments win over both.
    """
    chosen = [setting for setting in (*files, *user) if setting.path == PRESET]
    if not chosen or chosen[-1].value in (None, "null"):
        return [*files, *user]
    last = chosen[-1]
    own = list(read(str(last.value), str(last.source)).settings)
    return [*files, *own, *user] if last.source.by_user else [*own, *files, *user]


RESOLVED = "resolved"
"""Mark of a recipe that was written by `to_yaml`: its values already hold what the hardware's file said."""

UNLESS = "unless"
"""In the embedded block: keys that, set by the user, turn it off where nobody asked for it."""

PACKED_ATTENTION = "torch_varlen_flash"
"""The name under which recipes/engines/packed_attention.py offers PyTorch's kernel to transformers."""


def load(
    task_or_path: str,
    *,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    hardware: str | None = None,
) -> Recipe:
    """Resolve a recipe.

    Args:
        task_or_path: a task (`countdown` is configs/countdown.yaml) or the path of a YAML file.
        arguments: `key=value`; keys of the schema, verl's own keys, and `hardware` and `embedded`.
        environ: where variables are read.
        hardware: `cpu` or `gpu`; wins over HARDWARE and what the machine has.

    Raises:
        RecipeError: an unknown key or variable, a wrong type, or settings that disagree; names key and layer.
    """
    path = find(task_or_path)
    shown = shown_path(path)
    tree = text.read(path, shown)
    _refuse_other_trainers(tree, path, shown)
    embedded_block = tree.pop("embedded", None) or {}
    is_resolved = bool(tree.pop(RESOLVED, False))
    asked = read_arguments(arguments)
    controls = {setting.path: setting for setting in asked if setting.path in ("hardware", "embedded")}
    asked = [setting for setting in asked if setting.path not in controls]
    kind = _hardware(hardware, controls.get("hardware"), environ, tree.pop("hardware", None), shown)
    user = [*read_settings(environ), *asked]
    unless = frozenset(embedded_block.pop(UNLESS, ())) if isinstance(embedded_block, dict) else frozenset()
    embedded = _embedded(controls.get("embedded"), environ, kind, unless, user) and bool(embedded_block)

    settings = settings_of(tree, Source("recipe", shown))
    check_names(settings)
    block = settings_of(embedded_block, Source("embedded", f"{shown}, embedded"))
    check_names(block)
    settings += block if embedded else []
    settings += [] if is_resolved else _hardware_layer(kind, environ, _engine(settings, user))
    values, sources = merge(layered(settings, user))
    values.setdefault("name", path.stem)
    values["hardware"] = kind
    return _finished(values, sources, embedded, environ)


def find(task_or_path: str) -> Path:
    """The YAML file of a task, or the file itself. Raises RecipeError naming the nearest task."""
    given = Path(task_or_path)
    if given.suffix in (".yaml", ".yml"):
        if not given.is_file():
            raise RecipeError("the recipe does not exist", where=str(given), fix=f"use one of {', '.join(tasks())}")
        return given
    path = CONFIGS / f"{task_or_path}.yaml"
    if not path.is_file():
        known = tasks()
        raise RecipeError(
            f"unknown task {task_or_path!r}",
            where=str(CONFIGS),
            fix=did_you_mean(task_or_path, known) or f"use one of {', '.join(known)}",
        )
    return path


def tasks() -> list[str]:
    """The tasks that have a recipe for verl or EasyR1; others have a trainer, and a launcher, of their own."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml") if engine_of(path) in get_args(EngineName))


def engine_of(path: Path) -> str:
    """The engine that a recipe's file names, read without parsing it; verl where it names none."""
    found = re.search(r"^engine:\s*['\"]?([\w-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else "verl"


def _refuse_other_trainers(tree: Mapping[str, Any], path: Path, shown: str) -> None:
    """A recipe in this folder that another program reads."""
    engine = tree.get("engine", "verl")
    if path.parent == CONFIGS and engine not in get_args(EngineName):
        raise RecipeError(
            f"{shown} is for the trainer {engine!r}, which has a launcher of its own",
            where=shown,
            fix=f"see examples/{path.stem}; here, engine is one of {', '.join(get_args(EngineName))}",
        )


def shown_path(path: Path) -> str:
    """A path as messages show it: from the repository's root where it lies below."""
    full = path.absolute()
    return str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else str(path)


def _hardware(given: str | None, argument: Setting | None, environ: Mapping[str, str], in_file: Any, shown: str) -> str:
    variable = environ.get("HARDWARE", "").strip()
    if given is not None:
        return kind_of_machine(given, "hardware", environ)
    if argument is not None:
        return kind_of_machine(str(argument.value), str(argument.source), environ)
    if variable:
        return kind_of_machine(variable, f"variable HARDWARE={variable}", environ)
    return kind_of_machine(in_file, shown, environ)


def _embedded(
    argument: Setting | None, environ: Mapping[str, str], kind: str, unless: frozenset[str], user: list[Setting]
) -> bool:
    """As the user asks; else where there is no GPU, unless the user brings what the block would have provided."""
    given = environ if argument is None else {"EMBEDDED": str(argument.value)}
    asked = is_on(given, "EMBEDDED")
    if asked is not None:
        return asked
    return kind == "cpu" and not any(schema_name(setting.path) in unless for setting in user)


def _engine(files: list[Setting], user: list[Setting]) -> str:
    return next((str(setting.value) for setting in reversed([*files, *user]) if setting.path == "engine"), "verl")


def _hardware_layer(kind: str, environ: Mapping[str, str], engine: str) -> list[Setting]:
    path = CONFIGS / "hardware" / f"{kind}.yaml"
    shown = shown_path(path)
    settings = settings_of(text.read(path, shown), Source("hardware", shown))
    check_names(settings)
    if kind != "gpu":
        return settings
    roles = ("worker.actor", "worker.critic")
    if lacks_flash_attention(environ):
        source = Source("hardware", "this machine has no flash-attn")
        packs = engine == "verl" and has_packed_attention()
        changes = {derived.ATTENTION: PACKED_ATTENTION} if packs else derived.WITHOUT_PACKING
        settings += [Setting(f"{role}.{name}", value, source) for role in roles for name, value in changes.items()]
    if lacks_liger(environ):
        source = Source("hardware", "this machine has no liger-kernel")
        settings += [Setting(f"{role}.model.use_liger", False, source) for role in roles]
    return settings


def _finished(values: dict[str, Any], sources: dict[str, Source], embedded: bool, environ: Mapping[str, str]) -> Recipe:
    """Fill in names and folders that follow from others, make paths absolute, and check types."""
    derived.fill(values, sources)
    derived.follow(values, sources)
    recipe = validated(values, sources)
    experiment = recipe.trainer.experiment_name or recipe.name
    filled = {
        "trainer.experiment_name": experiment,
        "trainer.save_checkpoint_path": str(checkpoint_dir(experiment)),
    }
    if recipe.engine == "verl":
        filled["trainer.rollout_data_dir"] = str(run_dir(experiment) / "rollouts")
        filled["trainer.validation_data_dir"] = str(run_dir(experiment) / "validation")
    for path, value in filled.items():
        if values.get(path) is None:
            values[path] = value
            sources.setdefault(path, Source("default", "follows from the experiment's name"))
    asked = sources["trainer.logger"].by_user if "trainer.logger" in sources else False
    values["trainer.logger"] = machine.chosen(recipe.trainer.logger, asked, environ)
    values.update(located(recipe, values, sources))
    return validated(values, sources, embedded_on=embedded)


def replaced(recipe: Recipe, changes: Mapping[str, Any], why: str) -> Recipe:
    """The recipe with other values for some keys; `why` is what messages name as their source."""
    values = {path: recipe.value(path) for path in leaves(Recipe) if path != "verl"}
    source = Source("default", why)
    sources = {**recipe.sources, **dict.fromkeys(changes, source)}
    return validated({**values, "verl": recipe.verl, **changes}, sources, embedded_on=recipe.embedded_on)


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every key that takes part, with its value, nested; the critic only where there is one. verl's own stay dotted."""
    critic = recipe.algorithm.adv_estimator == "gae"
    paths = [path for path in leaves(Recipe) if path != "verl" and (critic or not path.startswith("worker.critic."))]
    tree = {"resolved": True, **nest({path: recipe.value(path) for path in paths})}
    return {**tree, "verl": recipe.verl} if recipe.verl else tree


def to_yaml(recipe: Recipe, layers: bool = False) -> str:
    """The recipe as YAML that loads again; with `layers`, each key that a layer set says which."""
    dumped = text.dump(resolved(recipe))
    return _with_layers(dumped, recipe) if layers else dumped


def _with_layers(text: str, recipe: Recipe) -> str:
    """Put the source of each key behind its line; the dump is in block style, so indentation gives the path."""
    lines, parents = [], [(-1, "")]
    for line in text.splitlines():
        name, colon, _ = line.strip().partition(":")
        indent = len(line) - len(line.lstrip())
        if not colon or line.lstrip().startswith("-"):
            lines.append(line)
            continue
        while parents[-1][0] >= indent:
            parents.pop()
        path = f"{parents[-1][1]}.{name}".lstrip(".")
        parents.append((indent, path))
        source = recipe.sources.get(path) or recipe.sources.get(f"verl.{name}")
        lines.append(f"{line}  # {source}" if source else line)
    return "\n".join(lines) + "\n"
