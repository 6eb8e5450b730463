"""The reward of a recipe as one call: a function, or several with weights through `rewards/weighted.py`."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipes.config.schema import Recipe
from recipes.errors import RecipeError, counted
from recipes.paths import ROOT, reward_name

WEIGHTED = ROOT / "recipes" / "rewards" / "weighted.py"
_FUNCTION, _WEIGHTS = "worker.reward.reward_function", "worker.reward.reward_weights"


def functions(recipe: Recipe) -> list[str]:
    """Return every reward function of a recipe as `file.py` or `file.py:name`."""
    given = recipe.worker.reward.reward_function
    return [given] if isinstance(given, str) else given or []


def is_own(recipe: Recipe) -> bool:
    """Return whether the user named the reward, or every file of it is outside of the repository's `reward_functions/`,
    as in the saved recipe of a run with a reward of the user's own."""
    located, ours = functions(recipe), ROOT / "reward_functions"
    outside = bool(located) and not any(Path(each).is_relative_to(ours) for each in located)
    return recipe.source_of(_FUNCTION).by_user or outside


def is_weighted(recipe: Recipe) -> bool:
    """Return whether the reward is a weighted sum."""
    return len(functions(recipe)) > 1 or bool(recipe.worker.reward.reward_weights)


def reward_call(recipe: Recipe) -> tuple[str, dict[str, Any]] | None:
    """Return the reward as `file.py` or `file.py:name`, and its further arguments; None where the recipe has none."""
    located, arguments = functions(recipe), recipe.worker.reward.reward_function_kwargs
    if not located:
        return None
    if not is_weighted(recipe):
        return located[0], arguments
    weights = recipe.worker.reward.reward_weights or [1.0] * len(located)
    return str(WEIGHTED), {**arguments, "rewards": located, "weights": weights}


def shown_reward(recipe: Recipe) -> str:
    """Return the reward in words: `gsm8k.py`, or `1 x a.py + 0.2 x b.py:my_function`."""
    names = [Path(location).name for location in functions(recipe)]
    if not is_weighted(recipe):
        return names[0] if names else "-"
    weights = recipe.worker.reward.reward_weights or [1.0] * len(names)
    return " + ".join(f"{weight:g} x {name}" for weight, name in zip(weights, names, strict=True))


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """Find a reward that is missing, rewards that share a name, and weights that do not fit them.

    verl has rewards of its own, by data source; EasyR1 has none.
    """
    located, weights = functions(recipe), recipe.worker.reward.reward_weights
    if not located and recipe.engine == "easyr1":
        fix = "name one with --reward_func FILE, or use ENGINE=verl, which has some of its own"
        yield recipe.error(f"{_FUNCTION} is null, and EasyR1 has no reward of its own", fix, _FUNCTION)
    named = Counter(map(reward_name, located))
    if twice := [name for name, count in named.items() if count > 1]:
        what = f"two rewards are named {twice[0]}, and each has a metric of its own, reward/{twice[0]}"
        fix = "name a file once, rename one, or name other functions as file.py:function"
        yield recipe.error(what, fix, _FUNCTION)
    if weights and not (any(weights) and len(weights) == len(located)):
        what = f"the weights {weights} do not fit {counted(len(located), 'reward function')}"
        yield recipe.error(what, "give each one number, one of them above 0, in their order", _WEIGHTS, _FUNCTION)
