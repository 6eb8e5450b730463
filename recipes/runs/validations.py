"""Validations of runs: the mean with its interval, two of them paired, and the learning curve of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean

from recipes.errors import RecipeError, counted
from recipes.runs.folder import ATTEMPT, read
from recipes.runs.responses import NO_IDS, Dump, Response, read_dump, validation_files
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
    """Two validations on the questions that both answered: rows with one id, one prompt and one ground truth.

    Attributes:
        questions: how many those are.
        difference: second minus first.
        mcnemar: questions won and lost; the exact test for single answers that are right or wrong, otherwise those
            whose mean rose or fell, and the p-value of flipped signs.
        others: ids that both have with another prompt or ground truth.
    """

    questions: int
    difference: Interval
    mcnemar: McNemar
    others: int = 0


def mean_of(dump: Dump) -> Interval:
    """The mean of what the dump's `measure` says, with an interval over the questions."""
    interval = mean_with_interval(dump.means, bounds=(0.0, 1.0) if dump.measure == "accuracy" else None)
    assert interval is not None  # a dump has responses
    return interval


def pair(first: Dump, second: Dump) -> Paired | None:
    """Compare two validations; None where they cannot be paired, as `why_not` tells."""
    same, others = _common(first, second)
    if first.measure != second.measure or not same:
        return None
    changes = [_mean(second.answers[row]) - _mean(first.answers[row]) for row in same]
    won, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    given = [response for row in same for dump in (first, second) for response in dump.answers[row]]
    if len(given) == 2 * len(same) and all(response.accuracy in (0.0, 1.0) for response in given):
        return Paired(len(same), difference_of_shares(won, lost, len(same)), mcnemar(won, lost), others)
    difference = mean_with_interval(changes, bounds=(-1.0, 1.0) if first.measure == "accuracy" else None)
    assert difference is not None
    return Paired(len(same), difference, McNemar(won, lost, paired_p_value(changes)), others)


def why_not(first: Dump, second: Dump) -> str:
    """The reason why two validations cannot be paired, in a sentence."""
    for dump in (first, second):
        if not dump.has_ids:
            return f"{dump.file.parent.parent.name}, step {dump.file.stem}: {NO_IDS}"
    if first.measure != second.measure:
        return f"one has a {first.measure} and the other a {second.measure}: their rewards differ"
    _, others = _common(first, second)
    if others:
        return f"the {counted(others, 'row')} with the same id have another prompt or ground truth: other questions"
    return "the validations share no question"


def _common(first: Dump, second: Dump) -> tuple[list[str], int]:
    """Ids of the questions that both have, and the number of ids that stand for different questions."""
    both = [row for row in first.answers if row in second.answers]
    same = [row for row in both if _question(first.answers[row]) == _question(second.answers[row])]
    return same, len(both) - len(same)


def _question(answers: Sequence[Response]) -> tuple[str, str]:
    return answers[0].prompt, answers[0].truth


def _mean(answers: Sequence[Response]) -> float:
    return fmean(response.value for response in answers)


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
        validation: step -> its mean with an interval over the questions.
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


def learning_curve(folder: Path) -> Curve:
    """Validation at each validated step, training metrics of each step, and last against first.

    Args:
        folder: such as `artifacts/runs/<experiment>`.
    """
    if not folder.is_dir():
        raise RecipeError(
            "there is no such run", where=str(folder), fix="`python scripts/monitor.py list` names those there are"
        )
    dumps = {step: read_dump(file) for step, file in validation_files(folder).items()}
    if len(dumps) < 2:
        raise RecipeError(
            f"a curve needs two validations, and the run has {len(dumps)}",
            where=str(folder / "validation"),
            fix="train with VAL_FREQ set to fewer steps than the run has",
        )
    first, last = min(dumps), max(dumps)
    compared = pair(dumps[first], dumps[last])
    notes = [f"validation of step {step}: {note}" for step, dump in dumps.items() for note in dump.notes]
    notes += [] if compared else [f"not paired: {why_not(dumps[first], dumps[last])}"]
    training = [
        {"step": step.step, **{name: value for name, key in TRAINING.items() if (value := step.get(key)) is not None}}
        for step in read(folder).history
        if TRAINING["score"] in step.data
    ]
    return Curve(
        run=folder.name,
        validation={step: mean_of(dump) for step, dump in dumps.items()},
        training=training,
        paired=FirstToLast(first, last, compared.questions, compared.difference, compared.mcnemar)
        if compared
        else None,
        notes=notes,
        seconds=_seconds(folder),
    )


def _seconds(folder: Path) -> float | None:
    """Launch to last metrics, by the log's line of its only attempt and the time of the metrics file."""
    log = folder / "train.log"
    if not log.is_file():
        return None
    with log.open(encoding="utf-8", errors="replace") as lines:
        attempts = [line.removeprefix(ATTEMPT).strip() for line in lines if line.startswith(ATTEMPT)]
    if len(attempts) != 1:
        return None
    return (folder / "metrics.jsonl").stat().st_mtime - datetime.fromisoformat(attempts[0]).timestamp()
