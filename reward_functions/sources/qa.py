"""Short answers in words: exact match and F1 as SQuAD v1.1 has them, in Chinese by characters.

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

from . import answers

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


def normalised(text: str) -> str:
    """SQuAD v1.1's `normalize_answer`; with ideographs or full-width forms, the rule of this module."""
    if _WIDE.search(text) or _IDEOGRAPH.search(text):
        text = unicodedata.normalize("NFKC", text)
        text = "".join(" " if unicodedata.category(each)[0] in "PS" else each for each in text)
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def words(text: str) -> list[str]:
    """The words of a normalised text; an ideograph is one."""
    return _IDEOGRAPH.sub(lambda match: f" {match[0]} ", text).split()


def _words(text: str) -> list[str]:
    """The words, with numbers' signs; a text of which normalisation leaves nothing ("A", "?") is its only word."""
    signed = _SIGN.sub(lambda match: _SIGN_NAMES.get(match[0], "minus"), answers.folded(text))
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


def judge(response: str, golds: list[str]) -> tuple[str, float, bool, str]:
    """(reason, F1, is marked, the answer read); the best of the golds counts.

    An answer that denies or hedges ("not Paris", "Paris or Rome") where no gold does is none, whatever words it shares.
    """
    statement, how = answers.find(response)
    if not statement:
        return how, 0.0, False, ""
    reason, best, pred = _best(answers.plain_text(statement), tuple(golds))
    return reason, best, how == "marked" and reason != "ambiguous", pred


@lru_cache(maxsize=4096)  # the responses of one group repeat each other's answers
def _best(statement: str, golds: tuple[str, ...]) -> tuple[str, float, str]:
    """(reason, F1, the answer read) of a statement."""
    pred = normalised(statement)
    if any(exact(statement, gold) for gold in golds):
        return "correct", 1.0, pred
    if answers.hedged(statement) and not any(map(answers.hedged, golds)):
        return "ambiguous", 0.0, pred
    best = max(f1(statement, gold) for gold in golds)
    return ("partial" if best else "wrong"), best, pred
