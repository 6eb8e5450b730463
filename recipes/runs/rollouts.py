"""Training responses as verl writes them, one file a step: accuracy, by data source, and groups without variance."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recipes.data.rewards import is_right
from recipes.data.rows import data_sources

_EQUAL = 1e-6


@dataclass(frozen=True)
class Groups:
    """The responses of one step.

    Attributes:
        groups: how many groups there are.
        zero_variance: those whose responses all have the same score: every advantage is zero.
        all_right: zero-variance groups in which every response is right.
        accuracy: share of right responses.
        by_source: the same for each data source, where there are several.
    """

    groups: int
    zero_variance: int
    all_right: int
    accuracy: float
    by_source: Mapping[str, float] = field(default_factory=dict)

    @property
    def zero_variance_share(self) -> float:
        return self.zero_variance / self.groups


class Rollouts:
    """The responses of a run's steps; each file is read once.

    Args:
        folder: verl's `trainer.rollout_data_dir`, with a file `<step>.jsonl` for each step; None where it has none.
        training_files: parquet files with the training rows, which tell the data sources apart.
    """

    MOST = 120
    """Files read for a long run: those of its end, and others evenly spread. A file may have tens of megabytes."""

    def __init__(self, folder: Path | None, training_files: Iterable[str] = ()) -> None:
        self._folder, self._sources = folder, Sources(training_files)
        self._known: dict[int, Groups] = {}

    def of(self, step: int, since: float = 0.0) -> Groups | None:
        """The responses of one step; None where they are not written (yet).

        Args:
            since: seconds since the epoch; an older file is an earlier attempt's, of a step that is done again.
        """
        if step in self._known or self._folder is None:
            return self._known.get(step)
        file = self._folder / f"{step}.jsonl"
        measured = self._measured(file) if file.is_file() and file.stat().st_mtime >= since else None
        if measured:
            self._known[step] = measured
        return measured

    def among(self, steps: Sequence[int]) -> dict[int, Groups]:
        """Those of these steps that were written; of many steps, `MOST`."""
        read = {*steps[-self.MOST // 2 :], *steps[: -self.MOST // 2 : max(1, 2 * len(steps) // self.MOST)]}
        known = {step: self.of(step) for step in steps if step in read or step in self._known}
        return {step: groups for step, groups in known.items() if groups}

    def _measured(self, file: Path) -> Groups | None:
        """verl names a response `<uid of the prompt>_<session>_<index>`; else prompt and truth name the group."""
        groups: dict[object, list[tuple[float, bool]]] = defaultdict(list)
        by_prompt: dict[tuple[str, str], list[bool]] = defaultdict(list)
        try:
            with file.open(encoding="utf-8") as lines:
                for entry in map(json.loads, lines):
                    prompt, right = (str(entry.get("gts")), str(entry.get("input"))), is_right(entry)
                    uid = entry.get("uid")
                    groups[uid.rsplit("_", 2)[0] if uid else prompt].append((float(entry["score"]), right))
                    by_prompt[prompt].append(right)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # still being written, or another program's
        if not groups:
            return None
        zero_variance = [group for group in groups.values() if max(group)[0] - min(group)[0] < _EQUAL]
        all_right = sum(all(right for _, right in group) for group in zero_variance)
        every = [right for group in groups.values() for _, right in group]
        by_source = self._by_source(by_prompt) if len(self._sources.names) > 1 else {}
        return Groups(len(groups), len(zero_variance), all_right, sum(every) / len(every), by_source)

    def _by_source(self, by_prompt: Mapping[tuple[str, str], list[bool]]) -> dict[str, float]:
        sources: dict[str, list[bool]] = defaultdict(list)
        for prompt, right in by_prompt.items():
            sources[self._sources.of(*prompt) or "unknown"] += right
        return {name: sum(right) / len(right) for name, right in sorted(sources.items())}


class Sources:
    """Finds the data source of a response among verl's training rows.

    A ground truth that belongs to one source decides. Where several sources share it, the row decides whose prompt
    stands in the response's input.
    """

    def __init__(self, files: Iterable[str]) -> None:
        local = [file for file in files if Path(file).is_file()]
        self.names = data_sources(local)
        rows: dict[int, dict[str, str]] = defaultdict(dict)  # hash of the ground truth -> prompt -> source
        for file in local if len(self.names) > 1 else ():
            for source, truth, prompt in _rows(file):
                rows[hash(truth)][prompt] = source
        # Where the ground truth decides, one entry stands for all its prompts: the empty text is a part of each.
        self._by_truth = {
            truth: {"": min(prompts.values())} if len({*prompts.values()}) == 1 else prompts
            for truth, prompts in rows.items()
        }

    def of(self, truth: str, text: str) -> str | None:
        """The source of a ground truth and a response's input; None where no training row has both."""
        prompts = self._by_truth.get(hash(truth), {})
        # The longest first: a short prompt may be a part of another.
        return next((prompts[prompt] for prompt in sorted(prompts, key=len, reverse=True) if prompt in text), None)


def _rows(file: str) -> Iterator[tuple[str, str, str]]:
    """(data source, ground truth, the user's message) of every row."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(columns=["data_source", "reward_model.ground_truth", "prompt"]):
            for row in batch.to_pylist():
                prompt = row["prompt"][-1]["content"] if row.get("prompt") else ""
                yield row["data_source"], str(row["reward_model"]["ground_truth"]), str(prompt)
