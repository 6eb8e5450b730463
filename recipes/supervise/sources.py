"""Which data source a training response belongs to: rollouts hold ground truth and prompt, but not the source."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from recipes.supervise.metrics import FULL_SCORE


class Sources:
    """Finds the data source of a rollout among training rows of verl; empty where there is one source alone.

    A ground truth that belongs to one source decides. Where several sources share it, the row decides whose prompt
    stands in the rollout's input.
    """

    def __init__(self, files: Iterable[str]) -> None:
        local = [file for file in files if Path(file).is_file()]
        self.names = _names(local)
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
                score, asked = float(entry["score"]), (str(entry["gts"]), entry["input"])
            except (ValueError, KeyError, TypeError):
                return {}  # the file is still written
            if asked not in known:
                known[asked] = self.of(*asked)
            right.setdefault(known[asked] or "unknown", []).append(score >= FULL_SCORE)
        return {name: sum(found) / len(found) for name, found in sorted(right.items())}

    def of(self, truth: str, text: str) -> str | None:
        """The source of a ground truth and a rollout's input; None where no training row has both."""
        if hash(truth) in self._of_one:
            return self._of_one[hash(truth)]
        found = self._of_several.get(hash(truth), {})
        # The longest first: a short prompt may be a part of another.
        return next((found[prompt] for prompt in sorted(found, key=len, reverse=True) if prompt in text), None)


def _names(files: list[str]) -> set[str]:
    import pyarrow.parquet as pq

    found: set[str] = set()
    for file in files:
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
