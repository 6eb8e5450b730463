"""One reward for mixed data: each row is judged by the rules of its data source.

`math_reasoning` and `gsm8k` (a final answer), `math` (LaTeX, through math-verify), `code` and `code_generation` (tests
in a sandbox), `qa` and `trivia` (exact match and F1), `classification` (labels). docs/REWARD_CUSTOM.md describes the
ground truth, the score and the reason codes of each source.

Trainers load this file by its path; it imports the folder `sources` beside it. Only `math` needs a package.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

REWARD_NAME = "dispatch"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list
MOST_PROBLEMS = 20  # the most that `check_sources` lists

REASONS = (
    "correct",
    "partial",  # some tests passed; some words shared
    "wrong",
    "unparsable",  # a marker without one number, option or label
    "too_long",
    "no_answer",
    "truncated",
    "syntax_error",
    "runtime_error",
    "timeout",
    "memory_limit",
    "output_limit",
    "sandbox_error",  # the sandbox gave no answer: not the policy's fault
    "gold_unparsable",  # the ground truth is broken: the row's fault, not the policy's
)
# What the check before the start says of gold answers with these reasons.
HINTS = {"runtime_error": "runtime_error; a program has Python's standard library alone, no packages and no network"}


# Import `sources` as a package, once per process even if a trainer loads this file several times under other names. The
# folder's name is a string here, so a resumed run compares all files of the package (`own_files` of `recipes.rewards`).
SOURCES = Path(__file__).resolve().parent / "sources"
PACKAGE = f"reward_sources_{hashlib.sha256(str(SOURCES).encode()).hexdigest()[:16]}"
sys.modules.setdefault(PACKAGE, ModuleType(PACKAGE)).__path__ = [str(SOURCES)]
judges, latex, programs, sandbox = (
    importlib.import_module(f"{PACKAGE}.{name}") for name in ("judges", "latex", "programs", "sandbox")
)


def envelope(data_source: str, ground_truth: Any) -> str:
    """Return a ground truth that carries its source, for EasyR1, which passes rewards no other column of a row."""
    return json.dumps({"data_source": data_source, "ground_truth": ground_truth}, ensure_ascii=False)


def opened(data_source: str, ground_truth: Any) -> tuple[str, Any]:
    """Return (source, truth) of a row. An envelope's source takes precedence; the row's then only names metrics."""
    truth = ground_truth
    if isinstance(truth, str) and '"data_source"' in truth:
        truth = judges.parsed(truth)
    if isinstance(truth, dict) and truth.keys() == {"data_source", "ground_truth"}:
        return truth["data_source"], truth["ground_truth"]
    return data_source, ground_truth


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    format_credit: float = judges.FORMAT_CREDIT,
    partial_credit: float = judges.PARTIAL_CREDIT,
    limits: dict[str, float] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """verl's entry: the reward of one response.

    Args:
        data_source: one of `judges.SOURCES`; any name where the truth is an `envelope`.
        ground_truth: the source's truth, or an envelope around it.
        format_credit: the part of the score for an answer that stands behind a marker, or alone.
        partial_credit: the weight of F1 where the answer is not an exact match.
        limits: overrides of the defaults of `sandbox.Limits`.

    Returns:
        score, acc (verl's name) and accuracy, format, f1, tests (share passed): floats in [0, 1]; pred: what was read,
        for majority votes; reason: one of `REASONS`.

    Raises:
        ValueError: there are no rules for the data source.
        RuntimeError: no sandbox, or no math-verify. Both are Python's own, since Ray's driver loads no classes of ours.
    """
    source, truth = opened(data_source, ground_truth)
    settings = judges.Settings(format_credit, partial_credit, sandbox.Limits(**(limits or {})))
    return judges.judge(source, solution_str, truth, settings)


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry. `overall` is the score; each reason becomes a 0/1 key `reason/<code>`, since EasyR1 averages."""

    def scored(item: dict[str, Any]) -> dict[str, float]:
        parts = compute_score("", item["response"], item["ground_truth"], **kwargs)
        result = {"overall": parts["score"], **{key: parts[key] for key in ("accuracy", "format", "f1", "tests")}}
        return result | {f"reason/{code}": float(code == parts["reason"]) for code in REASONS}

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # programs run in parallel
        return list(pool.map(scored, reward_inputs))


def known_sources() -> tuple[str, ...]:
    """The data sources that have rules."""
    return tuple(judges.SOURCES)


def note(data_source: str, ground_truth: Any) -> tuple[str, str] | None:
    """What the dry run says of a truth that is judged otherwise than its spelling suggests: (a note, the truth)."""
    return judges.note(*opened(data_source, ground_truth))


def check_sources(
    truths: Iterable[tuple[str, Any]], limits: dict[str, float] | None = None, **kwargs: Any
) -> list[str]:
    """Return the problems of this data, (source, truth) of every row, on this machine; empty if there are none."""
    problems: list[str] = []
    try:
        sandbox.Limits(**(limits or {}))
    except (TypeError, ValueError) as error:
        problems.append(str(error))
    sources: set[str] = set()
    for number, row in enumerate(truths, start=1):
        source, truth = opened(*row)
        try:
            judges.read_gold(source, truth)
            sources.add(source)
        except ValueError as error:
            problems.append(f"row {number} ({source}): {error}")
        if len(problems) == MOST_PROBLEMS:
            return problems
    try:
        if sources & set(judges.CODE):
            sandbox.check()
        if "math" in sources:
            latex.check()
    except RuntimeError as error:
        problems.append(str(error))
    return problems[:MOST_PROBLEMS]
