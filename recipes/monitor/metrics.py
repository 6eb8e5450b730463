"""Reads what the trainer logged; to show or judge a metric: progress.py, rules.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from recipes.data.rewards import is_right


class Step(NamedTuple):
    """The metrics of one step; step 0 is the validation before training."""

    step: int
    data: dict[str, Any]

    def get(self, *names: str) -> float | None:
        """The first of these metrics that is there and a number."""
        for name in names:
            value = self.data.get(name)
            if isinstance(value, int | float):
                return float(value)
        return None


class MetricsFollower:
    """Copies the lines of an attempt's file to the history.

    Args:
        attempt: the file that the trainer writes (`VERL_FILE_LOGGER_PATH`).
        history: `metrics.jsonl` of the run.
    """

    def __init__(self, attempt: Path, history: Path) -> None:
        self._attempt, self._history, self._offset = attempt, history, 0

    def poll(self) -> list[Step]:
        """The steps that were completed since the last call; they are in the history when this returns."""
        if not self._attempt.is_file():
            return []
        with self._attempt.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        if whole:
            with self._history.open("ab") as history:
                history.write(whole)
        return [step for line in whole.splitlines() if (step := _parsed(line))]


def adopt_leftovers(attempts: list[Path], history: Path) -> None:
    """Bring in what an attempt wrote after its launcher was killed, then remove the attempts' files."""
    if not attempts:
        return
    have = set(history.read_bytes().splitlines()) if history.is_file() else set()
    with history.open("ab") as file:
        for attempt in attempts:
            data = attempt.read_bytes()
            for line in data[: data.rfind(b"\n") + 1].splitlines():
                if line not in have:
                    file.write(line + b"\n")
    for attempt in attempts:
        attempt.unlink()


def read_history(*files: Path) -> list[Step]:
    """Every step once, in order; where a step was written again, the later values win.

    A resumed run validates the step that it starts from: that line adds to the step's training metrics. A file that is
    not there has no steps. Lines that are torn or no step are passed over; `unreadable_lines` counts them.
    """
    steps: dict[int, Step] = {}
    for line in _lines(files):
        if step := _parsed(line):
            earlier = steps.get(step.step)
            steps[step.step] = Step(step.step, {**earlier.data, **step.data}) if earlier else step
    return [steps[number] for number in sorted(steps)]


def unreadable_lines(*files: Path) -> int:
    """How many lines are torn or no step."""
    return sum(_parsed(line) is None for line in _lines(files))


def _lines(files: Iterable[Path]) -> Iterable[bytes]:
    return (line for file in files if file.is_file() for line in file.read_bytes().splitlines() if line.strip())


