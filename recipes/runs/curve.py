"""The learning curve of a run: held-out accuracy with intervals, training metrics, and the last validation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from recipes.errors import RecipeError
from recipes.runs.dumps import read_dump, validation_files
from recipes.runs.folder import ATTEMPT
from recipes.runs.metrics import read_history
from recipes.runs.pairing import accuracy, pair, why_not
from recipes.statistics import Interval, McNemar

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
