"""Labels: the whole statement is one of a label's spellings, or, where labels are letters, one option."""

from __future__ import annotations

from typing import Any

from . import answers, multiple_choice


class Labels:
    """A classification's truth: the right label, and how each label may be written.

    Args:
        truth: a label, a list of its spellings, or
            `{"label": ..., "labels": [...], "aliases": {label: [spelling, ...]}}`.

    Raises:
        ValueError: none of these, or a spelling that stands for two labels.
    """

    def __init__(self, truth: Any) -> None:
        if isinstance(truth, list) and truth:
            truth = {"label": truth[0], "aliases": {str(truth[0]): truth}}
        truth = truth if isinstance(truth, dict) else {"label": truth}
        label, aliases = truth.get("label"), truth.get("aliases") or {}
        if isinstance(label, bool) or not isinstance(label, (str, int)):
            raise ValueError("no label")
        if not isinstance(aliases, dict) or not isinstance(truth.get("labels") or [], list):
            raise ValueError("labels is no list, or aliases no object")
        self.label = answers.bare(str(label))
        self.letter = multiple_choice.gold_option(str(label))
        self.spellings: dict[str, str] = {}
        for name in [label, *(truth.get("labels") or []), *aliases]:
            self._add(str(name), str(name))
        for name, spellings in aliases.items():
            for spelling in [spellings] if isinstance(spellings, str) else spellings:
                self._add(str(spelling), name)
        if len(self.label) > 200:
            raise ValueError("too long a label")

    def _add(self, spelling: str, label: str) -> None:
        spelling, label = answers.bare(spelling), answers.bare(label)
        if not spelling or self.spellings.setdefault(spelling, label) != label:
            raise ValueError(f"{spelling!r} is empty, or stands for two labels")

    def read(self, statement: str) -> str:
        """The label that a statement is, as `bare` spells it; "" where it is none of those that are known."""
        text = answers.bare(statement[: answers.LONGEST])
        if text in self.spellings:
            return self.spellings[text]
        if self.letter:
            letter = multiple_choice.read_option(statement).lower()
            return self.spellings.get(letter) or self.spellings.get(f"({letter})") or ""
        return text if len(set(self.spellings.values())) == 1 else ""  # the other labels are not known
