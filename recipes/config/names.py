"""Names of keys: the recipe's, and verl's and EasyR1's own; each in full.

Every leaf of verl's configuration is one of four: a spelling of a recipe's key, which `understood` translates back; a
copy that verl makes of another key (`followed`); a name that nothing reads, or that another key decides, which is
refused; or verl's alone, which passes through.
"""

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from recipes.config.schema import Recipe, Setting, Source, leaves
from recipes.config.schema.worker import VERL_PRECISIONS
from recipes.config.variables import CONTROLS, known_elsewhere, options, table
from recipes.errors import RecipeError, did_you_mean
from recipes.paths import CONFIGS
from recipes.settings import EASYR1, NATIVES, VERL, VERL_GROUPS, flatten, groups, innermost, open_leaf
from recipes.yaml_text import flow, parse, read

NATIVE, OF_EASYR1 = f"{VERL}.", f"{EASYR1}."
REWARD, REWARD_KEY = "reward.custom_reward_function", "worker.reward.reward_function"
CONTENTS = "actor_rollout_ref.actor.checkpoint.save_contents"
VALIDATED_AT = "worker.rollout.val_override_config.temperature"
NAMES, UNREAD, ON_VERL = "verl_names.yaml", "verl_unread.yaml", "easyr1_names.yaml"
"""Files beside this module: meanings of verl's names, names that nothing in verl reads (`python -m tools.verl_keys`),
and the keys that say on verl what EasyR1's own say."""

_SHORT = {long: short for short, long in VERL_PRECISIONS.items()}
BACK: dict[str, Mapping[Any, Any]] = {
    "data.val_batch_size": {None: -1},
    "algorithm.filter_key": {"reward": "overall"},
    "trainer.max_try_make_batch": {None: -1, 0: -1},  # verl's 0 is no limit
    "trainer.save_limit": {None: -1},
    "worker.actor.optim.lr_warmup_steps": {0: None},
    "worker.actor.fsdp.torch_dtype": _SHORT,
    "worker.actor.fsdp.mp_param_dtype": _SHORT,
    "worker.ref.fsdp.torch_dtype": _SHORT,
    "worker.ref.fsdp.mp_param_dtype": _SHORT,
    "worker.rollout.dtype": _SHORT,
    "worker.rollout.limit_images": {None: 0},
    "worker.actor.loss_type": {"vanilla": "default"},
}
"""Recipe's key -> verl's value -> the key's, where they differ; the inverse of engines/verl/translation.py."""


def verl_package() -> Path | None:
    """The folder of the installed verl; None where there is none, or where the package of that name is EasyR1's."""
    spec = importlib.util.find_spec("verl")
    folders = (spec.submodule_search_locations if spec else None) or ()
    is_verl = "trainer/config/ppo_trainer.yaml"
    return next((Path(folder) for folder in folders if (Path(folder) / is_verl).is_file()), None)


