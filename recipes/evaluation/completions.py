"""Completion logs: every response in a success or a fail file, from an evaluation or from the rollouts of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.errors import RecipeError
from recipes.evaluation.scoring import Reward, Score, as_score
from recipes.evaluation.suspicious import RULES, SAME_ANSWER, CommonAnswer, SameAnswer, flags
from recipes.files import whole_folder
from recipes.runs.responses import Dump, Response, dump_files, read_dump

# A logged score and the reward file's may differ by float32 rounding; beyond it, training used another file.
SAME_SCORE = 1e-5


class JsonLines:
    """A JSONL file that is written line by line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.count = 0
        self._file = path.open("w", encoding="utf-8")

    def write(self, record: Mapping[str, object]) -> None:
        """Append one record; NaN and infinity are refused, since JSON has neither."""
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self.count += 1

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


@dataclass(frozen=True)
class CompletionCounts:
    """Responses in a log, by kind.

    Attributes:
        success, fail, suspicious: responses; a suspicious one is in success or fail as well.
        flags: suspicious rule -> responses (for the last rule: answers).
        same_answer: rewarded answers that nearly every group has.
    """

    success: int
    fail: int
    suspicious: int
    flags: dict[str, int]
    same_answer: list[CommonAnswer]


class CompletionLog:
    """Writes `<name>_success.jsonl` (right), `<name>_fail.jsonl` and `<name>_suspicious.jsonl` into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files = {kind: JsonLines(folder / f"{name}_{kind}.jsonl") for kind in ("success", "fail", "suspicious")}
        self._flags: Counter[str] = Counter()
        self._same = SameAnswer()

    def add_group(
        self,
        prompt: str,
        truth: str,
        responses: Sequence[str],
        scores: Sequence[Score],
        *,
        shared: Mapping[str, object],
        own: Sequence[Mapping[str, object]],
    ) -> list[list[str]]:
        """Write one question's responses. Returns the suspicious flags of each.

        Args:
            shared: further columns that all its responses have in common.
            own: further columns of each response.
        """
        raised = [flags(response, truth, score) for response, score in zip(responses, scores, strict=True)]
        for response, score, names, columns in zip(responses, scores, raised, own, strict=True):
            line = {**shared, "prompt": prompt, "ground_truth": truth, "response": response, **columns}
            line |= {"score": score.value, "accuracy": score.accuracy, "reason": score.reason}
            line |= {"parts": score.parts, "suspicious": names}
            self._files["success" if score.right else "fail"].write(line)
            if names:
                self._files["suspicious"].write(line)
            self._flags.update(names)
        rewarded = [response for response, score in zip(responses, scores, strict=True) if score.value > 0]
        self._same.add(truth, rewarded)
        return raised

    def close(self) -> CompletionCounts:
        """Finish the files and count what they hold."""
        for file in self._files.values():
            file.close()
        same = self._same.found()
        counts = {rule: self._flags[rule] for rule in RULES} | {SAME_ANSWER: len(same)}
        sizes = {kind: file.count for kind, file in self._files.items()}
        return CompletionCounts(sizes["success"], sizes["fail"], sizes["suspicious"], counts, same)


@dataclass(frozen=True)
class RolloutStep:
    """One step's rollouts: `mean_score` as logged, `differs`: logged scores that the reward file does not give now.

    `torn`: its last line is half written, and left out.
    """

    step: str
    mean_score: float
    differs: int
    counts: CompletionCounts
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
    """Write `step_<n>_{success,fail,suspicious}.jsonl` for each dump of `source` into the folder `target`.

    Args:
        reward: scores again; None takes the logged score.
        data_source: what the reward gets as data source where the dump does not hold it.
    """
    with whole_folder(target) as folder:
        return [_split(read_dump(file), folder, reward, data_source) for file in rollout_files(source)]


def _split(dump: Dump, folder: Path, reward: Reward | None, data_source: str) -> RolloutStep:
    log = CompletionLog(folder, f"step_{dump.file.stem}")
    differs = 0
    for group in dump.groups.values():
        scores = [_score(response, reward, data_source, str(dump.file)) for response in group]
        differs += sum(abs(each.score - score.value) > SAME_SCORE for each, score in zip(group, scores, strict=True))
        first = group[0]
        shared = {"step": first.line.get("step"), "row_id": first.row_id}
        own = [{"uid": each.line.get("uid")} for each in group]
        log.add_group(first.prompt, first.truth, [each.text for each in group], scores, shared=shared, own=own)
    mean = sum(response.score for response in dump.responses) / len(dump.responses)
    return RolloutStep(dump.file.stem, mean, differs, log.close(), dump.torn)


def _score(response: Response, reward: Reward | None, data_source: str, where: str) -> Score:
    if reward is not None:
        return reward.score_raw(response.data_source or data_source, response.text, response.truth, {})
    known = {key: response.line[key] for key in ("score", "accuracy", "acc", "reason") if key in response.line}
    return as_score(known, where)
