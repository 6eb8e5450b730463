"""What an evaluation is to do, checked before anything is done."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.cache import evaluations, hash_file
from recipes.evaluation.models import Subject
from recipes.evaluation.sampling import Sampling
from recipes.evaluation.sampling.vllm_engine import Engine
from recipes.evaluation.scoring import Reward


@dataclass(frozen=True)
class Plan:
    """One evaluation.

    Attributes:
        task: names the folder of the reports.
        subjects: one model, or base and trained in that order.
        data: parquet file; `limit` rows of it, the first ones or with `sample_seed` random ones.
        reward: scores the responses.
        sampled, greedy: the passes; `greedy` is None for the signal probe.
        batch: prompts per training step, for the probe's effective batch.
        filter_out: where the probe writes the rows that give a signal.
        output: folder of the report; None: artifacts/evaluations/<task>/<name>.
        overwrite: replace what lies at `output` and `filter_out`.
        fresh: throw cached responses away. `shown`: samples in the report at most.
    """

    task: str
    subjects: tuple[Subject, ...]
    data: Path
    reward: Reward
    sampled: Sampling
    greedy: Sampling | None
    limit: int | None = None
    sample_seed: int | None = None
    batch: int | None = None
    engine: Engine = field(default_factory=Engine)
    filter_out: Path | None = None
    output: Path | None = None
    overwrite: bool = False
    fresh: bool = False
    shown: int = 200

    def __post_init__(self) -> None:
        if self.kind == "analyse" and self.sampled.n == 1:
            raise RecipeError(
                "analyse compares the answers of a group, and --rollout_n 1 makes groups of one",
                where="--rollout_n",
                fix="use the n of training, such as 16; 2 is the least",
            )
        if self.filter_out is None:
            return
        if self.kind != "analyse":
            raise RecipeError("--filter_out needs the signal probe", where="--filter_out", fix="add the word analyse")
        if self.filter_out.resolve() == self.data.resolve():
            raise RecipeError("--filter_out is the data itself", where="--filter_out", fix="name another file")
        if self.filter_out.exists() and not self.overwrite:
            raise RecipeError(
                f"{self.filter_out} exists", where="--filter_out", fix="name another file, or add --overwrite"
            )

    @property
    def kind(self) -> str:
        """ "analyse", "evaluation" or "comparison"."""
        if self.greedy is None:
            return "analyse"
        return "comparison" if len(self.subjects) == 2 else "evaluation"


def identity(plan: Plan, questions: int) -> dict[str, Any]:
    """Everything that decides the figures of a report."""
    return {
        "kind": plan.kind,
        "models": {subject.label: subject.model_hash for subject in plan.subjects},
        "data": {"path": str(plan.data), "sha256": hash_file(plan.data), "questions": questions},
        "limit": plan.limit,
        "sample_seed": plan.sample_seed,
        "reward": {"path": str(plan.reward.path), "sha256": plan.reward.sha256, "arguments": plan.reward.arguments},
        "sampled": plan.sampled.as_dict(),
        "greedy": plan.greedy.as_dict() if plan.greedy else None,
        "engine": plan.engine.generator,
        "batch": plan.batch,
    }


def target_folder(plan: Plan, identity: dict[str, Any]) -> Path:
    """The report's folder. The same evaluation takes the same one again; what is something else is not overwritten."""
    if plan.output is None:
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", plan.subjects[-1].name).strip("-")
        return evaluations() / plan.task / f"{plan.kind}-{slug}-{key}"
    if plan.overwrite or not plan.output.exists() or not any(plan.output.iterdir()):
        return plan.output
    report = plan.output / "report.json"
    if not report.is_file() or json.loads(report.read_text(encoding="utf-8")).get("identity") != identity:
        raise RecipeError(
            f"{plan.output} holds something else", where="--output_dir", fix="name another folder, or add --overwrite"
        )
    return plan.output
