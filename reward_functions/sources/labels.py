"""Labels and options: the whole statement has to be a label's spelling, or name one option by its letter."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from . import answers

# An option letter and its text; without a separator the text has to be a value, as in `\textbf{(B)}\ 42`.
_OPTION = re.compile(r"(?:\(([A-Ja-j])\)|([A-J]))(?:[.:)](?: (.*))?| (\(.*\))|(?<=\)) ?([-+.]?[0-9\\].*))?").fullmatch
_ANY_OPTION = re.compile(r"(?<![0-9A-Za-z])[A-J](?![0-9A-Za-z'’])|\([a-j]\)").search


@lru_cache(maxsize=4096)
def gold_option(gold: str) -> str:
    r"""Return the option letter of a gold answer such as `B`, `(B)` or `\text{(B)}`; "" for any other answer."""
    match = _OPTION(answers.plain(gold))
    return "" if match is None or match[3] or match[4] or match[5] else (match[1] or match[2]).upper()


@lru_cache(maxsize=16_384)
def read_option(statement: str) -> str:
    """Return the one option that a statement names: `B`, `(B)`, `B. text`, `B (42)`; "" for none or several."""
    text = answers.plain(statement) if len(statement) <= answers.LONGEST else ""
    if len(text) == 1 and "A" <= text.upper() <= "J":
        return text.upper()
    match = _OPTION(text)
    if match is None or _ANY_OPTION(match[3] or match[4] or match[5] or ""):
        return ""
    return (match[1] or match[2]).upper()


class Labels:
    """A classification's truth: the right label, and how each label may be written.

    Args:
        truth: a label, a list of its spellings, or
            `{"label": ..., "labels": [...], "aliases": {label: [spelling, ...]}}`.

    Raises:
        ValueError: the truth has none of these forms, or one spelling stands for two labels.
    """

    def __init__(self, truth: Any) -> None:
        if isinstance(truth, list) and truth:
            truth = {"label": truth[0], "aliases": {str(truth[0]): truth}}
        truth = truth if isinstance(truth, dict) else {"label": truth}
        label, aliases = truth.get("label"), truth.get("aliases") or {}
        if isinstance(label, bool) or not isinstance(label, (str, int)):
            raise ValueError("no label")
        if not isinstance(truth.get("labels") or [], list):
            raise ValueError("labels is no list")
        self.label = answers.bare(str(label))
        self.letter = gold_option(str(label))
        self.spellings: dict[str, str] = {}
        for name in [label, *(truth.get("labels") or []), *aliases]:
            self._add(str(name), str(name))
        for name, spellings in aliases.items():
            for spelling in [spellings] if isinstance(spellings, str) else spellings:
                self._add(str(spelling), name)

    def _add(self, spelling: str, label: str) -> None:
        spelling, label = answers.bare(spelling), answers.bare(label)
        if not spelling or self.spellings.setdefault(spelling, label) != label:
            raise ValueError(f"{spelling!r} is empty, or stands for two labels")

    def read(self, statement: str) -> str:
        """Return the label that a statement names, in `bare` form; "" for an unknown one if the truth lists several."""
        text = answers.bare(statement[: answers.LONGEST])
        if text in self.spellings:
            return self.spellings[text]
        if self.letter:
            letter = read_option(statement).lower()
            return self.spellings.get(letter) or self.spellings.get(f"({letter})") or ""
        return text if len(set(self.spellings.values())) == 1 else ""  # the truth lists no others
