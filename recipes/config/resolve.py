"""Resolve a task's name into a recipe: merge the layers of settings, and record which layer set each key."""

import netrc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from recipes.config.accounting import filled_batches
from recipes.config.gpus import adapters_spread, memory_filled, packing_undone, plain_head, without_libraries
from recipes.config.names import canonical, followed, understood
from recipes.config.path_keys import located
from recipes.config.schema import Recipe, Setting, Source, leaves
from recipes.config.schema.recipe import Hardware, Resolution
from recipes.config.variables import (
    CONTROL_OPTIONS,
    argument_settings,
    control,
    not_read,
    split_overlays,
    variable_settings,
)
from recipes.errors import RecipeError, unknown
from recipes.memory.gpus import Gpu, described, visible_gpus
from recipes.model_files import architecture
from recipes.paths import CONFIGS, ROOT, checkpoint_dir, run_dir
from recipes.settings import DEFAULT, NATIVES, VERL, merge, nest, settings_of, validated
from recipes.yaml_text import dump, flow, parse, read, shown_path

PRESET = "algorithm.preset"
"""The key that names an algorithm; the variable ALGORITHM sets it."""
ESTIMATOR = "algorithm.adv_estimator"
ALGORITHMS = CONFIGS / "algorithms"

RESOLVED = "resolved"
"""Marks a recipe that `to_yaml` wrote: its values already include the settings of configs/hardware."""

MODEL = "worker.actor.model.model_path"


def load(
    task_or_path: str,
    *,
    arguments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    hardware: str | None = None,
) -> Recipe:
    """Resolve a recipe.

    Args:
        task_or_path: a task (`countdown` is configs/countdown.yaml) or the path of a YAML file.
        arguments: first further YAML files, of which later ones win; then `--option value` and `key=value`, where
            `key` is the full name of a key of the schema or of verl, the name of a variable, or one of
            `CONTROL_OPTIONS`.
        environ: the variables; by default the process's.
        hardware: `cpu` or `gpu`; wins over HARDWARE and what the machine has, but not over the option `--gpus`.

    Raises:
        RecipeError: an unknown key or option, a wrong type, or settings that disagree; the error names key and layer.
    """
    environ = os.environ if environ is None else environ  # not as a default: `datasets` replaces os.environ
    overlays, words = split_overlays(arguments)
    paths = [find(each) for each in (task_or_path, *overlays)]
    trees = [read(path) for path in paths]
    is_resolved = True in [tree.pop(RESOLVED, False) for tree in trees]
    typed = understood(argument_settings(words, canonical))
    steering = [each for each in typed if each.path in CONTROL_OPTIONS]
    of_gpus = [Setting("hardware", "gpu", each.source, each.spelled) for each in steering if each.path == "gpus"]
    merge(Recipe, [each for each in (*steering, *of_gpus) if each.value != "auto"])  # refuses two values of an option
    controls = {each.path: str(each.value) for each in steering}
    user = [*variable_settings(environ), *(each for each in typed if each.path not in CONTROL_OPTIONS)]
    planned: tuple[Gpu, ...] | None = None  # by `--gpus 1x24`, whether they are here or not
    if (text := controls.get("gpus")) is not None:
        source = Source("argument", f"argument gpus={text}")
        planned = tuple(described(text, source.where))
        user.append(Setting("trainer.n_gpus_per_node", str(len(planned)), source, "gpus"))
    of_files = ["auto", *(tree["hardware"] for tree in trees if "hardware" in tree)]
    chosen = "gpu" if planned else hardware or controls.get("hardware") or environ.get("HARDWARE", "").strip()
    kind = _hardware(chosen or of_files[-1], environ)

    files: list[Setting] = []
    block: list[Setting] = []
    for path, tree in zip(paths, trees, strict=True):
        shown, own = shown_path(path), not (is_resolved or path.is_relative_to(CONFIGS))
        of_block = Source("tiny", f"{shown}, tiny", own)
        block += settings_of(Recipe, tree.pop("tiny", None) or {}, of_block, canonical)
        files += settings_of(Recipe, tree, Source("recipe", shown, own), canonical)
    files, block = understood(files), understood(block)
    asked_for = control({"TINY": controls.get("tiny") or environ.get("TINY", "")}, "TINY")
    named = next((setting for setting in user if setting.path == MODEL), None)
    other = named.source if named and not _is_of(block, named) else None
    is_tiny = bool(block) and (kind == "cpu" and other is None if asked_for is None else asked_for)
    written = [*(block if is_tiny else []), *files, *user]
    files += block if is_tiny else []
    path = CONFIGS / "hardware" / f"{kind}.yaml"
    machine = [] if is_resolved else settings_of(Recipe, read(path), Source("hardware", shown_path(path)), canonical)
    if machine and kind == "gpu" and not planned:
        machine += without_libraries(environ, [*files, *user])
    # Defaults for GPUs lie below the files. A file that was written for GPUs has to run on CPUs, whose settings win.
    layers = [*machine, *_with_algorithm(files, user)] if kind == "gpu" else _with_algorithm([*files, *machine], user)

    values, sources = merge(Recipe, layers)
    recipe = validated(Recipe, {"name": paths[0].stem, **values, "hardware": kind}, sources)
    recipe._resolution = Resolution(is_tiny, planned)
    recipe = without_copies(derive(recipe, environ))
    notes = [*(unread := not_read(environ)), *_replaced(recipe, written), *_outvoted(recipe)]
    notes += _without_login(values.get("trainer.logger") or [], recipe, environ)
    if block and named and asked_for is None and kind == "cpu":
        does = "do not apply (TINY=1)" if other else "apply to this one, which has its sizes (TINY=0)"
        notes.insert(0, f"{named.source}: data and sizes of {block[0].source} belong to its tiny model and {does}")
    recipe._resolution = Resolution(is_tiny, planned, tuple(notes), unread)
    return recipe