@cache
def verl_defaults() -> dict[str, Any]:
    """verl's default of every key, dotted; empty where verl is not installed.

    PyYAML's C parser reads the file's thousand lines in a tenth of OmegaConf's time, with the same result.
    """
    folder = verl_package()
    if folder is None:
        return {}
    text = (folder / "trainer" / "config" / "_generated_ppo_trainer.yaml").read_text(encoding="utf-8")
    return flatten(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@cache
def aliases() -> dict[str, str]:
    """verl's name -> the recipe's key of the same quantity.

    Of several keys that name it, the one that is called the same, then the first that names it first.
    """
    claims = [
        (name != path, place, name.rpartition(".")[2] != path.rpartition(".")[2], name, path)
        for path, leaf in leaves(Recipe).items()
        for place, name in enumerate(leaf.info.verl)
    ]
    return {name: path for *_, name, path in sorted(claims, reverse=True, key=lambda claim: claim[:3])}


def followed(name: str) -> str | None:
    """The recipe's key whose value verl copies to `name` by an interpolation such as `${data.max_prompt_length}`."""
    copied = re.fullmatch(r"\$\{(?:oc\.select:)?([\w.]+)(?:,.*)?\}", str(verl_defaults().get(name)))
    return (aliases().get(copied[1]) or followed(copied[1])) if copied else None


def refusal(name: str) -> str:
    """The advice instead of a name of verl's that is refused; empty where it is not."""
    decided = innermost(table(NAMES)["instead"], name) or ""
    unread = not decided and not {name, *groups(name)}.isdisjoint(table(UNREAD)["names"])
    return "leave it out: nothing in this version of verl reads it" if unread else decided


def canonical(written: str, source: Source) -> str:
    """The name under which a key is found: the recipe's, or `verl.` and verl's name, which `understood` translates.

    `written` is a recipe's name, or verl's with or without `verl.` and Hydra's `+` before it; short forms are refused.
    Raises RecipeError, with a similar name if there is one, where no key has that name.
    """
    if written in NATIVES:  # its entries would pass by the recipe's keys
        fix = f"write {written}.KEY=value for each"
        raise RecipeError(f"{written} is a group of keys", where=source.where, fix=fix)
    if written.startswith(OF_EASYR1) and (own := of_easyr1(written, source.where)):
        return own
    name = written.removeprefix(NATIVE)
    if name == written and (name in leaves(Recipe) or open_leaf(Recipe, name)):
        return written
    bare = _present(name.lstrip("+"))
    if name.startswith("+"):
        return f"{NATIVE}+{bare}"
    if bare in leaves(Recipe) or _verl_has(bare):
        return f"{NATIVE}{bare}"
    if own := of_easyr1(written, source.where):
        return own
    if not verl_defaults() and (name != written or name.split(".")[0] in table(NAMES)["roots"]):
        return f"{NATIVE}{name}"  # verl is not installed, so the name is not checked
    raise _unknown(bare, written, source)


def understood(settings: Iterable[Setting]) -> list[Setting]:
    """The settings with verl's spellings of the recipe's keys translated back, values included.

    Raises RecipeError for a name that nothing reads, or in whose place another key acts.
    """
    written = list(settings)
    given = {each.path.removeprefix(NATIVE).lstrip("+"): each.value for each in written}
    return [meant for each in written for meant in _meant(each, given)]


def _meant(setting: Setting, given: Mapping[str, Any]) -> Iterator[Setting]:
    """The settings that one of verl's names makes; `given` has the others of the same file or command."""
    written, source = setting.path.removeprefix(NATIVE), setting.source
    name, spelled = written.lstrip("+"), setting.spelled or written
    if written == setting.path:
        yield setting
        return
    if fix := refusal(name):
        raise RecipeError(f"{name} does not act here", where=source.where, fix=fix)
    value = parse(setting.value) if source.by_user and isinstance(setting.value, str) else setting.value
    try:
        keys = _keys(name, value, given)
    except ValueError as error:
        raise RecipeError(f"{name} is {value!r}", where=source.where, fix=str(error)) from None
    if keys is None or (written != name and not all(map(_takes, keys, keys.values()))):
        yield Setting(setting.path, setting.value, source, spelled)
        return
    for path, meaning in keys.items():
        typed = flow(meaning) if source.by_user and not isinstance(meaning, str) else meaning
        if meaning is value and not (isinstance(value, str) and setting.value == flow(value)):
            typed = setting.value  # as it was typed; what a mapping's entry is written as has YAML's quotes
        yield Setting(path, typed, source, spelled)


def _keys(name: str, value: Any, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The recipe's keys, with their values, that say the same as verl's `name`; None for a name that is verl's alone.

    Raises ValueError, with what to write instead, where the keys cannot say it.
    """
    if name == f"{REWARD}.path":
        function = given.get(f"{REWARD}.name")
        return {REWARD_KEY: f"{value}:{function}" if function else value}
    if name == f"{REWARD}.name":
        if f"{REWARD}.path" not in given:
            raise ValueError(f"write {REWARD_KEY}=FILE:{value}")
        return {}
    if name == "trainer.resume_mode":
        if value not in ("auto", "disable") and not (value == "resume_path" and given.get("trainer.resume_from_path")):
            raise ValueError("use auto or disable, or give trainer.load_checkpoint_path")
        return {} if value == "resume_path" else {"trainer.find_last_checkpoint": value == "auto"}
    if name == "actor_rollout_ref.rollout.val_kwargs.do_sample":  # verl's trainer reads the temperature alone
        if value and not {VALIDATED_AT, "actor_rollout_ref.rollout.val_kwargs.temperature"} & given.keys():
            raise ValueError(f"give {VALIDATED_AT}, which decides it")
        return {} if value else {VALIDATED_AT: 0.0}
    if name == "actor_rollout_ref.rollout.mode":
        if value != "async":
            raise ValueError("leave it out: async is the only mode that this version of verl has")
        return None
    if name == "actor_rollout_ref.rollout.do_sample" and value is False:
        raise ValueError("set worker.rollout.temperature, by which vLLM samples")
    if name == "actor_rollout_ref.actor.checkpoint.async_save" and value is True:
        raise ValueError("leave it out: FSDP saves before the next step, and verl would not find the last checkpoint")
    if name == "actor_rollout_ref.actor.optim.warmup_style":  # verl's older name of the scheduler, which wins
        return {} if value is None else {"worker.actor.optim.lr_scheduler_type": value}
    if name == CONTENTS:
        trainers = [part for part in (value if isinstance(value, list) else ()) if part != "hf_model"]
        if trainers not in (["model"], ["model", "optimizer", "extra"]):
            raise ValueError("use trainer.save_model_only and trainer.save_hf_model")
        return {"trainer.save_model_only": len(trainers) == 1, "trainer.save_hf_model": "hf_model" in value}
    known = next((each for each in (name, *groups(name)) if each in aliases()), name)
    path = aliases().get(known, name)
    if path == "worker.actor.optim.lr_warmup_steps" and isinstance(value, int) and value < 0:
        return {path: None}
    if path not in leaves(Recipe) or (known != name and not leaves(Recipe)[path].is_open):
        return None
    ours = next((ours for theirs, ours in BACK.get(path, {}).items() if theirs == value), value)
    return {path + name.removeprefix(known): ours}


def _takes(path: str, value: Any) -> bool:
    """Return whether the recipe's key can hold the value."""
    annotation: Any = leaves(Recipe)[path].field.annotation if path in leaves(Recipe) else Any
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def native(recipe: Recipe) -> dict[str, Any]:
    """verl's own keys of the recipe, flat and without Hydra's plus."""
    return {name.lstrip("+"): value for name, value in flatten(recipe.verl).items()}


TEMPLATE = "data.apply_chat_template_kwargs."


def template_arguments(recipe: Recipe) -> dict[str, Any]:
    """Arguments of the chat template: `data.enable_thinking`, and verl's `data.apply_chat_template_kwargs`."""
    given = {name.removeprefix(TEMPLATE): value for name, value in native(recipe).items() if name.startswith(TEMPLATE)}
    thinking = recipe.data.enable_thinking
    return given if thinking is None else {"enable_thinking": thinking, **given}


def _present(name: str) -> str:
    """A name of verl's older configuration as verl migrates it."""
    moved = table(NAMES)["moved"]
    old = next((each for each in (name, *groups(name)) if each in moved), "")
    return moved.get(old, "") + name.removeprefix(old)


def _verl_has(name: str) -> bool:
    """Return whether verl's tree has the key, or a free mapping around it, or one that is added to its tree."""
    inside = any(leaves(Recipe)[aliases()[each]].is_open for each in groups(name) if each in aliases())
    return inside or name in aliases() or _in_tree(name, verl_defaults()) or bool(refusal(name))


def _in_tree(name: str, defaults: Mapping[str, Any]) -> bool:
    """Return whether an engine's tree has the key, or a free mapping around it."""
    return name in defaults or any(defaults.get(group) == {} for group in groups(name))


def _unknown(name: str, written: str, source: Source) -> RecipeError:
    if written in CONTROLS:
        what, fix = f"{written} is a variable, and no key", f"write it before the command: {written}=... bash ..."
        return RecipeError(what, where=source.where, fix=fix)
    if written.startswith(NATIVE) or name.split(".")[0] in table(NAMES)["roots"]:
        fix = did_you_mean(name, verl_defaults()) or f"write +{name} if verl accepts it all the same"
        return RecipeError(f"verl has no key {name}", where=source.where, fix=fix)
    whole = f"actor_rollout_ref.{name}"  # notes write verl's names without their first word
    of_option = options().get(name.rpartition(".")[2].lower())
    inside = (f"{VERL_GROUPS[each]}{name.removeprefix(each)}" for each in groups(name) if each in VERL_GROUPS)
    of_verl = next((aliases().get(each, each) for each in (whole, *inside) if _verl_has(each)), "")
    meant = known_elsewhere(written) or of_verl or (of_option[0].path if of_option else "")
    fix = f"did you mean {meant}?" if meant else did_you_mean(name, [*leaves(Recipe), *verl_defaults()])
    return RecipeError(f"unknown key {name}", where=source.where, fix=fix or "see docs/CONFIGURATION_REFERENCE.md")


@cache
def easyr1_defaults() -> dict[str, Any]:
    """EasyR1's default of every key, dotted, at the commit that `engines/easyr1` patches."""
    return read(CONFIGS / "official" / "easyr1_defaults.yaml")["values"]


def of_easyr1(written: str, where: str) -> str | None:
    """The name under which a key of EasyR1's is found: the schema's, or `easyr1.` and EasyR1's; None for other names.

    Raises RecipeError for a name with `easyr1.` before it that EasyR1 does not have.
    """
    name = written.removeprefix(OF_EASYR1)
    same = next((each for each in (name, table(ON_VERL).get(name)) if each in leaves(Recipe)), None)
    if same or _in_tree(name, easyr1_defaults()):
        return same or f"{OF_EASYR1}{name}"
    if name == written:
        return None
    fix = did_you_mean(name, easyr1_defaults()) or "see verl/trainer/config.py of EasyR1"
    raise RecipeError(f"EasyR1 has no key {name}", where=where, fix=fix)


def instead_on_verl(name: str, value: Any) -> str:
    """The advice on verl instead of a key of EasyR1's; empty where no file has any."""
    found = innermost(table(ON_VERL), name) or ""
    return found if not found or " " in found else f"write {found}={flow(value)}"
