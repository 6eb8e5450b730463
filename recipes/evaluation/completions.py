"""Completion logs: every response in a success or a fail file, from an evaluation or from the rollouts of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.evaluation.sampling import Response
from recipes.evaluation.scoring import Reward, Score
from recipes.files import whole_folder
from recipes.runs.responses import Dump, dump_files, read_dump
from recipes.runs.responses import Response as Logged

# A logged score and the reward file's may differ by float32 rounding; beyond it, training used another file.
SAME_SCORE = 1e-5


class JsonLines:
    """A JSONL file that is written line by line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, record: Mapping[str, object]) -> None:
        """Append one record; NaN and infinity are refused, since JSON has neither."""
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


class CompletionLog(ExitStack):
    """Writes `<name>_success.jsonl` and `<name>_fail.jsonl`, or `<name>_scored.jsonl` where no accuracy is stated.

    `counts` has the number of responses in each.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__()
        self._folder, self._name = folder, name
        self._files: dict[str, JsonLines] = {}
        self.counts: Counter[str] = Counter()

    def add(self, response: str, score: Score, columns: Mapping[str, object]) -> None:
        """Write one response; `columns` stand before it."""
        line = {**columns, "response": response, "score": score.value, "accuracy": score.accuracy}
        line |= {"reason": score.reason, "parts": score.parts}
        if score.failure:
            line["failure"] = score.failure
        kind = "scored" if score.right is None else "success" if score.right else "fail"
        if kind not in self._files:
            self._files[kind] = self.enter_context(JsonLines(self._folder / f"{self._name}_{kind}.jsonl"))
        self._files[kind].write(line)
        self.counts[kind] += 1


@dataclass(frozen=True)
class RolloutStep:
    """One step's rollouts: `mean_score` as logged, `differs`: logged scores that the reward file does not give now.

    `torn`: its last line is half written, and left out.
    """

    step: str
    mean_score: float
    differs: int
    counts: Counter[str]
    torn: bool


def rollout_files(path: Path) -> list[Path]:
    """The dumps in a folder, by step; or the one file that is named."""
    if path.is_file():
        return [path]
    files = list(dump_files(path).values())
    if not files:
        below = [str(path / name) for name in ("rollouts", "validation") if (path / name).is_dir()]
        fix = f"name {' or '.join(below)}" if below else "train with trainer.rollout_data_dir set"
        raise RecipeError(f"{path} holds no rollouts (<step>.jsonl)", where="the first argument", fix=fix)
    return files


def split_rollouts(source: Path, target: Path, reward: Reward | None, data_source: str) -> list[RolloutStep]:
    """Write `step_<n>_{success,fail,scored}.jsonl` for each dump of `source` into the folder `target`.

    Args:
        reward: scores again; None takes the logged score.
        data_source: what the reward gets as data source where the dump does not hold it.
    """
    with whole_folder(target) as folder:
        return [_split(read_dump(file), folder, reward, data_source) for file in rollout_files(source)]


def _split(dump: Dump, folder: Path, reward: Reward | None, data_source: str) -> RolloutStep:
    differs = 0
    with CompletionLog(folder, f"step_{dump.file.stem}") as log:
        for number, response in enumerate(dump.responses):
            score = _score(response, number, reward, data_source)
            differs += abs(response.score - score.value) > SAME_SCORE
            columns = {"step": response.line.get("step"), "row_id": response.row_id, "uid": response.line.get("uid")}
            columns |= {"prompt": response.prompt, "ground_truth": response.truth}
            log.add(response.text, score, columns)
    mean = sum(response.score for response in dump.responses) / len(dump.responses)
    return RolloutStep(dump.file.stem, mean, differs, log.counts, dump.torn)


def _score(response: Logged, number: int, reward: Reward | None, data_source: str) -> Score:
    if reward is None:
        reason = str(response.line.get("reason") or "")
        return Score(response.score, response.accuracy, reason)
    question = Question(
        number, [{"role": "user", "content": response.prompt}], response.truth, response.data_source or data_source
    )
    return reward.score(question, [Response(response.text, None, "stop", None)])[0]
