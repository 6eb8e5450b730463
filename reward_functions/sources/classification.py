"""Labels: the one that a response states, in any of its spellings, and only among words that leave it as it is."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from . import answers

_NEGATION = re.compile(r"\b(?:not|no|never|neither|nor|cannot)\b|n['’]t\b|[不非没無无]")
# What may stand in a clause around a label without changing it: "I would say that it is a positive review".
_CARRIERS = frozenset(
    re.findall(
        "[a-z']+",
        """the this that it it's its is was be a an i i'd i'm we my our you he she they would should will must can and
        here say call called classify classified categorize categorized label labeled labelled mark marked think believe
        judge conclude find feel choose pick select falls belongs expresses expressing expressed shows conveys has
        answer category class sentiment tone emotion topic type kind intent attitude opinion polarity prediction
        predicted result output review text sentence message email mail comment tweet post article statement example
        sample input as with in into under to of for one clearly definitely certainly very mostly overall final correct
        right best so therefore thus hence then""",
    )
)
_CLAUSE = re.compile(r"[.,;:!?\n()，。；：！？—]|\b(?:because|since|so|therefore|but|as it|as the)\b|因为|所以|由于")
_PIECE = re.compile(r"[a-z']+|[^\x00-\x7f\W]+|[0-9]+")
_CJK_CARRIERS = frozenset(
    "这個个条篇句段则评论價价文本章的类别标标签为是属于应该答案情感倾向我认觉得选择判断分类结果此它一封邮件信息内容"
)


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
        label = truth.get("label")
        if isinstance(label, bool) or not isinstance(label, (str, int)):
            raise ValueError("no label")
        aliases = truth.get("aliases") or {}
        if not isinstance(aliases, dict) or not isinstance(truth.get("labels") or [], list):
            raise ValueError("labels is no list, or aliases no object")
        self.label = answers.bare(str(label))
        self.spellings: dict[str, str] = {}
        for name in [label, *(truth.get("labels") or []), *aliases]:
            self._add(str(name), str(name))
        for name, spellings in aliases.items():
            for spelling in [spellings] if isinstance(spellings, str) else spellings:
                self._add(str(spelling), name)
        if len(self.label) > 200:
            raise ValueError("too long a label")
        ordered = sorted(self.spellings, key=len, reverse=True)  # so that "not spam" is found before "spam"
        self.anywhere = re.compile("|".join(_whole(spelling) for spelling in ordered))

    def _add(self, spelling: str, label: str) -> None:
        spelling, label = answers.bare(spelling), answers.bare(label)
        if not spelling or self.spellings.setdefault(spelling, label) != label:
            raise ValueError(f"{spelling!r} is empty, or stands for two labels")

    def judge(self, response: str) -> tuple[str, bool, str]:
        """(reason, is marked, the label read).

        A statement that names several labels, denies, hedges, or puts a word around the label that is not known to
        leave it as it is ("far from positive") states none.
        """
        statement, how = answers.find(response)
        if not statement:
            return how, False, ""
        reason, plain, label = _read(self, statement)
        return reason, plain and how == "marked", label

    def _stands_alone(self, text: str) -> bool:
        """Does this text state its label without a negation, a hedge, or an unknown word in the label's clause?"""
        marked = self.anywhere.sub("\x00", text.replace("’", "'"))
        if _NEGATION.search(marked) or answers.hedged(marked) or "?" in marked:
            return False
        clauses = [clause.replace("\x00", " ") for clause in _CLAUSE.split(marked) if "\x00" in clause]
        words = [word for clause in clauses for word in _PIECE.findall(clause)]
        return all(word in _CARRIERS or set(word) <= _CJK_CARRIERS for word in words)


@lru_cache(maxsize=4096)  # the responses of one group repeat each other's answers
def _read(labels: Labels, statement: str) -> tuple[str, bool, str]:
    """(reason, is nothing but a label, the label read) of a statement."""
    text = answers.bare(statement)
    plain = text in labels.spellings
    if plain:
        stated = {labels.spellings[text]}
    elif len(set(labels.spellings.values())) == 1:  # the other labels are not known, so prose could name them all
        return "wrong", len(text) <= 40, text
    else:
        stated = {labels.spellings[match[0]] for match in labels.anywhere.finditer(text)}
        if stated and not labels._stands_alone(text):
            return "ambiguous", False, ""
    if len(stated) != 1:
        return ("ambiguous" if stated else "unparsable"), False, ""
    label = stated.pop()
    return ("correct" if label == labels.label else "wrong"), plain, label


def _whole(spelling: str) -> str:
    """A pattern for a spelling that is no part of a longer word."""
    before = r"(?<![^\W_])" if spelling[0].isascii() and spelling[0].isalnum() else ""
    behind = r"(?![^\W_])" if spelling[-1].isascii() and spelling[-1].isalnum() else ""
    return before + re.escape(spelling) + behind
