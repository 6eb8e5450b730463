"""Labels and options: the whole statement has to be a label's spelling, or name one option by its letter."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from . import answers

# An option letter in brackets with its text, or one with a separator before its text: `(B) Paris`, `B. Paris`, `b)`.
_SAID = answers.ANY["options"]
_OPTION = re.compile(
    rf"(?:(?:{_SAID['articles']}) )?(?:(?:{_SAID['words']}) ?:? ?)?"
    rf"(?:[(\[<{{]([A-Ja-j])[)\]>}}]|([A-J])(?![0-9A-Za-z])|([a-j])(?=\)))(?:{_SAID['behind']})?"
    rf"(?:(?:(?<=[)\]>}}])|[.):,、]| [-–—](?= )| ?(?=\()| (?=because |since ))[.:,]?"
    rf"(?! ?(?:{_SAID['no_text']})\b) ?(.*))?!?"
).fullmatch
# Another option in an option's text; `A dog` and `Vitamin C` are none.
_ANY_OPTION = re.compile(
    r"[(\[][A-Ja-j][)\]]|(?<![^\W_])[B-J][.):]"
    r"|(?:^(?:\(?(?:或者?|还有|可能是?|[和与與及]) ?)?|\b(?i:or|and|also|not|than) |[,/&] ?)[A-J](?![^\W_]|'| [a-z])"
).search
_SEVERAL = re.compile(r"[A-H](?:(?:,| and| ?[和与與及])? ?[A-H])+|[①-⑳](?:(?:,|[和与與及])? ?[①-⑳])+").fullmatch
_NO_OPTION = re.compile(r"[^A-H①-⑳]").sub


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def _option(text: str) -> tuple[str, str]:
    """Return (the letter of the option that a text begins with, the option's text); ("", "") for none."""
    match = _OPTION(answers.plain(text).replace("*", "")) if len(text) <= answers.LONGEST else None
    return ((match[1] or match[2] or match[3]).upper(), match[4] or "") if match else ("", "")


def gold_option(gold: str) -> str:
    r"""Return the option letter of a gold answer such as `B`, `(B)` or `\text{(B)}`; "" for any other answer."""
    letter, text = _option(gold)
    return "" if text else letter


def read_option(statement: str) -> str:
    """Return the one option that a statement names: `B`, `(B) text`, `B. text`, `Option B`; "" for none or several."""
    letter, text = _option(statement)
    alone = "" if letter else answers.plain(statement[:99]).upper()  # b
    return "" if _ANY_OPTION(text) else letter or (alone if alone in [*"ABCDEFGHIJ"] else "")


def several(text: str) -> str:
    """The letters or circled numbers of a list of options, in its order: `ABD` for `A, B, D` and `A、B和D`, else ""."""
    text = answers.plain(text) if len(text) <= answers.LONGEST else ""
    signs = _NO_OPTION("", text) if _SEVERAL(text) else ""
    return signs if len({*signs}) == len(signs) else ""


class Labels:
    """A classification's truth: a label, a list of its spellings, or all labels with theirs.

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
