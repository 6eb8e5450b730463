"""The judges, one per data source: from a response and a truth to a result with one set of keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from . import answers, fusion, gsm8k, latex, programs, sandbox, words

FORMAT_CREDIT = 0.1
PARTIAL_CREDIT = 0.5
CODE = ("code", "code_generation")


@dataclass(frozen=True)
class Settings:
    """The reward's keyword arguments; see `dispatch.compute_score`."""

    format_credit: float
    partial_credit: float
    sandbox_fusion_url: str | None
    limits: sandbox.Limits
    extra_info: dict[str, Any] | None = None


def _result(reason: str, marked: bool, settings: Settings, partial: float = 0.0, pred: str = "") -> dict[str, Any]:
    """A response that states an answer; `partial` is the share that is right where not all of it is."""
    accuracy, form = float(reason == "correct"), float(marked)
    credit = settings.format_credit
    score = 1.0 - credit * (1.0 - form) if accuracy else max(credit * form, settings.partial_credit * partial)
    return _parts(score, accuracy, form, reason, pred, f1=accuracy or partial)


def _parts(score: float, accuracy: float, form: float, reason: str, pred: str = "", **shares: float) -> dict[str, Any]:
    """Every result has these keys, since verl stacks them; a share that a source does not have is its accuracy."""
    return {
        "score": score,
        "acc": accuracy,
        "accuracy": accuracy,
        "format": form,
        "f1": shares.get("f1", accuracy),
        "tests": shares.get("tests", accuracy),
        "pred": pred[:100],
        "reason": reason,
    }


def _number(response: str, truth: Any, settings: Settings) -> dict[str, Any]:
    found = gsm8k.compute_score("", response, truth, settings.extra_info, format_credit=settings.format_credit)
    return _parts(found["score"], found["accuracy"], found["format"], found["reason"], found["pred"])


def _structured(truth: Any) -> Any:
    """A truth that is a list or an object, also where it comes as JSON; every other text stays a text."""
    if not isinstance(truth, str) or truth[:1] not in ("{", "["):
        return truth
    try:
        return json.loads(truth)
    except (ValueError, RecursionError):
        return truth


def _text(truth: Any) -> str:
    """A truth that is text, or a number; "" for anything else."""
    return str(truth) if type(truth) in (str, int, float) else ""


def _text_gold(truth: Any) -> str | None:
    return latex.read_gold(_text(truth))


def _final_answer(response: str, truth: Any, settings: Settings) -> dict[str, Any]:
    """A number by GSM8K's rules; any other answer as text."""
    if gsm8k.read_gold(_text(truth)) is not None:
        return _number(response, _text(truth), settings)
    gold = _text_gold(truth)
    if gold is None:
        return _result("gold_unparsable", False, settings)
    statement, how = answers.find(response)
    if not statement:
        return _result(how, False, settings)
    reason = "correct" if answers.same_statement(statement, gold) else "wrong"
    return _result(reason, how == "marked", settings, pred=answers.bare(statement))


def _formula(response: str, truth: Any, settings: Settings) -> dict[str, Any]:
    gold = _text_gold(truth)
    statement, how = answers.find(response)
    if gold is None or not statement:
        return _result("gold_unparsable" if gold is None else how, False, settings)
    reason = latex.judge(statement, gold)
    form = how == "marked" and reason in ("correct", "wrong")
    return _result(reason, form, settings, pred=answers.tight(statement).rstrip("."))


def _answer(response: str, truth: Any, settings: Settings) -> dict[str, Any]:
    golds = words.read_golds(_structured(truth))
    if golds is None:
        return _result("gold_unparsable", False, settings)
    reason, f1, marked, pred = words.judge_answer(response, golds)
    return _result(reason, marked, settings, partial=0.0 if reason == "correct" else f1, pred=pred)


def _label(response: str, truth: Any, settings: Settings) -> dict[str, Any]:
    labels = _labels_of(truth)
    if labels is None:
        return _result("gold_unparsable", False, settings)
    reason, marked, pred = labels.judge(response)
    return _result(reason, marked, settings, pred=pred)


def _labels_of(truth: Any) -> words.Labels | None:
    if type(truth) not in (str, int, list, dict):
        return None
    return _labels(truth if isinstance(truth, str) else json.dumps(truth))


@lru_cache(maxsize=4096)  # the responses of one group share one truth
def _labels(text: str) -> words.Labels | None:
    try:
        return words.Labels(_structured(text))
    except (ValueError, TypeError):
        return None


def _tests(truth: Any) -> programs.Tests:
    return programs.read_text(truth if isinstance(truth, str) else json.dumps(truth))


def _program(response: str, truth: Any, settings: Settings) -> dict[str, Any]:
    try:
        tests = _tests(truth)
    except programs.TruthError:
        return _parts(0.0, 0.0, 0.0, "gold_unparsable")
    program, reason = programs.read_program(response)
    if not program or reason:
        return _parts(0.0, 0.0, 0.0, reason)
    run = _runner(settings.sandbox_fusion_url)
    results = run(tests.kind, program, tests.inputs, settings.limits, list(tests.decisions))
    right, failure = programs.passed(tests, results)
    if tests.constants and any(result.get("held", False) is None or result["status"] != "ran" for result in results):
        key = json.dumps(truth) if not isinstance(truth, str) else truth
        if _broken(key, settings.sandbox_fusion_url, settings.limits):
            return _parts(0.0, 0.0, 0.0, "gold_unparsable")
    share = right / len(tests.checks)
    reason = "correct" if share == 1.0 else "partial" if right else failure
    return _parts(share, float(share == 1.0), 1.0, reason, tests=share)


def _runner(url: str | None) -> Callable[..., list[dict[str, Any]]]:
    return sandbox.run if url is None else partial(fusion.run, url)


@lru_cache(maxsize=1024)
def _broken(truth: str, url: str | None, limits: sandbox.Limits) -> str:
    (problem,) = programs.broken_constants([programs.read_text(truth)], _runner(url), limits)
    return problem


def has_constants(truth: Any) -> bool:
    """Are there expected values in the asserts of this truth that are no literals? It can be read."""
    return bool(_tests(truth).constants)


def broken_asserts(truths: Iterable[Any], url: str | None, limits: sandbox.Limits) -> Iterator[str]:
    """For each truth of a program that can be read, why its expected values cannot be computed; "" where they can be.

    Raises:
        sandbox.SandboxMissing: no sandbox here.
    """
    return programs.broken_constants(map(_tests, truths), _runner(url), limits)


JUDGES: dict[str, Callable[[str, Any, Settings], dict[str, Any]]] = {
    "math_reasoning": _final_answer,
    "gsm8k": _number,
    "math": _formula,
    "code": _program,
    "code_generation": _program,
    "qa": _answer,
    "trivia": _answer,
    "classification": _label,
}


def truth_problem(source: str, truth: Any) -> str:
    """Why no response to this row could ever be right; "" where one can. What only math-verify knows is not asked."""
    if source in CODE:
        try:
            _tests(truth)
        except programs.TruthError as error:
            return str(error)
        return ""
    readable = {
        "math_reasoning": lambda: _text_gold(truth) is not None,
        "gsm8k": lambda: gsm8k.read_gold(_text(truth)) is not None,
        "math": lambda: _text_gold(truth) is not None,
        "qa": lambda: words.read_golds(_structured(truth)) is not None,
        "trivia": lambda: words.read_golds(_structured(truth)) is not None,
        "classification": lambda: _labels_of(truth) is not None,
    }
    return "" if readable[source]() else f"the ground truth {str(truth)[:60]!r} cannot be read"
