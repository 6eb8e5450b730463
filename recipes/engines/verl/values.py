"""Conversions of single values, named by `via` in the schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Names of the policy losses: verl's gspo is the token form that EasyR1 calls gspo_token; with one advantage per
# response, as in GRPO, both forms have the same gradient (arXiv:2507.18071, section 4.3).
_LOSSES = {"default": "vanilla", "gspo_token": "gspo"}


def _file_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _file_text(path: str | None) -> str | None:
    """The text of a file, since verl wants the template itself. Raises RecipeError where it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(
            f"cannot read the chat template: {error.strerror}", where=f"data.override_chat_template: {path}"
        ) from error


def _comma_list(value: str) -> Any:
    names = [name.strip() for name in value.split(",") if name.strip()]
    return names if len(names) > 1 else value.strip()


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "": lambda value: value,
    "comma_list": _comma_list,
    "dtype": lambda value: _DTYPES[value],
    "file_list": _file_list,
    "file_text": _file_text,
    "filter_key": lambda value: "reward" if value == "overall" else value,
    "loss_type": lambda value: _LOSSES.get(value, value),
    "minus_one_if_null": lambda value: -1 if value is None else value,
    "null_if_negative": lambda value: None if value < 0 else value,
    "null_if_zero": lambda value: value or None,
    "prompt_key": lambda value: value or "prompt",
    "zero_if_null": lambda value: 0.0 if value is None else value,
}
