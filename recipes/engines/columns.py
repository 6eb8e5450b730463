"""The columns of a row that an engine reads, and the chat of its prompt."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template

from recipes.config import Recipe


def prompt_column(recipe: Recipe) -> str:
    """The column of the prompt: text for EasyR1, chat messages for verl."""
    return recipe.data.prompt_key or ("problem" if recipe.engine == "easyr1" else "prompt")


def answer_column(recipe: Recipe) -> str:
    """EasyR1's column of the ground truth."""
    return recipe.data.answer_key or "answer"


def prompt_template(recipe: Recipe) -> str:
    """The text of EasyR1's `format_prompt`, which stands around each prompt; empty where there is none."""
    file = recipe.data.format_prompt
    try:
        return Path(file).read_text(encoding="utf-8").strip() if file else ""
    except (OSError, UnicodeDecodeError) as error:
        key = "data.format_prompt"
        raise recipe.error(f"{file} cannot be read: {error}", "name a text file in UTF-8 that exists", key) from error


def chat_of(prompt: Any, template: str) -> list[dict[str, str]]:
    """The chat messages of a prompt: itself, or a text as one message of the user, in EasyR1's `format_prompt`."""
    if not isinstance(prompt, str):
        return prompt or []
    return [{"role": "user", "content": _format(template).render(content=prompt) if template else prompt}]


@lru_cache(maxsize=8)
def _format(template: str) -> Any:
    return Template(template)


def engine_columns(recipe: Recipe) -> tuple[str, ...]:
    """The columns that the engine reads in every row; `a.b` is the field `b` of the struct `a`."""
    if recipe.engine == "easyr1":
        return (prompt_column(recipe), answer_column(recipe))
    return ("data_source", prompt_column(recipe), "reward_model.ground_truth")
