"""Names of keys: the recipe's (EasyR1's), and verl's own; each in full."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from recipes.config.layers import VERL, flatten, open_leaf
from recipes.config.schema import Recipe, Source, leaves
from recipes.config.schema.keys import groups
from recipes.config.variables import options
from recipes.errors import RecipeError, did_you_mean

NATIVE = f"{VERL}."
# First parts of names that only verl has; data, algorithm and trainer are in both trees.
ROOTS = (
    "actor_rollout_ref", "critic", "custom_reward_function", "distillation", "global_profiler", "ray_kwargs", "reward",
    "reward_model", "sandbox_fusion", "skip", "transfer_queue",
)  # fmt: skip


def verl_package() -> Path | None:
    """Return where verl is installed; None where it is not, or where the package of that name is EasyR1's."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    return folder if (folder / "trainer" / "config" / "ppo_trainer.yaml").is_file() else None


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
    """verl's name -> the recipe's, where both hold the same value."""
    names = [(leaf.info.verl[0], path) for path, leaf in leaves(Recipe).items() if leaf.info.alias and not leaf.is_open]
    counts = [name for name, _ in names]
    return {name: path for name, path in names if counts.count(name) == 1}


def canonical(written: str, source: Source) -> str:
    """The name under which a key is stored: the recipe's, or `verl.` and verl's name if only verl has the key.

    `written` is a recipe's name, or verl's with or without `verl.` and Hydra's `+` before it; short forms are refused.

    Raises:
        RecipeError: no key has that name; the message suggests a similar one, if there is one.
    """
    if written in leaves(Recipe):
        return written
    name = written.removeprefix(NATIVE)
    if name == written and open_leaf(Recipe, name):
        return name
    if name.startswith("+"):
        return f"{NATIVE}{name}"
    if name in aliases():
        return aliases()[name]
    if _verl_has(name):
        return f"{NATIVE}{name}"
    if not verl_defaults() and (name != written or name.split(".")[0] in ROOTS):
        return f"{NATIVE}{name}"  # verl is not installed, so the name is not checked
    raise _unknown(name, written, source)


def native(recipe: Recipe) -> dict[str, Any]:
    """verl's own keys of the recipe, flat and without Hydra's plus."""
    return {name.lstrip("+"): value for name, value in flatten(recipe.verl).items()}


TEMPLATE = "data.apply_chat_template_kwargs."


def template_arguments(recipe: Recipe) -> dict[str, Any]:
    """Arguments of the chat template: `data.enable_thinking`, and verl's `data.apply_chat_template_kwargs`."""
    given = {name.removeprefix(TEMPLATE): value for name, value in native(recipe).items() if name.startswith(TEMPLATE)}
    thinking = recipe.data.enable_thinking
    return given if thinking is None else {"enable_thinking": thinking, **given}


def _verl_has(name: str) -> bool:
    """Return whether verl's tree has the key, or a free mapping around it."""
    in_mapping = any(verl_defaults().get(group) == {} for group in groups(name))
    return in_mapping or name in verl_defaults()


def _unknown(name: str, written: str, source: Source) -> RecipeError:
    if written.startswith(NATIVE) or name.split(".")[0] in ROOTS:
        fix = did_you_mean(name, verl_defaults()) or f"write +{name} if verl accepts it all the same"
        return RecipeError(f"verl has no key {name}", where=source.where, fix=fix)
    keys = options().get(name.rpartition(".")[2].lower())
    meant = f"did you mean {keys[0].path}?" if keys else did_you_mean(name, [*leaves(Recipe), *verl_defaults()])
    return RecipeError(f"unknown key {name}", where=source.where, fix=meant or "see docs/CONFIGURATION_REFERENCE.md")
