"""From a task's name to a resolved recipe: four layers, each key with the layer that set it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from recipes.config import kl, machine
from recipes.config.accounting import fill_batches
from recipes.config.gpus import fill_gpus, without_libraries
from recipes.config.layers import (
    VERL,
    Setting,
    dump,
    merge,
    nest,
    read,
    read_settings,
    settings_of,
    shown_path,
    validated,
)
from recipes.config.names import canonical, check_verl_value
from recipes.config.path_keys import located
from recipes.config.schema import Recipe, Source, leaves
from recipes.config.schema.recipe import EngineName
from recipes.config.variables import CONTROL_OPTIONS, ambiguous, argument_settings, is_on, variable_settings
from recipes.errors import RecipeError, did_you_mean
from recipes.paths import CONFIGS, checkpoint_dir, run_dir

PRESET = "algorithm.preset"
"""The key that names an algorithm; the variable ALGORITHM sets it."""
ALGORITHMS = CONFIGS / "algorithms"

RESOLVED = "resolved"
"""Mark of a recipe that was written by `to_yaml`: its values already hold what the hardware's file said."""

UNLESS = "unless"
"""In the embedded block: keys that, set by the user, turn it off where nobody asked for it."""


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
        arguments: `--option value` and `key=value`; keys of the schema, verl's own, short forms of either, and
            `hardware` and `embedded`.
        environ: where variables are read.
        hardware: `cpu` or `gpu`; wins over HARDWARE and what the machine has.

    Raises:
        RecipeError: an unknown key or variable, a wrong type, or settings that disagree; names key and layer.
    """
    path = find(task_or_path)
    shown = shown_path(path)
    tree = read(path, shown)
    _refuse_other_trainers(tree, path, shown)
    given = {setting.path: setting for setting in argument_settings(arguments, canonical)}
    controls = {name: str(given.pop(name).value) for name in CONTROL_OPTIONS if name in given}
    kind = _hardware(hardware, controls.get("hardware"), environ, tree.pop("hardware", None), shown)
    user = [*variable_settings(environ), *given.values()]

    block = tree.pop("embedded", None) or {}
    unless = block.pop(UNLESS, ()) if isinstance(block, dict) else ()
    embedded = bool(block) and _embedded(controls.get("embedded"), environ, kind, unless, user)
    is_resolved = bool(tree.pop(RESOLVED, False))
    files = settings_of(Recipe, tree, Source("recipe", shown), canonical)
    in_block = settings_of(Recipe, block, Source("embedded", f"{shown}, embedded"), canonical)
    files += in_block if embedded else []
    files += [] if is_resolved else _hardware_layer(kind, environ, files, user)

    values, sources = merge(Recipe, _with_algorithm(files, user))
    for name, value in values.get(VERL, {}).items():
        check_verl_value(f"{VERL}.{name}", value, sources[f"{VERL}.{name}"])
    values.setdefault("name", path.stem)
    values["hardware"] = kind
    recipe = _derive(values, sources, environ)
    recipe._embedded_on = embedded
    recipe._notes.extend([*dict.fromkeys(source.note for source in sources.values() if source.note)])
    recipe._notes.extend(ambiguous(environ))
    return recipe


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
    match = re.search(r"^engine:\s*['\"]?([\w-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "verl"


def _refuse_other_trainers(tree: Mapping[str, Any], path: Path, shown: str) -> None:
    """A recipe in configs/ that another program reads."""
    engine = tree.get("engine", "verl")
    if path.parent == CONFIGS and engine not in get_args(EngineName):
        raise RecipeError(
            f"{shown} is for the trainer {engine!r}, which has a launcher of its own",
            where=shown,
            fix=f"see examples/{path.stem}; here, engine is one of {', '.join(get_args(EngineName))}",
        )


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


def algorithms() -> list[str]:
    """Every algorithm that has a file."""
    return sorted(path.stem for path in ALGORITHMS.glob("*.yaml"))


def algorithm(name: str, where: str = "algorithm") -> Algorithm:
    """The algorithm of that name. Raises RecipeError naming the nearest one; `where` says who asked."""
    known = algorithms()
    if name not in known:
        raise RecipeError(
            f"unknown algorithm {name!r}",
            where=where,
            fix=did_you_mean(name, known) or f"use one of {', '.join(known)}",
        )
    path = ALGORITHMS / f"{name}.yaml"
    tree = read(path)
    about = tree.pop("about")
    return Algorithm(name, settings=tuple(settings_of(Recipe, tree, Source("algorithm", shown_path(path)))), **about)


def _with_algorithm(files: list[Setting], user: list[Setting]) -> list[Setting]:
    """Every setting in order, with those of the chosen algorithm.

    One that a file names stands below all files, so that what the files say wins; one that the user names in this run
    wins over all files. Variables and arguments win over both.
    """
    named = [setting for setting in (*files, *user) if setting.path == PRESET]
    if not named or named[-1].value in (None, "null"):
        return [*files, *user]
    last = named[-1]
    own = algorithm(str(last.value), str(last.source)).settings
    return [*files, *own, *user] if last.source.by_user else [*own, *files, *user]


def _hardware(given: str | None, argument: str | None, environ: Mapping[str, str], in_file: Any, shown: str) -> str:
    variable = environ.get("HARDWARE", "").strip()
    if given is not None:
        return machine.kind_of_machine(given, "hardware", environ)
    if argument is not None:
        return machine.kind_of_machine(argument, f"argument hardware={argument}", environ)
    if variable:
        return machine.kind_of_machine(variable, f"variable HARDWARE={variable}", environ)
    return machine.kind_of_machine(in_file, shown, environ)


def _hardware_layer(kind: str, environ: Mapping[str, str], files: list[Setting], user: list[Setting]) -> list[Setting]:
    settings = read_settings(Recipe, CONFIGS / "hardware" / f"{kind}.yaml", "hardware", canonical)
    if kind == "gpu":
        named = [str(setting.value) for setting in (*files, *user) if setting.path == "engine"]
        settings += without_libraries(environ, named[-1] if named else "verl")
    return settings


def _embedded(
    argument: str | None, environ: Mapping[str, str], kind: str, unless: Sequence[str], user: list[Setting]
) -> bool:
    """As the user asks; else where there is no GPU, unless the user brings what the block would have provided."""
    asked = is_on(environ if argument is None else {"EMBEDDED": argument}, "EMBEDDED")
    if asked is not None:
        return asked
    return kind == "cpu" and not any(setting.path in unless for setting in user)


EXPERIMENT = "{experiment_name}"
"""Stands for the experiment's name in trainer.save_checkpoint_path."""


