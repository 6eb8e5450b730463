"""Validations of runs: accuracy with intervals, two of them paired, and the learning curve of a run.

Two validations are paired by the ids of rows and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean

from recipes.errors import RecipeError
from recipes.runs.dumps import NO_IDS, Dump, Response, read_dump, validation_files
from recipes.runs.folder import ATTEMPT
from recipes.runs.metrics import read_history
from recipes.statistics import (
    Interval,
    McNemar,
    difference_of_shares,
    mcnemar,
    mean_with_interval,
    paired_p_value,
)

# Name in a curve -> verl's metric. KL is logged under two names, by the place where it acts.
TRAINING = {
    "score": "critic/score/mean",
    "entropy": "actor/entropy",
    "kl_reward": "actor/reward_kl_penalty",
    "kl_loss": "actor/kl_loss",
    "grad_norm": "actor/grad_norm",
    "seconds": "timing_s/step",
}


@dataclass(frozen=True)
class Paired:
    """Two validations on the questions that both answered.

    Attributes:
        questions: how many those are.
        difference: second minus first.
        mcnemar: questions won and lost; with several samples a question, those whose share of right ones rose or fell,
            and the p-value of flipped signs.
    """

    questions: int
    difference: Interval
    mcnemar: McNemar


def accuracy(dump: Dump) -> Interval:
    """The mean of what the dump's `measure` says, with an interval over the questions."""
    bounds = (0.0, 1.0) if dump.measure == "accuracy" else None
    interval = mean_with_interval([_share(group) for group in dump.groups.values()], bounds=bounds)
    assert interval is not None  # a dump has responses
    return interval


def pair(first: Dump, second: Dump) -> Paired | None:
    """Compare two validations; None where they cannot be paired, as `why_not` tells."""
    if first.measure != second.measure:
        return None
    before, after = first.answers, second.answers
    common = [row for row in before if row in after]
    if not common:
        return None
    changes = [_share(after[row]) - _share(before[row]) for row in common]
    won, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    measured = [response for row in common for response in (*before[row], *after[row])]
    if len(measured) == 2 * len(common) and all(each.accuracy in (0.0, 1.0) for each in measured):
        return Paired(len(common), difference_of_shares(won, lost, len(common)), mcnemar(won, lost))
    accuracies = first.measure == second.measure == "accuracy"
    difference = mean_with_interval(changes, bounds=(-1.0, 1.0) if accuracies else None)
    assert difference is not None
    return Paired(len(common), difference, McNemar(won, lost, paired_p_value(changes)))


def why_not(first: Dump, second: Dump) -> str:
    """The reason why two validations cannot be paired, in a sentence."""
    for dump in (first, second):
        if not dump.has_ids:
            return f"{dump.file.parent.parent.name}, step {dump.file.stem}: {NO_IDS}"
    if first.measure != second.measure:
        return f"one has a {first.measure} and the other a {second.measure}: their rewards differ"
    return "the validations share no question"


def _share(group: Sequence[Response]) -> float:
    return fmean(response.value for response in group)


@dataclass(frozen=True)
class FirstToLast:
    """The last validation of a run against its first, on the same questions; exact and paired."""

    first: int
    last: int
    questions: int
    difference: Interval
    mcnemar: McNemar


@dataclass(frozen=True)
class Curve:
    """One run.

    Attributes:
        run: its name.
        validation: step -> greedy accuracy with its interval over the questions (Wilson).
        training: one entry a step: `step`, and those of `TRAINING` that the run logged.
        paired: None where the validations cannot be paired; `notes` says why.
        notes: what is wrong with the validations, in sentences.
        seconds: from the launch to the last metrics, start-up included; None for a run that was resumed.
    """

    run: str
    validation: dict[int, Interval]
    training: list[dict[str, float]]
    paired: FirstToLast | None
    notes: list[str] = field(default_factory=list)
    seconds: float | None = None


def learning_curve(run: Path, upto: float = math.inf) -> Curve:
    """Validation accuracy at each validated step, training metrics of each step, and last against first.

    Args:
        run: such as `artifacts/runs/<experiment>`.
        upto: the last step that is looked at.
    """
    if not run.is_dir():
        raise RecipeError(
            "there is no such run", where=str(run), fix="`python scripts/monitor.py list` names those there are"
        )
    files = {step: file for step, file in validation_files(run).items() if step <= upto}
    if len(files) < 2:
        raise RecipeError(
            f"a curve needs two validations, and the run has {len(files)}",
            where=str(run / "validation"),
            fix="train with VAL_FREQ set to fewer steps than the run has",
        )
    dumps = {step: read_dump(file) for step, file in files.items()}
    first, last = min(dumps), max(dumps)
    compared = pair(dumps[first], dumps[last])
    notes = [f"validation of step {step}: {note}" for step, dump in dumps.items() for note in dump.notes]
    if compared is None:
        notes.append(f"not paired: {why_not(dumps[first], dumps[last])}")
    return Curve(
        run=run.name,
        validation={step: accuracy(dump) for step, dump in dumps.items()},
        training=[
            {"step": step.step}
            | {name: value for name, metric in TRAINING.items() if (value := step.get(metric)) is not None}
            for step in read_history(run / "metrics.jsonl")
            if TRAINING["score"] in step.data
        ],
        paired=FirstToLast(first, last, compared.questions, compared.difference, compared.mcnemar)
        if compared
        else None,
        notes=notes,
        seconds=_seconds(run),
    )


def _seconds(run: Path) -> float | None:
    """Launch to last metrics, by the log's line of its only attempt and the time of the metrics file."""
    log = run / "train.log"
    if not log.is_file():
        return None
    with log.open(encoding="utf-8", errors="replace") as lines:
        attempts = [line.removeprefix(ATTEMPT).strip() for line in lines if line.startswith(ATTEMPT)]
    if len(attempts) != 1:
        return None
    return (run / "metrics.jsonl").stat().st_mtime - datetime.fromisoformat(attempts[0]).timestamp()