def rollout_accuracy(folder: Path | None, step: int, since: float = 0.0) -> float | None:
    """Share of a step's training responses that earned the full score; None where they are not written (yet).

    verl logs the mean score of training responses but not how many were right.

    Args:
        since: seconds since the epoch; an older file is an earlier attempt's, of a step that is done again.
    """
    path = folder / f"{step}.jsonl" if folder else None
    if path is None or not path.is_file() or path.stat().st_mtime < since:
        return None
    right = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            right.append(is_right(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            return None
    return sum(right) / len(right) if right else None


def validation(step: Step) -> dict[str, float]:
    """Validation accuracy by data source, from `val-core/<source>/acc/mean@<n>`.

    A reward that answers with a dict without `acc` has `val-core/<source>/reward/mean@<n>` instead, its mean score.
    """
    found: dict[str, float] = {}
    for measure in ("acc", "reward"):
        for name in step.data:
            source, middle, _ = name.removeprefix("val-core/").partition(f"/{measure}/mean@")
            value = step.get(name)
            if name.startswith("val-core/") and middle and value is not None:
                found.setdefault(source, value)
    return found


def mean_validation(step: Step) -> float | None:
    """The mean of a step's validation accuracies over its data sources; None without validation."""
    shares = validation(step)
    return sum(shares.values()) / len(shares) if shares else None


def seconds_per_step(history: Sequence[Step], window: int = 20) -> float | None:
    """Seconds that a step takes, with its share of validations and saves, by the last steps; None before the first."""
    times = [
        (step.get("timing_s/step") or 0.0) + (step.get("timing_s/testing") or 0.0)
        for step in history[-window:]
        if step.get("timing_s/step") is not None
    ]
    if not times:
        return None
    # The mean has the rare long steps in it that the median leaves out, but also a first step that warms up.
    return mean(times) if len(times) > 5 else median(times)


_OF_UPDATE = {
    "actor/entropy_loss": "actor/entropy",
    "actor/rollout_corr/kl": "rollout_corr/kl",
    "actor/training/rollout_probs_diff_mean": "training/rollout_probs_diff_mean",
}
"""Names of what the update measures where there is no pass before it (worker.actor.recompute_old_log_probs), and the
names that verl gives to the same quantities of that pass."""


def _parsed(line: bytes) -> Step | None:
    try:
        entry = json.loads(line)
        data = dict(entry["data"])
        return Step(int(entry["step"]), {name: data[own] for own, name in _OF_UPDATE.items() if own in data} | data)
    except (ValueError, KeyError, TypeError, OverflowError):  # a step may be written as Infinity
        return None


class Sources:
    """Finds the data source of a rollout among training rows of verl; empty where there is one source alone.

    A ground truth that belongs to one source decides. Where several sources share it, the row decides whose prompt
    stands in the rollout's input.
    """

    def __init__(self, files: Iterable[str]) -> None:
        local = [file for file in files if Path(file).is_file()]
        self.names = data_sources(local)
        rows: dict[int, dict[str, str]] = {}
        if len(self.names) > 1:
            for source, truth, prompt in chain.from_iterable(map(_rows, local)):
                rows.setdefault(hash(truth), {})[prompt] = source
        # The prompts are kept only where the ground truth does not decide.
        self._of_one = {
            truth: next(iter(found.values())) for truth, found in rows.items() if len({*found.values()}) == 1
        }
        self._of_several = {truth: found for truth, found in rows.items() if truth not in self._of_one}

    def accuracy(self, rollouts: Path) -> dict[str, float]:
        """Share of the responses of each source with the full score; empty for one source, or no such file."""
        if len(self.names) < 2 or not rollouts.is_file():
            return {}
        right: dict[str, list[bool]] = {}
        known: dict[tuple[str, str], str | None] = {}
        for line in rollouts.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                correct, asked = is_right(entry), (str(entry["gts"]), entry["input"])
            except (ValueError, KeyError, TypeError):
                return {}  # the file is still written
            if asked not in known:
                known[asked] = self.of(*asked)
            right.setdefault(known[asked] or "unknown", []).append(correct)
        return {name: sum(found) / len(found) for name, found in sorted(right.items())}

    def of(self, truth: str, text: str) -> str | None:
        """The source of a ground truth and a rollout's input; None where no training row has both."""
        if hash(truth) in self._of_one:
            return self._of_one[hash(truth)]
        found = self._of_several.get(hash(truth), {})
        # The longest first: a short prompt may be a part of another.
        return next((found[prompt] for prompt in sorted(found, key=len, reverse=True) if prompt in text), None)


def data_sources(files: Iterable[str]) -> set[str]:
    """The data sources of these parquet files; files that are not there have none."""
    import pyarrow.parquet as pq

    found: set[str] = set()
    for file in filter(os.path.isfile, files):
        with pq.ParquetFile(file) as opened:
            if "data_source" in opened.schema_arrow.names:
                for batch in opened.iter_batches(columns=["data_source"]):
                    found.update(batch.column(0).unique().to_pylist())
    return found


def _rows(file: str) -> Iterable[tuple[str, str, str]]:
    """(data source, ground truth, the user's message) of every row."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(columns=["data_source", "reward_model.ground_truth", "prompt"]):
            for row in batch.to_pylist():
                said = row["prompt"][-1]["content"] if row.get("prompt") else ""
                yield row["data_source"], str(row["reward_model"]["ground_truth"]), str(said)
