"""Sweeps: arms around the recipe times seeds. A finished trial is kept on disk, so an interrupted sweep goes on.

A trial is known by the digest of everything that decides its result. Arms that come to the same settings share it, and
a trial of settings that have changed since does not count.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from recipes.config.layers import flatten
from recipes.errors import RecipeError
from recipes.pointer_selector.config import GrpoConfig, PointerRecipe, changed

Changes = Mapping[str, Any]
Result = dict[str, Any]
"""What `run` keeps of a trial: accuracies, the epochs' curves, processor seconds, and every key's value."""
FREE = (
    "name", "trainer.experiment_name", "trainer.logger", "trainer.project_name", "trainer.device", "trainer.threads",
)  # fmt: skip
"""Keys that decide no result."""
CURVES = (
    "actor/rce_loss", "actor/rce_tau", "actor/pg_loss", "actor/kl_loss", "actor/kl_coef", "actor/pg_clipfrac",
    "actor/entropy", "actor/ratio_max", "critic/advantages/std", "critic/silent_groups",
    "val-aux/pointer_selector/kl_on_policy", "val-core/pointer_selector/accuracy/mean",
    "train-core/pointer_selector/accuracy/mean",
)  # fmt: skip
"""The metrics of an epoch that a result keeps."""


RCE_ALONE: Changes = {"rce.epochs": 15, "grpo.epochs": 0}
SOFT: Changes = {"rce.lr": 3e-4, "rce.tau_start": 0.5, "rce.tau_end": 0.1}
SHARP: Changes = {"rce.lr": 1e-3, "rce.tau_start": 0.02, "rce.tau_end": 0.005}
MAIN: dict[str, Changes] = {
    "main/recipe": {},
    "main/GRPO alone": {"rce.epochs": 0, "grpo.epochs": 15},
    "main/soft RCE, then GRPO": {**SOFT, "rce.epochs": 5, "grpo.epochs": 10},
    "main/RCE alone, tau 0.5 to 0.1": {**RCE_ALONE, **SOFT},
    "main/RCE alone, tau 0.05 to 0.02": {**RCE_ALONE, **SHARP, "rce.tau_start": 0.05, "rce.tau_end": 0.02},
    "main/RCE alone, tau 0.02 to 0.005": {**RCE_ALONE, **SHARP},
    "main/RCE alone, tau 0.01": {**RCE_ALONE, **SHARP, "rce.tau_start": 0.01, "rce.tau_end": 0.01},
    "main/5 epochs of soft RCE": {**SOFT, "rce.epochs": 5, "grpo.epochs": 0},
    "main/5 epochs of sharp RCE": {**SHARP, "rce.epochs": 5, "grpo.epochs": 0},
}
"""The phases against each other, for 15 epochs in all; and the warm-ups by themselves."""

REPORTED: Changes = {
    "rce.tau_start": 2.0,
    "rce.tau_end": 0.5,
    "reward.mode": "combined",
    "grpo.level": "sequence",
    "grpo.advantage": "zscore",
    "grpo.kl.over": "logged",
    "trainer.early_stop_patience": 0,
}
"""What the settings that the method is usually reported with have in common."""
LONG: Changes = {
    **REPORTED,
    "rce.epochs": 25,
    "grpo.epochs": 25,
    "data.batch_size": 1,
    "rce.lr": 5e-4,
    "grpo.lr": 5e-6,
    "grpo.kl.beta": 0.3,
    "reward.alpha": 0.2,
    "reward.beta": 1.0,
}
SHORT: Changes = {**LONG, "rce.epochs": 3, "grpo.epochs": 8}
SHORT_SOFT: Changes = {**SHORT, "reward.alpha": 0.5, "reward.beta": 0.8}
SLOW: Changes = {"data.batch_size": 4, "rce.lr": 1e-5, "grpo.lr": 1e-5}
REPORTED_ARMS: dict[str, Changes] = {
    "reported/25+25 epochs, before": LONG,
    "reported/3+8 epochs, nothing else": SHORT,
    "reported/3+8 epochs, after": SHORT_SOFT,
    "reported/3+8 epochs, rates 1e-5, batch 4, KL 0.1": {**SHORT_SOFT, **SLOW, "grpo.kl.beta": 0.1},
    "reported/10+15 epochs, plan 1": {
        **REPORTED,
        **SLOW,
        "rce.epochs": 10,
        "grpo.epochs": 15,
        "grpo.kl.beta": 0.05,
        "reward.alpha": 0.3,
        "reward.beta": 1.0,
        "trainer.early_stop_patience": 3,
    },
    **{f"reported/25+25 epochs, {count} queries": {**LONG, "data.train_queries": count} for count in (100, 400)},
    "reported/25 epochs of RCE alone": {**LONG, "grpo.epochs": 0},
    "reported/3 epochs of RCE alone": {**SHORT, "grpo.epochs": 0},
}
FACTORS: dict[str, Changes] = {
    **{f"queries/{count}": {"data.train_queries": count} for count in (100, 200, 400)},
    **{f"GRPO lr/{rate:g}": {"grpo.lr": rate} for rate in (5e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3)},
    **{f"RCE lr/{rate:g}": {**RCE_ALONE, **SHARP, "rce.lr": rate} for rate in (1e-5, 1e-4, 5e-4, 1e-3)},
    **{f"batch/{size}": {"data.batch_size": size} for size in (1, 4, 16, 64)},
    **{f"epochs/{count}": {"grpo.epochs": count} for count in (5, 8, 15, 25)},
    "reward/probability": {"reward.mode": "probability", "reward.alpha": 1.0},
    "reward/correctness": {"reward.mode": "correctness"},
    "reward/hard_soft": {"reward.mode": "hard_soft", "reward.alpha": 1.0, "reward.beta": 1.0},
    "reward/separated": {"reward.mode": "separated", "reward.alpha": 1.0, "reward.beta": 1.0},
    **{
        f"reward/combined {alpha:g} and {beta:g}": {
            "reward.mode": "combined",
            "reward.alpha": alpha,
            "reward.beta": beta,
        }
        for alpha, beta in ((0.2, 1.0), (0.3, 1.0), (0.5, 0.8))
    },
    "reward/quality": {"reward.mode": "quality", "reward.alpha": 1.0},
    **{f"KL/{beta:g}": {"grpo.kl.over": "policy", "grpo.kl.beta": beta} for beta in (0, 0.05, 0.1, 0.2, 0.3)},
    "KL/0.1 over logged": {"grpo.kl.over": "logged", "grpo.kl.beta": 0.1},
    "KL/adaptive": {"grpo.kl.over": "policy", "grpo.kl.beta": 0.1, "grpo.kl.adaptive": True},
    "top-k/3 early, 5 late": {"grpo.curriculum.early_share": 0.34, "grpo.curriculum.late_candidates": 5},
    "top-k/3 early, all late": {"grpo.curriculum.early_share": 0.34},
    **{f"advantage/{kind}": {"grpo.advantage": kind} for kind in ("zscore", "rank", "mean")},
    **{f"ratio/{level}": {"grpo.level": level} for level in ("sequence", "step")},
    "backbone/frozen in GRPO": {"grpo.freeze_backbone": True},
    **{f"layers/{count}": {"policy.layers": count} for count in (1, 2, 3)},
    "start/random": {"policy.start": "random"},
}
SUPERVISED: Changes = {
    "reward.mode": "quality",
    "reward.alpha": 1.0,
    "rce.epochs": 5,
    "rce.lr": 1e-4,
    "rce.tau_start": 0.05,
    "rce.tau_end": 0.05,
    "grpo.epochs": 0,
}
"""Supervised training: cross-entropy on the candidates that the retriever scores highest, whatever came of them."""
FROM_SUPERVISED: dict[str, Changes] = {
    "from supervised/RCE, lr 1e-05": {**RCE_ALONE, **SHARP, "rce.lr": 1e-5},
    "from supervised/RCE, lr 0.001": {**RCE_ALONE, **SHARP},
    "from supervised/GRPO": {"rce.epochs": 0, "grpo.epochs": 15},
}


@dataclass(frozen=True)
class Trial:
    """One arm with one seed, or the part of one that another starts from; `start` is the one that it begins with."""

    recipe: PointerRecipe
    start: Trial | None = None

    def with_seed(self, seed: int) -> Trial:
        return Trial(changed(self.recipe, {"trainer.seed": seed}), self.start and self.start.with_seed(seed))

    @cached_property
    def digest(self) -> str:
        """A short name for everything that decides the result; the keys of a phase without epochs decide nothing."""
        epochs = {"rce.": self.recipe.rce.epochs, "grpo.": self.recipe.grpo.epochs}
        free = (*FREE, *(phase for phase, count in epochs.items() if not count))
        keys = {path: v for path, v in flatten(self.recipe.model_dump()).items() if not path.startswith(free)}
        keys["start"] = self.start.digest if self.start else None
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def before(self) -> Trial | None:
        """The trial that this one begins with: its warm-up, which arms that differ in GRPO only share, or its start."""
        if not (self.recipe.rce.epochs and self.recipe.grpo.epochs):
            return self.start
        defaults = {f"grpo.{path}": value for path, value in flatten(GrpoConfig().model_dump()).items()}
        return Trial(changed(self.recipe, {**defaults, "grpo.epochs": 0}), self.start)


def arms(recipe: PointerRecipe, only: str = "*") -> dict[str, Trial]:
    """The arms around a recipe whose name fits `only` (patterns with `|` between them), the most wanted first."""
    changes = {**MAIN, **REPORTED_ARMS, **FACTORS, "supervised/alone": SUPERVISED, **FROM_SUPERVISED}
    chosen = [name for name in changes if any(fnmatch(name, pattern) for pattern in only.split("|"))]
    if not chosen:
        raise RecipeError(f"no arm fits {only!r}", where="--only", fix=f"for instance {', '.join(list(changes)[:6])}")
    supervised = Trial(changed(recipe, SUPERVISED))
    return {n: Trial(changed(recipe, changes[n]), supervised if n in FROM_SUPERVISED else None) for n in chosen}


def result_of(trial: Trial, folder: Path) -> Result | None:
    """The result of a trial that is finished, or None."""
    path = folder / trial.digest / "result.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def run(trial: Trial, folder: Path) -> Result:
    """The result of a trial, which is trained where it is not finished, and so is what it begins with.

    One that was interrupted goes on from its last checkpoint. Another process that runs the same trial is waited for.
    """
    target, before = folder / trial.digest, trial.before
    if before:
        run(before, folder)
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = result_of(trial, folder)
        if result is None:
            result = _train(trial, folder)
            partial = target / ".partial_result"
            partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            os.replace(partial, target / "result.json")
    return result


def _train(trial: Trial, folder: Path) -> Result:
    from recipes.pointer_selector.checkpoints import load_policy
    from recipes.pointer_selector.evaluation import measure
    from recipes.pointer_selector.policy import choose_device, use_threads
    from recipes.pointer_selector.training import EpochReport, Trainer

    recipe, target = trial.recipe, folder / trial.digest
    if trial.before:
        both = recipe.rce.epochs and recipe.grpo.epochs
        key = "trainer.warm_up_from" if both else "trainer.start_from"
        recipe = changed(recipe, {key: str(folder / trial.before.digest)})
    use_threads(recipe.trainer.threads)
    prepared = _prepared(json.dumps([recipe.data.model_dump(), recipe.workload.model_dump()]))
    epochs: list[dict[str, Any]] = []

    def keep(report: EpochReport) -> None:
        numbers = {name: round(report.metrics[name], 6) for name in CURVES if name in report.metrics}
        epochs.append({"phase": report.phase, "epoch": report.epoch, **numbers})

    started, cpu = time.perf_counter(), time.process_time()
    device = choose_device(recipe.trainer.device)
    trainer = Trainer(recipe, prepared.parts, prepared.model, target, [], keep, device)
    progress = trainer.run()
    spent = {"seconds": round(time.perf_counter() - started, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}

    def accuracy(policy: Any, part: str) -> dict[str, float]:
        results = measure(policy, prepared.parts[part], prepared.model, recipe.validation.shots)
        return {str(shots): result.mean("accuracy") for shots, result in results.items()}

    best = load_policy(target)[0].to(device)
    return {
        "seed": recipe.trainer.seed,
        "best": {"phase": progress.best.phase, "epoch": progress.best.epoch, "value": progress.best.value},
        "ends": progress.ends,
        "validation": accuracy(best, "validation"),
        "test": accuracy(best, "test"),
        "test_of_last_epoch": accuracy(trainer.policy.eval(), "test"),
        "epochs": epochs,
        **spent,
        "values": flatten(trial.recipe.model_dump()),
    }


@cache
def _prepared(data: str) -> Any:
    """The data of a recipe, read once a process."""
    from recipes.pointer_selector.preparation import prepare

    values, workload = json.loads(data)
    return prepare(PointerRecipe.model_validate({"data": values, "workload": workload}))


def run_missing(trials: Mapping[str, Trial], folder: Path, jobs: int) -> Iterator[tuple[str, Result]]:
    """(name, result) of each trial that is not finished, as they end; `jobs` processes at once, 0: in this one."""
    missing = {trial.digest: (name, trial) for name, trial in trials.items() if result_of(trial, folder) is None}
    if jobs == 0:
        for name, trial in missing.values():
            yield name, run(trial, folder)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run, trial, folder): name for name, trial in missing.values()}
        for future in as_completed(futures):
            yield futures[future], future.result()


def results(arms: Mapping[str, Trial], seeds: Sequence[int], folder: Path) -> dict[str, list[Result]]:
    """Finished trials of each arm, one a seed; arms without any are left out."""
    by_arm = {name: [result_of(arm.with_seed(seed), folder) for seed in seeds] for name, arm in arms.items()}
    finished = {name: [result for result in each if result is not None] for name, each in by_arm.items()}
    return {name: each for name, each in finished.items() if each}