def without_copies(recipe: Recipe) -> Recipe:
    """The recipe without verl's names of copies of other keys, such as `actor_rollout_ref.rollout.response_length`.

    Raises RecipeError where such a name has another value than the key that it follows.
    """
    copies = {name: key for name in recipe.verl if (key := followed(name.lstrip("+")))}
    for name, key in copies.items():
        convert, value = leaves(Recipe)[key].info.convert, recipe.value(key)
        value = convert(value) if convert else value
        if recipe.verl[name] != value:
            what = f"{name} is {recipe.verl[name]!r}, and follows {key}, which is {value!r}"
            raise RecipeError(what, where=recipe.source_of(f"{VERL}.{name}").where, fix=f"set {key}")
    kept = {name: value for name, value in recipe.verl.items() if name not in copies}
    return changed(recipe, [Setting(VERL, kept, recipe.source_of(VERL))] if copies else [])


def _replaced(recipe: Recipe, written: Sequence[Setting]) -> list[str]:
    """One note for each layer, or reason, that replaces values which the user wrote."""
    lost: dict[tuple[str, str], list[str]] = {}
    for path, setting in {each.path: each for each in written if each.source.chosen}.items():
        won, own_block = recipe.source_of(path), f"{setting.source.where}, tiny"
        is_above = won.layer in ("hardware", "algorithm", "tiny") and won.where != own_block
        if path in leaves(Recipe) and is_above and setting.value is not None:
            values = setting.value, recipe.value(path)
            old, new = (flow(parse(value) if isinstance(value, str) else value) for value in values)
            if old != new:
                lost.setdefault((won.where, setting.source.where), []).append(f"{path} is {new}, not {old}")
    return [f"{won} replaces values of {where}: {'; '.join(keys)}" for (won, where), keys in lost.items()]


def _outvoted(recipe: Recipe) -> list[str]:
    """One note for each value of an algorithm that a file names, and that the file gives otherwise."""
    preset = recipe.algorithm.preset
    if not (preset and recipe.source_of(PRESET).own):
        return []
    return [
        f"{preset} asks for {each.path} {flow(each.value)}, and {won} says {flow(recipe.value(each.path))}"
        for each in changes(recipe, preset)
        if not (won := recipe.source_of(each.path)).by_user
    ]


def find(task_or_path: str) -> Path:
    """The YAML file of a task, or the path itself if it is a YAML file. Raises RecipeError naming a similar task."""
    is_file = Path(task_or_path).suffix in (".yaml", ".yml")
    path = Path(task_or_path) if is_file else CONFIGS / f"{task_or_path}.yaml"
    if path.is_file():
        return path
    if not is_file:
        raise unknown("task", task_or_path, tasks(), str(CONFIGS))
    fix = f"mend the path, which starts where you stand, or use one of {', '.join(tasks())}"
    raise RecipeError("the recipe does not exist", where=str(path), fix=fix)


