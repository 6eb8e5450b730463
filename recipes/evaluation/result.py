"""A finished evaluation: its figures, and everything that decides them. report.json is the fields of `Result`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.evaluation.comparison import Comparison, Headline
from recipes.evaluation.completions import CompletionCounts
from recipes.evaluation.metrics import PassSummary, QuestionStats
from recipes.evaluation.probe import Filtered, Probe
from recipes.evaluation.sampling import Group, Sampling
from recipes.evaluation.scoring import Score


@dataclass(frozen=True)
class DataIdentity:
    """The data file, and how many of its questions were asked."""

    path: str
    sha256: str
    questions: int


@dataclass(frozen=True)
class RewardIdentity:
    """The reward file with its keyword arguments."""

    path: str
    sha256: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Identity:
    """Everything that decides the figures of a report; two evaluations with equal identities have equal figures.

    Attributes:
        kind: "analyse", "evaluation" or "comparison".
        models: label -> hash of the model's files.
        limit, sample_seed: the rows that were chosen.
        sampled, greedy: the passes.
        engine: the generators with what changes their answers.
        batch: prompts a training step, for the probe.
    """

    kind: str
    models: dict[str, str]
    data: DataIdentity
    limit: int | None
    sample_seed: int | None
    reward: RewardIdentity
    sampled: Sampling
    greedy: Sampling | None
    engine: str
    batch: int | None


@dataclass(frozen=True)
class MadeBy:
    """The command, the commit, the time in UTC, and the versions of the packages that took part."""

    command: str
    commit: str
    time: str
    versions: dict[str, str]


@dataclass(frozen=True)
class ModelResult:
    """A model with its passes; `completions` counts what each pass's log holds."""

    name: str
    asked: str
    hash: str
    generator: str
    source: str
    note: str
    passes: dict[str, PassSummary]
    completions: dict[str, CompletionCounts]


@dataclass(frozen=True)
class Result:
    """A finished evaluation.

    Attributes:
        kind: "analyse", "evaluation" or "comparison".
        generated: pass -> questions that were not in the cache.
        models: by label: "model", or "base" and "trained"; their passes by "greedy" and "sampled".
        headline: the one sentence at the top.
        probe, filtered: of the signal probe; `comparison`: of two models.
        seconds: stage -> seconds.
    """

    kind: str
    task: str
    identity: Identity
    made_by: MadeBy
    generated: dict[str, int]
    models: dict[str, ModelResult]
    headline: Headline
    probe: Probe | None
    comparison: Comparison | None
    filtered: Filtered | None
    seconds: dict[str, float]


@dataclass(frozen=True)
class Scored:
    """One question's responses with scores and figures."""

    group: Group
    scores: list[Score]
    stats: QuestionStats
