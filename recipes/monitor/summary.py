"""The table at the end of a run: what was reached, where it lies, and what to type next."""

from __future__ import annotations

from pathlib import Path

from recipes.engines.checkpoints import Checkpoint
from recipes.monitor.metrics import Step, validation
from recipes.monitor.progress import number
from recipes.paths import shown


def accuracy_before_and_after(history: list[Step]) -> list[tuple[str, float, int, float, int]]:
    """For each data source: first accuracy and its step, last accuracy and its step."""
    first: dict[str, tuple[float, int]] = {}
    last: dict[str, tuple[float, int]] = {}
    for step in history:
        for source, value in validation(step).items():
            first.setdefault(source, (value, step.step))
            last[source] = (value, step.step)
    return [(source, *first[source], *last[source]) for source in first]


def summary(
    history: list[Step],
    total: int | None,
    checkpoint: Checkpoint | None,
    log: Path,
    next_commands: list[tuple[str, str]],
) -> list[tuple[str, str]]:
    """The rows of the closing table.

    Args:
        history: all steps of the experiment, those of earlier attempts included.
        total: steps of the run, where known.
        checkpoint: the last one.
        log: the trainer's log.
        next_commands: (what for, command).
    """
    done = max((step.step for step in history), default=0)
    rows = [("steps", f"{done} of {total}" if total else str(done))]
    for source, before, at, after, then in accuracy_before_and_after(history):
        later = f" -> {number(after)} (step {then})" if then != at else ""
        rows.append(("validation accuracy", f"{source}: {number(before)} (step {at}){later}"))
    if checkpoint:
        rows.append(("checkpoint", str(shown(checkpoint.model or checkpoint.folder))))
    else:
        rows.append(("checkpoint", "none was saved"))
    return [*rows, ("log", str(shown(log))), *next_commands]


def table(rows: list[tuple[str, str]]) -> str:
    """Rows as aligned text. Lines are never broken, so that paths and commands can be copied."""
    width = max(len(name) for name, _ in rows)
    rule = "-" * (width + 2 + min(100, max(len(value) for _, value in rows)))
    return "\n".join([rule, *(f"{name:<{width}}  {value}" for name, value in rows), rule])
