"""How each data source reads its ground truth and scores a response; every result has the same keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

from . import answers, classification, gsm8k, latex, programs, qa, sandbox, sandbox_fusion

FORMAT_CREDIT = 0.1
PARTIAL_CREDIT = 0.5
CODE = ("code", "code_generation")

Result = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The reward's keyword arguments; see `dispatch.compute_score`."""

    format_credit: float
    partial_credit: float
    sandbox_fusion_url: str | None
    limits: sandbox.Limits
    extra_info: dict[str, Any] | None = None


class Source(NamedTuple):
    """One data source: its ground truth as `score` takes it (None where it cannot be read), and the score."""

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
    """The ground truth of a row, as its source's `score` takes it. What only math-verify knows is not looked at.

    Raises:
        programs.TruthError: no response to this row could ever be right.
    """
    gold = SOURCES[source].read_gold(truth)
    if gold is None:
        raise programs.TruthError(f"the ground truth {str(truth)[:60]!r} cannot be read")
    return gold


def _result(score: float, accuracy: float, form: float, reason: str, pred: str = "", **shares: float) -> Result:
    """verl stacks the keys of all results; a share (`f1`, `tests`) that a source does not have is its accuracy."""
    parts = {"score": score, "acc": accuracy, "accuracy": accuracy, "format": form, "f1": accuracy, "tests": accuracy}
    return {**parts, **shares, "pred": pred[:100], "reason": reason}


def _answered(reason: str, marked: bool, settings: Settings, partial: float = 0.0, pred: str = "") -> Result:
    """A response that states an answer; `partial` is the share that is right where not all of it is."""
    accuracy, form = float(reason == "correct"), float(marked)
    credit = settings.format_credit
    score = 1.0 - credit * (1.0 - form) if accuracy else max(credit * form, settings.partial_credit * partial)
    return _result(score, accuracy, form, reason, pred, f1=accuracy or partial)


def _text(truth: Any) -> str:
    """A truth that is text, or a number; "" for anything else."""
    return str(truth) if type(truth) in (str, int, float) else ""


def _json_text(truth: Any) -> str:
    return truth if isinstance(truth, str) else json.dumps(truth)


def _parsed(truth: Any) -> Any:
    """A truth that is a list or an object, also where it comes as JSON; every other text stays a text."""
    if not isinstance(truth, str) or truth[:1] not in ("{", "["):
        return truth
    try:
        return json.loads(truth)
    except (ValueError, RecursionError):
        return truth


def _read_number(truth: Any) -> str | None:
    text = _text(truth)
    return text if type(truth) is not float and gsm8k.read_gold(text) is not None else None


def _score_number(response: str, gold: str, settings: Settings) -> Result:
    parts = gsm8k.compute_score("", response, gold, settings.extra_info, format_credit=settings.format_credit)
    return _result(parts["score"], parts["accuracy"], parts["format"], parts["reason"], parts["pred"])


def _read_number_or_text(truth: Any) -> tuple[bool, str] | None:
    """(is a number, the truth)."""
    text = _text(truth)
    if gsm8k.read_gold(text) is not None:
        return True, text
    gold = latex.read_gold(text)
    return None if gold is None else (False, gold)


def _score_number_or_text(response: str, gold: tuple[bool, str], settings: Settings) -> Result:
    is_number, text = gold
    if is_number:
        return _score_number(response, text, settings)
    statement, how = answers.find(response)
    if not statement:
        return _answered(how, False, settings)
    reason = "correct" if answers.same_statement(statement, text) else "wrong"
    return _answered(reason, how == "marked", settings, pred=answers.bare(statement))


def _score_formula(response: str, gold: str, settings: Settings) -> Result:
    statement, how = answers.find(response)
    if not statement:
        return _answered(how, False, settings)
    reason = latex.judge(statement, gold)
    form = how == "marked" and reason in ("correct", "wrong")
    return _answered(reason, form, settings, pred=answers.tight(statement).rstrip("."))


def _score_words(response: str, golds: list[str], settings: Settings) -> Result:
    reason, f1, marked, pred = qa.judge(response, golds)
    return _answered(reason, marked, settings, partial=0.0 if reason == "correct" else f1, pred=pred)


def _read_labels(truth: Any) -> classification.Labels | None:
    return _labels(_json_text(truth)) if type(truth) in (str, int, list, dict) else None


@lru_cache(maxsize=4096)  # the responses of one group share one truth
def _labels(text: str) -> classification.Labels | None:
    try:
        return classification.Labels(_parsed(text))
    except (ValueError, TypeError):
        return None


def _score_label(response: str, labels: classification.Labels, settings: Settings) -> Result:
    reason, marked, pred = labels.judge(response)
    return _answered(reason, marked, settings, pred=pred)


def _score_program(response: str, tests: programs.Tests, settings: Settings) -> Result:
    program, reason = programs.read_program(response)
    if reason:
        return _result(0.0, 0.0, 0.0, reason)
    run = runner(settings.sandbox_fusion_url)
    results = run(tests.kind, program, tests.inputs, settings.limits, list(tests.decisions))
    right, failure = programs.passed(tests, results)
    undecided = any(each.get("held", False) is None or each["status"] != "ran" for each in results)
    if tests.constants and undecided and _broken(tests, settings.sandbox_fusion_url, settings.limits):
        return _result(0.0, 0.0, 0.0, "gold_unparsable")
    share = right / len(tests.checks)
    reason = "correct" if share == 1.0 else "partial" if right else failure
    return _result(share, float(share == 1.0), 1.0, reason, tests=share)


def runner(url: str | None) -> Callable[..., list[Result]]:
    """What runs programs: the sandbox of this machine, or the service at an address."""
    return sandbox.run if url is None else partial(sandbox_fusion.run, url)


@lru_cache(maxsize=1024)
def _broken(tests: programs.Tests, url: str | None, limits: sandbox.Limits) -> str:
    return programs.broken_constants([tests], runner(url), limits)[0]


_NUMBER = Source(_read_number, _score_number)
_PROGRAM = Source(lambda truth: programs.read_text(_json_text(truth)), _score_program)
_WORDS = Source(lambda truth: qa.read_golds(_parsed(truth)), _score_words)
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
