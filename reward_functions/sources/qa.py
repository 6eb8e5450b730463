"""Short answers in words: exact match and F1 as SQuAD v1.1 has them; a Chinese, Japanese or Korean character is a word.

SQuAD's normalisation: lower case, no ASCII punctuation, no English articles, single blanks. Where it would leave
nothing of a text ("A", "?"), the text itself is compared.
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

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# CJK ideographs with their extensions, kana, hangul
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af\U00020000-\U000323af]")


def normalised(text: str) -> str:
    """SQuAD v1.1's `normalize_answer` of a text in its one form; other scripts' punctuation goes, too."""
    text = answers.folded(answers.tidy(text))
    words = (sign for sign in text if sign not in string.punctuation and unicodedata.category(sign)[0] != "P")
    return " ".join(_ARTICLES.sub(" ", "".join(words)).split())


def words(text: str) -> list[str]:
    """The words of a text, normalised; the text is its only word where normalisation leaves nothing."""
    return _IDEOGRAPH.sub(lambda match: f" {match[0]} ", normalised(text)).split() or [text.strip().lower()]


def f1(ours: list[str], theirs: list[str]) -> float:
    """The harmonic mean of precision and recall over words; 0 where none is shared (SQuAD v1.1, `f1_score`)."""
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def judge(statement: str, golds: tuple[str, ...]) -> tuple[bool, float]:
    """Return (exact match, best F1) over the golds; a statement is one answer, even if it lists several candidates."""
    golds = tuple(answers.plain(gold) or gold for gold in golds)  # as the statement is: ½ is 1/2 in both
    ours = words(statement)
    theirs = [words(gold) for gold in golds]
    apart = [words(gold.replace("-", " ")) for gold in golds]  # New-York is New York, co-operate is cooperate
    return ours in theirs or words(statement.replace("-", " ")) in apart, max(f1(ours, each) for each in theirs)


def read_golds(truth: Any) -> tuple[str, ...] | None:
    """The right answers: a text or number, a list of them, or `{"answers": [...]}`; None where there is none."""
    if isinstance(truth, dict):
        truth = truth.get("answers", truth.get("target"))
    golds = truth if isinstance(truth, list) else [truth]
    golds = [str(gold) if type(gold) in (int, float) else gold for gold in golds]
    good = all(isinstance(gold, str) and gold.strip() and len(gold) <= MAX_GOLD for gold in golds)
    return tuple(golds) if golds and good else None
