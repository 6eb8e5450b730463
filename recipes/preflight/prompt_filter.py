"""verl's filter of long prompts, left out where it would drop nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recipes.config import Recipe, path_keys
from recipes.config.resolve import replaced
from recipes.data.lengths import count_split, tokenizer_of
from recipes.data.rows import prompt_column
from recipes.errors import RecipeError
from recipes.model_files import local_model

FILTER = "data.filter_overlong_prompts"


def without_filter(recipe: Recipe, log: Callable[[str], None]) -> Recipe:
    """The recipe without the filter, where all prompts of its files have been counted and none is over the limit.

    On GPUs verl measures every prompt again at each start, in 16 processes. The counts are kept beside the files. The
    filter stays for prompts with images, for files without a manifest or on a hub, and where verl's own keys below
    `data` (arguments of the chat template, tools) may make prompts longer.

    Args:
        log: takes a line for the user.
    """
    longest = longest_prompt(recipe) if recipe.engine == "verl" and recipe.hardware == "gpu" else None
    limit = recipe.data.max_prompt_length
    if not recipe.data.filter_overlong_prompts or longest is None or longest > limit:
        return recipe
    log(f"the longest prompt has {longest} tokens and the limit is {limit}: verl does not measure the prompts again")
    return replaced(recipe, {FILTER: False}, "no prompt is over the limit")


def longest_prompt(recipe: Recipe) -> int | None:
    """Tokens of the longest prompt of training and validation; None where that is not known for certain."""
    files = [key for key in path_keys(recipe) if key.kind == "data"]
    by_verls_name = any(name.lstrip("+").startswith("data.") for name in recipe.verl)
    if by_verls_name or recipe.worker.rollout.limit_images or prompt_column(recipe) != "prompt":
        return None
    if not files or any(key.on_hub for key in files):
        return None
    tokenizer, template = tokenizer_of(recipe)
    folder = local_model(tokenizer) or tokenizer
    try:
        return max(count_split(Path(key.path), str(folder), template).longest for key in files)
    except (RecipeError, OSError):  # no manifest beside the file, or no tokenizer: verl measures, or reports it
        return None
