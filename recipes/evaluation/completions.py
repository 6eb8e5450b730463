"""Completion logs: every response in a success or a fail file, from an evaluation or from the rollouts of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.scoring import Reward, Score, as_score
from recipes.evaluation.suspicious import RULES, SAME_ANSWER, SameAnswer, flags
from recipes.files import whole_folder

# verl's dump (`trainer.rollout_data_dir`, `trainer.validation_data_dir`) is one JSONL file per step with these fields;
# newer versions add `uid`, and validation dumps hold every key of the reward's result as well.
FIELDS = ("input", "output", "gts", "score", "step")
# A logged score and the reward file's may differ by float32 rounding; beyond it, training used another file.
SAME_SCORE = 1e-5


class JsonLines:
    """A JSONL file that is written line by line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.count = 0
        self._file = path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; NaN and infinity are refused, since JSON has neither."""
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self.count += 1

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


@dataclass(frozen=True)
class CompletionCounts:
    """What a log holds.

    Attributes:
        success, fail, suspicious: responses; a suspicious one is in success or fail as well.
        flags: suspicious rule -> responses (for the last rule: answers).
        same_answer: rewarded answers that nearly every group has, as {answer, groups, share}.
    """

    success: int
    fail: int
    suspicious: int
    flags: dict[str, int]
    same_answer: list[dict[str, Any]]


class CompletionLog:
    """Writes `<name>_success.jsonl` (right), `<name>_fail.jsonl` and `<name>_suspicious.jsonl` into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files = {kind: JsonLines(folder / f"{name}_{kind}.jsonl") for kind in ("success", "fail", "suspicious")}
        self._flags: Counter[str] = Counter()
        self._same = SameAnswer()

    def add_group(
        self, shared: dict[str, Any], records: list[dict[str, Any]], scores: list[Score], raised: list[list[str]]
    ) -> None:
        """Write one question's responses.

        Args:
            shared: what all responses have in common, with `ground_truth`.
            records: one per response, with `response`.
            raised: the suspicious flags of each response.
        """
        for record, score, names in zip(records, scores, raised, strict=True):
            line = shared | record | {"score": score.value, "accuracy": score.accuracy, "reason": score.reason}
            line |= {"parts": score.parts, "suspicious": names}
            self._files["success" if score.right else "fail"].write(line)
            if names:
                self._files["suspicious"].write(line)
            self._flags.update(names)
        rewarded = [record["response"] for record, score in zip(records, scores, strict=True) if score.value > 0]
        self._same.add(shared["ground_truth"], rewarded)

    def close(self) -> CompletionCounts:
        """Finish the files and count what they hold."""
        for file in self._files.values():
            file.close()
        same = self._same.found()
        counts = {rule: self._flags[rule] for rule in RULES} | {SAME_ANSWER: len(same)}
        return CompletionCounts(*(file.count for file in self._files.values()), counts, same)


@dataclass(frozen=True)
class RolloutStep:
    """One step's rollouts: `mean_score` as logged, `differs`: logged scores that the reward file does not give now."""

    step: str
    mean_score: float
    differs: int
    counts: CompletionCounts


def rollout_files(path: Path) -> list[Path]:
    """The dumps in a folder, by step; or the one file that is named."""
    if path.is_file():
        return [path]
    files = sorted((file for file in path.glob("*.jsonl") if file.stem.isdigit()), key=lambda file: int(file.stem))
    if not files:
        below = [str(path / name) for name in ("rollouts", "validation") if (path / name).is_dir()]
        fix = f"name {' or '.join(below)}" if below else "train with trainer.rollout_data_dir set"
        raise RecipeError(f"{path} holds no rollouts (<step>.jsonl)", where="the first argument", fix=fix)
    return files


def split_rollouts(source: Path, target: Path, reward: Reward | None, data_source: str) -> list[RolloutStep]:
    """Write `step_<n>_{success,fail,suspicious}.jsonl` for each dump of `source` into the folder `target`.

    Args:
        reward: scores again, since the training dump keeps a score but no reason; None takes the logged score.
        data_source: what the reward gets as data source, because the dump does not hold it.
    """
    with whole_folder(target) as folder:
        return [_split(dump, folder, reward, data_source) for dump in rollout_files(source)]


def _split(dump: Path, folder: Path, reward: Reward | None, data_source: str) -> RolloutStep:
    log = CompletionLog(folder, f"step_{dump.stem}")
    logged, differs, responses = 0.0, 0, 0
    for group in _groups(dump):
        scores = [_score(record, reward, data_source, str(dump)) for record in group]
        raised = [flags(each["output"], str(each["gts"]), score) for each, score in zip(group, scores, strict=True)]
        for record, score in zip(group, scores, strict=True):
            logged += record["score"]
            responses += 1
            differs += abs(record["score"] - score.value) > SAME_SCORE
        shared = {"step": group[0]["step"], "prompt": group[0]["input"], "ground_truth": str(group[0]["gts"])}
        records = [{"response": record["output"], "uid": record.get("uid")} for record in group]
        log.add_group(shared, records, scores, raised)
    return RolloutStep(dump.stem, logged / responses, differs, log.close())


def _score(record: dict[str, Any], reward: Reward | None, data_source: str, where: str) -> Score:
    if reward is not None:
        return reward.score_raw(data_source, record["output"], str(record["gts"]), {})
    return as_score({key: record[key] for key in ("score", "accuracy", "acc", "reason") if key in record}, where)


def _groups(dump: Path) -> list[list[dict[str, Any]]]:
    """One list per prompt. A dump holds one step, which fits in memory; its lines need not be in order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    with dump.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            record = _record(line, f"{dump}, line {number}")
            groups.setdefault(_group_key(record), []).append(record)
    if not groups:
        raise RecipeError("the dump is empty", where=str(dump))
    return list(groups.values())


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecipeError("the line is not JSON", where=where, fix="was the run killed while writing?") from error
    missing = [name for name in FIELDS if name not in record]
    if missing:
        raise RecipeError(f"the record has no {missing[0]}", where=where, fix="name a dump that verl wrote")
    if not isinstance(record["score"], (int, float)) or not math.isfinite(record["score"]):
        raise RecipeError(f"the logged score is {record['score']}", where=where)
    return record


def _group_key(record: dict[str, Any]) -> str:
    """verl's uid is <prompt>_<rollout>_<output>; without it the prompt's text says which group a record is in."""
    uid = str(record.get("uid") or "")
    return uid.rsplit("_", 2)[0] if uid.count("_") >= 2 else record["input"]
