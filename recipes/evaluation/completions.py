"""Logs of what a model wrote: `<name>_success.jsonl` and `<name>_fail.jsonl`, of evaluations and training."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from recipes.evaluation.records import JsonLines
from recipes.evaluation.scoring import Score
from recipes.evaluation.suspicious import RULES, SAME_ANSWER, SameAnswer


class CompletionLog:
    """Sorts responses into success (full marks) and fail, and lists suspicious ones in `<name>_suspicious.jsonl`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files = {kind: JsonLines(folder / f"{name}_{kind}.jsonl") for kind in ("success", "fail", "suspicious")}
        self._flags: Counter[str] = Counter()
        self._same = SameAnswer()

    def add_group(
        self, shared: dict[str, Any], records: list[dict[str, Any]], scores: list[Score], raised: list[list[str]]
    ) -> None:
        """Write one question's responses.

        `shared` is what all have in common and holds `ground_truth`; each record holds `response`; `raised` are the
        suspicious flags of each response.
        """
        for record, score, names in zip(records, scores, raised, strict=True):
            line = shared | record | {"score": score.value, "accuracy": score.accuracy, "reason": score.reason}
            line |= {"parts": score.parts, "suspicious": names}
            self._files["success" if score.full else "fail"].write(line)
            if names:
                self._files["suspicious"].write(line)
            self._flags.update(names)
        rewarded = [record["response"] for record, score in zip(records, scores, strict=True) if score.value > 0]
        self._same.add(shared["ground_truth"], rewarded)

    def close(self) -> dict[str, Any]:
        """Finish the files; `success` and `fail` count responses, `flags` each rule, `same_answer` lists answers."""
        for file in self._files.values():
            file.close()
        same = self._same.found()
        counts = {rule: self._flags[rule] for rule in RULES} | {SAME_ANSWER: len(same)}
        totals = {kind: self._files[kind].count for kind in ("success", "fail", "suspicious")}
        return totals | {"flags": counts, "same_answer": same}
