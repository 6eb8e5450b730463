"""Answers in words: exact match and F1 as SQuAD v1.1 has them, in Chinese by characters; and labels.

SQuAD's normalisation: lower case, no ASCII punctuation, no English articles, single blanks. Text with Chinese, Japanese
or Korean characters is first brought to one width, loses its own punctuation too, and each such character is a word.
Signs that make another number are kept, where SQuAD's rule calls -5 and 5, or 3.5 and 35, the same.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Any

from . import answers, gsm8k

MAX_GOLD = 2000

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# CJK ideographs with their extensions, kana, hangul
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af\U00020000-\U000323af"
_IDEOGRAPH = re.compile(f"[{_IDEOGRAPHS}]")
_WIDE = re.compile("[！-～]")
# A sign, a point, a colon, a stroke or an exclamation mark that belongs to a number.
_SIGN = re.compile(
    r"(?<![\w)])[-\u2212\u2013](?=[$€£¥]?\.?[0-9])|(?<=[0-9])[.:/](?=[0-9])|(?<![0-9])\.(?=[0-9])|(?<=[0-9])!"
)
_SIGN_NAMES = {".": "point", ":": "colon", "/": "over", "!": "factorial"}
_NEGATION = re.compile(r"\b(?:not|no|never|neither|nor|cannot)\b|n['’]t\b|[不非没無无]")
# What may stand in a clause around a label without changing it: "I would say that it is a positive review".
_CARRIERS = frozenset(
    re.findall(
        "[a-z']+",
        """
        the this that it it's its is was be a an i i'd i'm we my our you he she they would should will must can and here
        say call called classify classified categorize categorized label labeled labelled mark marked think believe
        judge
        conclude find feel choose pick select falls belongs expresses expressing expressed shows conveys has
        answer category class sentiment tone emotion topic type kind intent attitude opinion polarity prediction
        predicted
        result output review text sentence message email mail comment tweet post article statement example sample input
        as with in into under to of for one clearly definitely certainly very mostly overall final correct right best so
        therefore thus hence then
        """,
    )
)
_CLAUSE = re.compile(r"[.,;:!?\n()，。；：！？—]|\b(?:because|since|so|therefore|but|as it|as the)\b|因为|所以|由于")
_PIECE = re.compile(r"[a-z']+|[^\x00-\x7f\W]+|[0-9]+")
_CJK_CARRIERS = frozenset(
    "这個个条篇句段则评论價价文本章的类别标标签为是属于应该答案情感倾向我认觉得选择判断分类结果此它一封邮件信息内容"
)


def normalised(text: str) -> str:
    """SQuAD v1.1's `normalize_answer`; with ideographs or full-width forms, the rule of this module."""
    if _WIDE.search(text) or _IDEOGRAPH.search(text):
        text = unicodedata.normalize("NFKC", text)
        text = "".join(" " if unicodedata.category(each)[0] in "PS" else each for each in text)
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def words(text: str) -> list[str]:
    """The words of a normalised text; an ideograph is one."""
    return _IDEOGRAPH.sub(lambda found: f" {found[0]} ", text).split()


def _words(text: str) -> list[str]:
    """The words, with numbers' signs; a text of which normalisation leaves nothing ("A", "?") is its only word."""
    signed = _SIGN.sub(lambda found: _SIGN_NAMES.get(found[0], "minus"), answers.folded(text))
    return words(normalised(signed)) or [text.strip().lower()]


def exact(prediction: str, gold: str) -> bool:
    """The same words, in the same order; blanks between ideographs do not matter."""
    return _words(prediction) == _words(gold)


def f1(prediction: str, gold: str) -> float:
    """The harmonic mean of precision and recall over words; 0 where none is shared (SQuAD v1.1, `f1_score`)."""
    ours, theirs = _words(prediction), _words(gold)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def read_golds(truth: Any) -> list[str] | None:
    """The right answers: a text or number, a list of them, or `{"answers": [...]}`; None where there is none."""
    if isinstance(truth, dict):
        truth = truth.get("answers", truth.get("target"))
    golds = truth if isinstance(truth, list) else [truth]
    golds = [str(gold) if type(gold) in (int, float) else gold for gold in golds]
    good = all(isinstance(gold, str) and gold.strip() and len(gold) <= MAX_GOLD for gold in golds)
    return golds if golds and good else None


def judge_answer(response: str, golds: list[str]) -> tuple[str, float, bool, str]:
    """(reason, F1, is marked, the answer read); the best of the golds counts.

    An answer that denies or hedges ("not Paris", "Paris or Rome") where no gold does is none, whatever words it shares.
    """
    statement, how = answers.find(response)
    if not statement:
        return how, 0.0, False, ""
    reason, best, pred = _compared(answers.plain_text(statement), tuple(golds))
    return reason, best, how == "marked" and reason != "ambiguous", pred


@lru_cache(maxsize=4096)  # the responses of one group repeat each other's answers
def _compared(statement: str, golds: tuple[str, ...]) -> tuple[str, float, str]:
    """(reason, F1, the answer read) of a statement."""
    pred = normalised(statement)
    if any(exact(statement, gold) for gold in golds):
        return "correct", 1.0, pred
    if _hedged(statement) and not any(map(_hedged, golds)):
        return "ambiguous", 0.0, pred
    best = max(f1(statement, gold) for gold in golds)
    return ("partial" if best else "wrong"), best, pred


def _hedged(text: str) -> bool:
    return gsm8k.DOUBTS(text.replace("’", "'")) is not None or gsm8k.RETRACTS(text) is not None


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
        reason, plain, label = _named(self, statement)
        return reason, plain and how == "marked", label

    def named(self, statement: str) -> tuple[str, bool, str]:
        """(reason, is nothing but a label, the label read) of a statement."""
        said = answers.bare(statement)
        plain = said in self.spellings
        if plain:
            found = {self.spellings[said]}
        elif len(set(self.spellings.values())) == 1:  # the other labels are not known, so prose could name them all
            return "wrong", len(said) <= 40, said
        else:
            found = {self.spellings[match[0]] for match in self.anywhere.finditer(said)}
            if found and not self._plainly(said):
                return "ambiguous", False, ""
        if len(found) != 1:
            return ("ambiguous" if found else "unparsable"), False, ""
        label = found.pop()
        return ("correct" if label == self.label else "wrong"), plain, label

    def _plainly(self, said: str) -> bool:
        """Does this text state its label without a negation, a hedge, or an unknown word in the label's clause?"""
        marked = self.anywhere.sub("\x00", said.replace("’", "'"))
        if _NEGATION.search(marked) or _hedged(marked) or "?" in marked:
            return False
        clauses = [clause.replace("\x00", " ") for clause in _CLAUSE.split(marked) if "\x00" in clause]
        known = [
            word in _CARRIERS or set(word) <= _CJK_CARRIERS for clause in clauses for word in _PIECE.findall(clause)
        ]
        return all(known)


_named = lru_cache(maxsize=4096)(Labels.named)  # the responses of one group repeat each other's answers


def _whole(spelling: str) -> str:
    """A pattern for a spelling that is no part of a longer word."""
    before = r"(?<![^\W_])" if spelling[0].isascii() and spelling[0].isalnum() else ""
    behind = r"(?![^\W_])" if spelling[-1].isascii() and spelling[-1].isalnum() else ""
    return before + re.escape(spelling) + behind