def _derive(values: dict[str, Any], sources: dict[str, Source], environ: Mapping[str, str]) -> Recipe:
    """The recipe with every value that follows from others, and absolute paths; changes both mappings.

    Values of a wrong type pass through, to be named by the one check of types at the end.
    """
    kl.switch_off(values, sources)
    fill_batches(values, sources)
    if values["hardware"] == "gpu":
        fill_gpus(values, sources)
    _fill_critic(values, sources)
    experiment = str(values.get("trainer.experiment_name") or values["name"])
    folders: dict[str, Any] = {"trainer.save_checkpoint_path": checkpoint_dir}
    if values.get("engine", "verl") == "verl":
        folders["trainer.rollout_data_dir"] = lambda name: run_dir(name) / "rollouts"
        folders["trainer.validation_data_dir"] = lambda name: run_dir(name) / "validation"
    follows = {"trainer.experiment_name": experiment, **{key: str(of(experiment)) for key, of in folders.items()}}
    for key, value in follows.items():
        if values.get(key) is None:
            values[key] = value
            sources.setdefault(key, Source("default", "follows from the experiment's name"))
    values["trainer.save_checkpoint_path"] = str(values["trainer.save_checkpoint_path"]).replace(EXPERIMENT, experiment)
    listed = values.get("trainer.logger", leaves(Recipe)["trainer.logger"].default)
    if isinstance(listed, list):
        asked = "trainer.logger" in sources and sources["trainer.logger"].by_user
        values["trainer.logger"] = machine.loggers(listed, asked, environ)
    values.update(located(Recipe, values, sources))
    return validated(Recipe, values, sources)


_ACTOR, _CRITIC = "worker.actor.", "worker.critic."
_OF_ITS_OWN = ("optim.", "model.lora.", "model.model_path", "loss_avg_mode")
"""What a value network has for itself; its `model_path` is the actor's where none is given."""


def _fill_critic(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """With GAE, keys of the critic that no layer set are the actor's: batch sizes, sharding, precision, offloading."""
    if values.get("algorithm.adv_estimator") != "gae":
        return
    for path in leaves(Recipe):
        name = path.removeprefix(_CRITIC)
        leader = f"{_ACTOR}{name}"
        if name == path or name.startswith(_OF_ITS_OWN) or path in sources or leader not in sources:
            continue
        values[path] = values[leader]
        sources[path] = Source("default", f"follows {leader}, from {sources[leader]}", sources[leader].follows)


def replaced(recipe: Recipe, changes: Mapping[str, Any], why: str) -> Recipe:
    """The recipe with other values for some keys; `why` is what messages name as their source."""
    values = {path: recipe.value(path) for path in leaves(Recipe)}
    sources = {**recipe.sources, **dict.fromkeys(changes, Source("default", why))}
    changed = validated(Recipe, {**values, **changes}, sources)
    changed._embedded_on = recipe.embedded_on
    changed._notes.extend(recipe.notes)
    return changed


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every key that takes part, with its value, nested; the critic only where there is one. verl's own stay dotted."""
    paths = [path for path in leaves(Recipe) if recipe.has_critic or not path.startswith("worker.critic.")]
    tree = {RESOLVED: True, **nest({path: recipe.value(path) for path in paths if path != VERL})}
    return {**tree, VERL: recipe.verl} if recipe.verl else tree


def to_yaml(recipe: Recipe) -> str:
    """The recipe as YAML that loads again as the same recipe."""
    return dump(resolved(recipe))
