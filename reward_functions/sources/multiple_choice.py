"""Multiple choice: the letter that a gold answer is, and the one option that a statement names."""

from __future__ import annotations

import re
from functools import lru_cache

from . import answers

# A letter and its text; a text without a mark between is a value, as in `\textbf{(B)}\ 42`.
_OPTION = re.compile(r"(?:\(([A-Ja-j])\)|([A-J]))(?:[.:)](?: (.*))?| (\(.*\))|(?<=\)) ?([-+.]?[0-9\\].*))?").fullmatch
_ANY_OPTION = re.compile(r"(?<![0-9A-Za-z])[A-J](?![0-9A-Za-z'’])|\([a-j]\)").search


@lru_cache(maxsize=4096)
def gold_option(gold: str) -> str:
    r"""The letter that a gold answer such as `B`, `(B)` or `\text{(B)}` is; "" where it is something else."""
    match = _OPTION(answers.plain(gold))
    return "" if match is None or match[3] or match[4] or match[5] else (match[1] or match[2]).upper()


@lru_cache(maxsize=16_384)
def read_option(statement: str) -> str:
    """The one option that a statement is: `B`, `(B)`, `B. text`, `B (42)`; "" where it names none or several."""
    text = answers.plain(statement) if len(statement) <= answers.LONGEST else ""
    if len(text) == 1 and "A" <= text.upper() <= "J":
        return text.upper()
    match = _OPTION(text)
    if match is None or _ANY_OPTION(match[3] or match[4] or match[5] or ""):
        return ""
    return (match[1] or match[2]).upper()