def tasks() -> list[str]:
    """Return the tasks that have a recipe."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


@dataclass(frozen=True)
class Algorithm:
    """One file of `configs/algorithms`: its `about` block (`paper` is an arXiv number), and the keys that it sets."""

    title: str
    paper: str
    changes: str
    use: str
    settings: list[Setting]

    @property
    def values(self) -> dict[str, Any]:
        """Dotted keys and their values."""
        return {setting.path: setting.value for setting in self.settings}


def algorithms() -> list[str]:
    """Every algorithm that has a file."""
    return sorted(path.stem for path in ALGORITHMS.glob("*.yaml"))


def algorithm(name: str, where: str = "algorithm") -> Algorithm:
    """The algorithm `name`. Raises RecipeError with a similar name; `where` is the source that the error states."""
    if name not in algorithms():
        raise unknown("algorithm", name, algorithms(), where)
    path = ALGORITHMS / f"{name}.yaml"
    tree = read(path)
    about = tree.pop("about")
    return Algorithm(**about, settings=settings_of(Recipe, tree, Source("algorithm", shown_path(path))))


def changes(recipe: Recipe, name: str) -> list[Setting]:
    """The settings of the algorithm `name` that the recipe has otherwise."""
    return [each for each in algorithm(name).settings if recipe.value(each.path) != each.value]


def _with_algorithm(files: list[Setting], user: list[Setting]) -> list[Setting]:
    """Every setting in order, with those of the chosen algorithm.

    If a file names the algorithm, all files win over the algorithm's settings. If the user names the algorithm in this
    run, its settings win over all files. Other variables and arguments win in either case.
    """
    last = next((setting for setting in reversed((*files, *user)) if setting.path == PRESET), None)
    name = merge(Recipe, [last])[0][PRESET] if last else None
    if last is None or name is None:
        return [*files, *user]
    own = algorithm(str(name), str(last.source)).settings
    return [*files, *own, *user] if last.source.by_user else [*own, *files, *user]


def _hardware(kind: str, environ: Mapping[str, str]) -> str:
    """`cpu` or `gpu`; for `auto`, `gpu` if a GPU is visible."""
    if kind == "auto":
        return "gpu" if visible_gpus(environ) else "cpu"
    if kind not in get_args(Hardware):
        raise RecipeError(f"unknown hardware {kind!r}", where="HARDWARE, or hardware= in arguments", fix="cpu or gpu")
    return kind


def _is_of(block: list[Setting], setting: Setting) -> bool:
    """Return whether the user names the block's own model, or one that was trained from it: its sizes are the same."""
    own = next((str(each.value) for each in block if each.path == MODEL), None)  # from the repository's root
    sizes = architecture(ROOT / own) if own else {}
    named = located(Recipe, {MODEL: setting.value}, {MODEL: setting.source})[MODEL]
    return bool(sizes) and architecture(Path(str(named))) == sizes


def derive(recipe: Recipe, environ: Mapping[str, str]) -> Recipe:
    """Fill null keys from other keys and the machine, undo defaults that the model cannot use, make paths absolute."""
    by_gpus = (adapters_spread, plain_head, memory_filled) if recipe.hardware == "gpu" else ()
    recipe = changed(recipe, _located(recipe, MODEL))  # first: the next ones look into the model's folder
    for follows in (filled_batches, packing_undone, *by_gpus, _defaults, _places):
        recipe = changed(recipe, follows(recipe))
    key, source = "trainer.logger", recipe.source_of("trainer.logger")
    logger = Setting(key, loggers(list(recipe.trainer.logger), source.by_user, environ), source)
    return changed(recipe, [*_located(recipe, *leaves(Recipe)), logger])


def logged_in(environ: Mapping[str, str]) -> bool:
    """Return whether W&B would find a key: in WANDB_API_KEY, or in the netrc file that `wandb login` writes."""
    if environ.get("WANDB_API_KEY"):
        return True
    host = environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    home = environ.get("HOME", "")
    try:
        return netrc.netrc(environ.get("NETRC") or f"{home}/.netrc").authenticators(host) is not None
    except (netrc.NetrcParseError, OSError):
        return False


