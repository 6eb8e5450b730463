"""Values that verl writes in another way, and back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.config.schema.field import Conversion
from recipes.errors import RecipeError

_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# verl's gspo is the token form that EasyR1 calls gspo_token; with one advantage per response, as in GRPO, both forms
# have the same gradient (arXiv:2507.18071, section 4.3).
_LOSSES = {"default": "vanilla", "gspo_token": "gspo"}


def _names(value: str) -> Any:
    names = [name.strip() for name in value.split(",") if name.strip()]
    return names if len(names) > 1 else value.strip()


def _file_text(path: str | None) -> str | None:
    """verl wants the template itself. Raises RecipeError where the file cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(
            f"cannot read the chat template: {error.strerror}",
            where=f"data.override_chat_template: {path}",
            fix="name a file that exists",
        ) from error


def _table(table: dict[str, str]) -> Conversion:
    """Other names for some values; names outside the table stay."""
    back = {verl: own for own, verl in table.items()}
    return Conversion(lambda value: table.get(value, value), lambda value: back.get(value, value))


NAMES = Conversion(_names, lambda value: ",".join(value) if isinstance(value, list) else value)
PRECISION = _table(_PRECISIONS)
LOSS = _table(_LOSSES)
FILTER_KEY = _table({"overall": "reward"})
FILES = Conversion(
    lambda value: value if isinstance(value, list) else [value],
    lambda value: value[0] if isinstance(value, list) and len(value) == 1 else value,
)
FILE_TEXT = Conversion(_file_text, lambda value: value)
PROMPT_KEY = Conversion(lambda value: value or "prompt", lambda value: value)
MINUS_ONE = Conversion(lambda value: -1 if value is None else value, lambda value: None if value == -1 else value)
NULL_IF_NEGATIVE = Conversion(lambda value: None if value < 0 else value, lambda value: -1 if value is None else value)
NULL_IF_ZERO = Conversion(lambda value: value or None, lambda value: value or 0)
ZERO_IF_NULL = Conversion(lambda value: 0.0 if value is None else value, lambda value: value or None)
