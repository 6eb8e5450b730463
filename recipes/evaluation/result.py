"""A finished evaluation: its figures, and everything that decides them. report.json is the fields of `Result`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.errors import counted
from recipes.evaluation.comparison import Comparison, Headline
from recipes.evaluation.metrics import PassSummary
from recipes.evaluation.probe import Filtered, Probe


@dataclass(frozen=True)
class ModelResult:
    """A model with its passes, "greedy" and "sampled"; the other fields are those of its `Subject`."""

    name: str
    asked: str
    hash: str
    generator: str
    source: str
    note: str
    passes: dict[str, PassSummary]


@dataclass(frozen=True)
class Result:
    """A finished evaluation.

    Attributes:
        kind: "analyse", "evaluation" or "comparison".
        identity: everything that decides the figures, see `EvaluationPlan.identity`.
        made_by: command, commit, time in UTC, and the versions of the packages that took part.
        generated: pass -> questions that were not in the cache.
        models: by label: "model", or "base" and "trained".
        headline: the one sentence at the top.
        probe, filtered: of the signal probe; `comparison`: of two models.
        seconds: stage -> seconds.
    """

    kind: str
    task: str
    identity: dict[str, Any]
    made_by: dict[str, Any]
    generated: dict[str, int]
    models: dict[str, ModelResult]
    headline: Headline
    probe: Probe | None
    comparison: Comparison | None
    filtered: Filtered | None
    seconds: dict[str, float]

    @property
    def sampled(self) -> PassSummary:
        """The sampled pass of the first model."""
        return next(iter(self.models.values())).passes["sampled"]

    @property
    def asked(self) -> str:
        """The number of questions, and of different ones where some repeat."""
        count, different = self.sampled.questions, self.sampled.different
        return counted(count, "question") + ("" if different == count else f", {different:,} of them different")

    @property
    def scored(self) -> bool:
        """Return whether the score is the measure, since the reward states no accuracy."""
        return any(summary.measure == "score" for model in self.models.values() for summary in model.passes.values())

    @property
    def failures(self) -> list[tuple[str, int, str]]:
        """Of each pass in which the reward failed: its name, the number of responses, and the first error."""
        return [
            (f"{label}, {name}", summary.failures, summary.first_failure)
            for label, model in self.models.items()
            for name, summary in model.passes.items()
            if summary.failures
        ]