def loggers(listed: list[str], by_user: bool, environ: Mapping[str, str]) -> list[str]:
    """Return the loggers that the run uses; `wandb` only if the user asks for it in this run or is logged in.

    Setting WANDB_MODE asks for `wandb` too; the mode `disabled` drops `wandb` despite a login. `file` is always used:
    progress, history and the closing table are read from it.
    """
    mode = environ.get("WANDB_MODE", "").strip()
    takes_part = mode != "disabled" and (bool(mode) or logged_in(environ))
    wanted = listed if by_user or takes_part else [name for name in listed if name != "wandb"]
    return wanted if "file" in wanted else [*wanted, "file"]


def _without_login(listed: Sequence[str], recipe: Recipe, environ: Mapping[str, str]) -> list[str]:
    """One note for each logger that the user wrote, and that is left out or writes offline without a login."""
    source, used = recipe.source_of("trainer.logger"), recipe.trainer.logger
    lost = "wandb" in listed and not environ.get("WANDB_MODE", "").strip() and not logged_in(environ)
    no_key = "swanlab" in used and not (environ.get("SWANLAB_API_KEY") or environ.get("SWANLAB_MODE"))
    offline = "writes offline into the run's folder"
    does = offline if "wandb" in used else f"is left out (LOGGER={','.join([*used, 'wandb'])} has it write offline)"
    return [
        *[f"{source}: wandb {does}, without a login: type `wandb login`, or set WANDB_API_KEY"] * lost,
        *[f"{source}: swanlab {offline}: set SWANLAB_API_KEY, or SWANLAB_MODE"] * no_key,
    ] * source.chosen


def _located(recipe: Recipe, *keys: str) -> list[Setting]:
    paths = located(Recipe, {key: recipe.value(key) for key in keys}, recipe.sources)
    return [Setting(key, path, recipe.source_of(key)) for key, path in paths.items()]


def _places(recipe: Recipe) -> list[Setting]:
    """The experiment's name and its folders; `{experiment_name}` in that of the checkpoints stands for the name."""
    trainer, experiment = recipe.trainer, recipe.experiment
    source = Source("default", "follows from the experiment's name")
    checkpoints = trainer.save_checkpoint_path or str(checkpoint_dir(experiment))
    places = {
        "trainer.experiment_name": experiment,
        "trainer.save_checkpoint_path": checkpoints.replace("{experiment_name}", experiment),
        "trainer.rollout_data_dir": trainer.rollout_data_dir or str(run_dir(experiment) / "rollouts"),
        "trainer.validation_data_dir": trainer.validation_data_dir or str(run_dir(experiment) / "validation"),
    }
    return [Setting(key, value, recipe.sources.get(key, source)) for key, value in places.items()]


def _defaults(recipe: Recipe) -> list[Setting]:
    """The schema's defaults for `left_open` keys that no earlier function of `derive` has filled."""
    source = Source("default", "null, which this machine does not decide")
    return [
        Setting(path, leaf.default, source)
        for path, leaf in leaves(Recipe).items()
        if leaf.info.left_open and recipe.value(path) is None
    ]


def changed(recipe: Recipe, settings: Sequence[Setting]) -> Recipe:
    """The recipe with other values for some keys, each with its source."""
    if not settings:
        return recipe
    values = {path: recipe.value(path) for path in leaves(Recipe)} | {each.path: each.value for each in settings}
    sources = recipe.sources | {each.path: each.source for each in settings if each.source is not DEFAULT}
    fresh = validated(Recipe, values, sources)
    fresh._resolution = recipe._resolution
    return fresh


def replaced(recipe: Recipe, changes: Mapping[str, Any], why: str) -> Recipe:
    """The recipe with other values for some keys; `why` is the source that messages give for them."""
    return changed(recipe, [Setting(path, value, Source("default", why)) for path, value in changes.items()])


def to_yaml(recipe: Recipe) -> str:
    """The recipe as YAML that loads again as the same recipe: every key, and an engine's own by dotted names."""
    kept = (path for path in leaves(Recipe) if path not in NATIVES or recipe.value(path))
    return dump({RESOLVED: True, **nest({path: recipe.value(path) for path in kept})})
