"""Completion logs from the rollouts that verl writes during training and validation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.cache import whole_folder
from recipes.evaluation.generation import CompletionLog
from recipes.evaluation.scoring import FULL_MARKS, Reward, Score
from recipes.evaluation.suspicious import flags

# verl's dump (`trainer.rollout_data_dir`, `trainer.validation_data_dir`) is one JSONL file per step with these fields;
# newer versions add `uid`, and validation dumps hold every key of the reward's result as well.
FIELDS = ("input", "output", "gts", "score", "step")
# A logged score and the reward file's may differ by float32 rounding; beyond it, training used another file.
SAME_SCORE = 1e-5


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


def split_rollouts(source: Path, target: Path, reward: Reward | None, data_source: str) -> list[dict[str, Any]]:
    """Write `step_<n>_{success,fail,suspicious}.jsonl` for each dump of `source` into the folder `target`.

    Args:
        reward: scores again, since the training dump keeps a score but no reason; None takes the logged score.
        data_source: what the reward is told, because the dump does not hold it.

    Returns:
        Per step `CompletionLog.close()` with `step`, `mean_score` as logged, and `differs`: how many logged scores the
        reward file does not give.
    """
    with whole_folder(target) as folder:
        return [_split(dump, folder, reward, data_source) for dump in rollout_files(source)]


def _split(dump: Path, folder: Path, reward: Reward | None, data_source: str) -> dict[str, Any]:
    log = CompletionLog(folder, f"step_{dump.stem}")
    logged, differs = 0.0, 0
    for group in _groups(dump):
        scores = [_score(record, reward, data_source) for record in group]
        pairs = zip(group, scores, strict=True)
        differs += sum(abs(record["score"] - score.value) > SAME_SCORE for record, score in pairs)
        logged += sum(record["score"] for record in group)
        shared = {"step": group[0]["step"], "prompt": group[0]["input"], "ground_truth": str(group[0]["gts"])}
        records = [{"response": record["output"], "uid": record.get("uid")} for record in group]
        log.add_group(
            shared, records, scores, [flags(r["output"], str(r["gts"]), s) for r, s in zip(group, scores, strict=True)]
        )
    totals = log.close()
    mean = logged / (totals["success"] + totals["fail"])
    return {"step": dump.stem, "mean_score": mean, "differs": differs, **totals}


def _score(record: dict[str, Any], reward: Reward | None, data_source: str) -> Score:
    if reward is not None:
        return reward.score_raw(data_source, record["output"], str(record["gts"]), {})
    value = float(record["score"])
    full = value >= FULL_MARKS
    reason = record.get("reason") or ("right" if full else "wrong")
    return Score(value, float(record.get("accuracy", full)), str(reason))


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
