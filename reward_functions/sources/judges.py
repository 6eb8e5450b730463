"""Rules of each data source: how it reads its ground truth and scores a response; all results have the same keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import answers, labels, latex, programs, qa, sandbox

FORMAT_CREDIT = 0.1
PARTIAL_CREDIT = 0.5
CODE = ("code", "code_generation")

Result = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The reward's keyword arguments; see `dispatch.compute_score`."""

    format_credit: float
    partial_credit: float
    limits: sandbox.Limits


class Source(NamedTuple):
    """One data source: `read_gold` parses its ground truth (None if it cannot), `score` scores a response with it."""

    read_gold: Callable[[Any], Any]
    score: Callable[[str, Any, Settings], Result]


def judge(source: str, response: str, truth: Any, settings: Settings) -> Result:
    """The result of one response."""
    try:
        gold = read_gold(source, truth)
    except programs.TruthError:
        return _result(0.0, 0.0, 0.0, "gold_unparsable")
    return SOURCES[source].score(response, gold, settings)


def read_gold(source: str, truth: Any) -> Any:
    """Parse a row's ground truth for its source's `score`. Whether math-verify can parse it is not checked.

    Raises:
        programs.TruthError: no response to this row could ever be right.
        ValueError: there are no rules for the source.
    """
    if not isinstance(source, str) or source not in SOURCES:
        raise ValueError(f"no rules for the data source {source!r}; known: {', '.join(SOURCES)}")
    gold = SOURCES[source].read_gold(truth)
    if gold is None:
        raise programs.TruthError(f"the ground truth {str(truth)[:60]!r} cannot be read")
    return gold


def _result(score: float, accuracy: float, form: float, reason: str, pred: str = "", **shares: float) -> Result:
    """Build a result with every key, since verl stacks results; `f1` and `tests` default to the accuracy."""
    parts = {"score": score, "acc": accuracy, "accuracy": accuracy, "format": form, "f1": accuracy, "tests": accuracy}
    return {**parts, **shares, "pred": pred[:100], "reason": reason}


def _answered(reason: str, marked: bool, settings: Settings, partial: float = 0.0, pred: str = "") -> Result:
    """Build a result from a reason code; `partial` is the correct share of an answer that is not fully correct."""
    accuracy, form = float(reason == "correct"), float(marked)
    credit = settings.format_credit
    score = 1.0 - credit * (1.0 - form) if accuracy else max(credit * form, settings.partial_credit * partial)
    return _result(score, accuracy, form, reason, pred, f1=accuracy or partial)


def _text(truth: Any) -> str:
    """Return a truth that is text or a number, as text; "" for anything else."""
    return str(truth) if type(truth) in (str, int, float) else ""


def _json_text(truth: Any) -> str:
    return truth if isinstance(truth, str) else json.dumps(truth)


def parsed(truth: Any) -> Any:
    """Parse a truth that is a JSON list or object; return any other truth unchanged."""
    if not isinstance(truth, str) or truth[:1] not in ("{", "["):
        return truth
    try:
        return json.loads(truth)
    except (ValueError, RecursionError):
        return truth


def _read_number(truth: Any) -> str | None:
    return answers.gold_number(str(truth)) or None if type(truth) in (str, int) else None


def _score_number(response: str, gold: str, settings: Settings) -> Result:
    stated = answers.find(response)
    marked = answers.number(stated)
    pred = marked or (answers.last_number(stated.response) if stated.how == "last" else "")
    if not pred:
        return _answered(stated.unread, False, settings)
    return _answered("correct" if pred == gold else "wrong", marked != "", settings, pred=pred)


def _read_number_or_text(truth: Any) -> tuple[str, str] | None:
    """Return (the number, or "" if the truth is not a number; the truth as text)."""
    number, text = answers.gold_number(_text(truth)), latex.read_gold(_text(truth))
    return None if text is None else (number, text)


def _score_number_or_text(response: str, gold: tuple[str, str], settings: Settings) -> Result:
    number, text = gold
    value, stated = answers.value(text), answers.find(response).text
    ours = answers.value(stated) if value is not None and len(stated) <= answers.LONGEST else None
    if number and (ours is None or "/" not in answers.bare(stated)):
        return _score_number(response, number, settings)

    def read(statement: str) -> tuple[str, str, float]:
        if letter := labels.gold_option(text):
            option = labels.read_option(statement)
            return ("correct" if option == letter else "wrong") if option else "unparsable", option, 0.0
        same = ours == value if ours is not None else answers.bare(statement) == answers.bare(text)
        return "correct" if same else "wrong", answers.bare(statement), 0.0

    return _score_text(response, settings, read)


def _score_text(response: str, settings: Settings, read: Callable[[str], tuple[str, str, float]]) -> Result:
    """Score a response by its whole statement; `read` returns (reason, the answer that it read, correct share)."""
    stated = answers.find(response)
    if not 0 < len(stated.text) <= answers.LONGEST:
        return _answered(stated.unread, False, settings)
    reason, pred, partial = read(stated.text)
    return _answered(reason, stated.asked_for and reason in ("correct", "partial", "wrong"), settings, partial, pred)


def _score_formula(response: str, gold: str, settings: Settings) -> Result:
    return _score_text(response, settings, lambda text: (latex.judge(text, gold), answers.bare(text), 0.0))


def _score_words(response: str, golds: tuple[str, ...], settings: Settings) -> Result:
    def read(statement: str) -> tuple[str, str, float]:
        text = answers.plain(statement) or statement
        exact, f1 = qa.judge(text, golds)
        return "correct" if exact else "partial" if f1 else "wrong", qa.normalised(text), 0.0 if exact else f1

    return _score_text(response, settings, read)


def _read_labels(truth: Any) -> labels.Labels | None:
    try:
        return labels.Labels(parsed(truth))
    except (ValueError, TypeError, AttributeError):
        return None


def _score_label(response: str, gold: labels.Labels, settings: Settings) -> Result:
    def read(statement: str) -> tuple[str, str, float]:
        stated = gold.read(statement)
        return ("correct" if stated == gold.label else "wrong") if stated else "unparsable", stated, 0.0

    return _score_text(response, settings, read)


def _score_program(response: str, tests: programs.Tests, settings: Settings) -> Result:
    program, reason = programs.read_program(response)
    if reason:
        return _result(0.0, 0.0, 0.0, reason)
    share, reason = programs.passed(tests, sandbox.run(tests.kind, program, tests.inputs, settings.limits))
    return _result(share, float(share == 1.0), float(reason != "gold_unparsable"), reason, tests=share)


_NUMBER = Source(_read_number, _score_number)
_PROGRAM = Source(lambda truth: programs.read_text(_json_text(truth)), _score_program)
_WORDS = Source(lambda truth: qa.read_golds(parsed(truth)), _score_words)
SOURCES: dict[str, Source] = {
    "math_reasoning": Source(_read_number_or_text, _score_number_or_text),
    "gsm8k": _NUMBER,
    "math": Source(lambda truth: latex.read_gold(_text(truth)), _score_formula),
    "code": _PROGRAM,
    "code_generation": _PROGRAM,
    "qa": _WORDS,
    "trivia": _WORDS,
    "classification": Source(_read_labels, _score_label),
}
