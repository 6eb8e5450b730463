"""Rules of each data source: how it reads its ground truth and scores a response; all results have the same keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import answers, labels, latex, programs, qa, sandbox

FORMAT_CREDIT = 0.1
PARTIAL_CREDIT = 0.5
CODE = ("code", "code_generation")
READ = ("correct", "partial", "wrong")

Result = dict[str, Any]

_WORD = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2}").search
# What `note` says of truths that are compared as text though they look like more.
AS_TEXT = {
    "is LaTeX, compared as text alone; the data source `math` compares formulas": re.compile(r"\\|[_^]|\)/|/\(").search,
    "looks like a number, is none, and is compared as text": re.compile(
        r"[-+]?[0-9][0-9.,' ]*|[负零一二两三四五六七八九十百千万亿点分之]+"
    ).fullmatch,
}


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


def _text(truth: Any) -> str | None:
    """Return a truth that is text or a number, as text, out of its `\\boxed{}`; None for anything else."""
    return latex.read_gold(str(truth)) if type(truth) in (str, int, float) else None


def _number(truth: Any) -> answers.Measure | None:
    return answers.measure(answers.gold_number(str(truth))) if type(truth) in (str, int) else None


def parsed(truth: Any) -> Any:
    """Parse a truth that is a JSON list or object; return any other truth unchanged."""
    if not isinstance(truth, str) or truth[:1] not in ("{", "["):
        return truth
    try:
        return json.loads(truth)
    except (ValueError, RecursionError):
        return truth


def note(source: str, truth: Any) -> tuple[str, str] | None:
    """What the dry run says of a truth that is judged otherwise than its spelling suggests: (a note, the truth)."""
    if source in CODE and programs.in_lists(parsed(truth)):
        says = "stand in lists of one: a function may return the value or the list; asserts can tell them apart"
        return says, f"outputs {str(parsed(truth)['outputs'])[:60]}"
    if source == "math_reasoning" and isinstance(parsed(truth), list | dict):
        return "is compared as text; several right answers are a list for `qa`", f"the truth {str(truth)[:60]!r}"
    text = answers.plain(_text(truth) or "") if source == "math_reasoning" else ""
    special = answers.measure(text) or labels.gold_option(text)
    notes = [says for says, looks in AS_TEXT.items() if looks(text) and not special]
    return (notes[0], f"the truth {str(truth)[:60]!r}") if notes else None


def _score_number(response: str, gold: answers.Measure, settings: Settings, whole: bool = False) -> Result:
    """Compare the first number; where `whole`, the whole statement if that is a measure. No marker: the last number."""
    stated = answers.find(response)
    ours, marked = answers.measure(stated.text) if whole else None, stated.asked_for
    if ours is None and gold[1].isalpha():  # a unit has to be the same, behind a blank or not
        found = answers.measure(answers.parted(stated.text)) if whole else None
        ours = found if found and found[1] == gold[1] else None
    elif ours is None:
        if whole and stated.how == "line" and not _WORD(stated.text):  # `2x` is not 2, and `5!` ends a sentence
            stated = stated._replace(how="field", text=stated.text.rstrip("!"))
        number = answers.number(stated)
        marked = number != ""
        ours = answers.measure(number or (answers.last_number(stated.response) if stated.how == "last" else ""))
    if ours is None:
        return _answered(stated.unread, False, settings)
    return _answered("correct" if answers.equal(gold, ours) else "wrong", marked, settings, pred=str(ours[0]))


def _score_number_or_text(response: str, gold: str, settings: Settings) -> Result:
    measure = answers.measure(gold)
    return _score_number(response, measure, settings, True) if measure else _OPTION_OR_TEXT(response, gold, settings)


def _by_statement(read: Callable[[str, Any], tuple[str, str, float]]) -> Callable[[str, Any, Settings], Result]:
    """Score by the whole statement: `read` returns (reason, the answer that it read, correct share)."""

    def score(response: str, gold: Any, settings: Settings) -> Result:
        stated = answers.find(response)
        text = stated.text.rstrip("!") if stated.how == "line" and "!" not in str(gold) else stated.text
        if not 0 < len(text) <= answers.LONGEST:
            return _answered(stated.unread, False, settings)
        reason, pred, partial = read(text, gold)
        return _answered(reason, stated.asked_for and reason in READ, settings, partial, pred)

    return score


def _read_option_or_text(statement: str, gold: str) -> tuple[str, str, float]:
    if letter := labels.gold_option(gold):
        option = labels.read_option(statement)
        return ("correct" if option == letter else "wrong") if option else "unparsable", option, 0.0
    ours, several = answers.bare(statement), labels.several(gold)
    right = ours == answers.bare(gold) or (several and several == labels.several(statement))
    return "correct" if right else "wrong", ours, 0.0


def _read_words(statement: str, golds: tuple[str, ...]) -> tuple[str, str, float]:
    text = answers.plain(statement) or statement
    exact, f1 = qa.judge(text, golds)
    return "correct" if exact else "partial" if f1 else "wrong", qa.normalised(text), 0.0 if exact else f1


def _read_label(statement: str, gold: labels.Labels) -> tuple[str, str, float]:
    stated = gold.read(statement)
    return ("correct" if stated == gold.label else "wrong") if stated else "unparsable", stated, 0.0


def _gold_labels(truth: Any) -> labels.Labels | None:
    try:
        return labels.Labels(parsed(truth))
    except (ValueError, TypeError, AttributeError):
        return None


def _score_program(response: str, tests: programs.Tests, settings: Settings) -> Result:
    program, reason = programs.read_program(response)
    if reason:
        return _result(0.0, 0.0, 0.0, reason)
    share, reason = programs.passed(tests, sandbox.run(tests.kind, program, tests.inputs, settings.limits))
    return _result(share, float(share == 1.0), float(reason != "gold_unparsable"), reason, tests=share)


_OPTION_OR_TEXT = _by_statement(_read_option_or_text)
_FORMULA = _by_statement(lambda text, gold: (latex.judge(text, gold), answers.bare(text), 0.0))
_PROGRAM = Source(
    lambda truth: programs.read_text(truth if isinstance(truth, str) else json.dumps(truth)), _score_program
)
_WORDS = Source(lambda truth: qa.read_golds(parsed(truth)), _by_statement(_read_words))
SOURCES: dict[str, Source] = {
    "math_reasoning": Source(_text, _score_number_or_text),
    "gsm8k": Source(_number, _score_number),
    "math": Source(_text, _FORMULA),
    "code": _PROGRAM,
    "code_generation": _PROGRAM,
    "qa": _WORDS,
    "trivia": _WORDS,
    "classification": Source(_gold_labels, _by_statement(_read_label)),
}
