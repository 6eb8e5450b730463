"""Sweeps: arms around the recipe times seeds. A finished trial is kept on disk, so an interrupted sweep goes on.

A trial is known by the digest of everything that decides its result. Arms that come to the same settings share it, and
a trial of settings that have changed since does not count.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
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


# --- arms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """One setting of the sweep.

    Attributes:
        name: `<factor>/<value>`.
        recipe: everything resolved but the seed.
        start: the recipe whose checkpoint this one begins with, or None.
    """

    name: str
    recipe: PointerRecipe
    start: PointerRecipe | None = None


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


def arms(recipe: PointerRecipe, only: str = "*") -> list[Arm]:
    """The arms around a recipe whose name fits `only` (patterns with `|` between them), the most wanted first."""
    changes = {**MAIN, **REPORTED_ARMS, **FACTORS, "supervised/alone": SUPERVISED, **FROM_SUPERVISED}
    chosen = [name for name in changes if any(fnmatch(name, pattern) for pattern in only.split("|"))]
    if not chosen:
        raise RecipeError(f"no arm fits {only!r}", where="--only", fix=f"for instance {', '.join(list(changes)[:6])}")
    supervised = changed(recipe, SUPERVISED)
    return [Arm(n, changed(recipe, changes[n]), supervised if n in FROM_SUPERVISED else None) for n in chosen]


# --- trials ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One arm with one seed, or the part of one that another starts from."""

    recipe: PointerRecipe
    start: Trial | None = None

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

    @property
    def chain(self) -> list[Trial]:
        """Everything that has to run, in order; this trial last."""
        return [*(self.before.chain if self.before else []), self]

    def result(self, folder: Path) -> dict[str, Any] | None:
        """What `run` measured, or None."""
        path = folder / self.digest / "result.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def trial(arm: Arm, seed: int) -> Trial:
    """An arm with a seed."""
    start = arm.start and Trial(changed(arm.start, {"trainer.seed": seed}))
    return Trial(changed(arm.recipe, {"trainer.seed": seed}), start)


def run(one: Trial, folder: Path, deadline: float = float("inf")) -> dict[str, Any] | None:
    """Train and measure on validation and test; keeps the result in `folder`. None where the deadline is past.

    A trial that was interrupted goes on from its last checkpoint.
    """
    from recipes.pointer_selector.checkpoints import load_policy
    from recipes.pointer_selector.evaluation import measure
    from recipes.pointer_selector.metrics import Sinks
    from recipes.pointer_selector.policy import choose_device, use_threads
    from recipes.pointer_selector.training import EpochReport, Trainer

    if time.time() > deadline:
        return None
    recipe, target, before = one.recipe, folder / one.digest, one.before
    if before:
        both = recipe.rce.epochs and recipe.grpo.epochs
        key = "trainer.warm_up_from" if both else "trainer.start_from"
        recipe = changed(recipe, {key: str(folder / before.digest)})
    use_threads(recipe.trainer.threads)
    prepared = _prepared(json.dumps([recipe.data.model_dump(), recipe.workload.model_dump()]))
    epochs: list[dict[str, Any]] = []

    def keep(report: EpochReport) -> None:
        numbers = {name: round(report.metrics[name], 6) for name in CURVES if name in report.metrics}
        epochs.append({"phase": report.phase, "epoch": report.epoch, **numbers})

    started, cpu = time.perf_counter(), time.process_time()
    device = choose_device(recipe.trainer.device)
    trainer = Trainer(recipe, prepared.parts, prepared.model, target, Sinks([]), keep, device)
    progress = trainer.run()
    spent = {"seconds": round(time.perf_counter() - started, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}

    def accuracy(policy: Any, part: str) -> dict[str, float]:
        results = measure(policy, prepared.parts[part], prepared.model, recipe.validation.shots)
        return {str(shots): result.mean("accuracy") for shots, result in results.items()}

    best = load_policy(target)[0].to(device)
    result = {
        "seed": recipe.trainer.seed,
        "best": {"phase": progress.best.phase, "epoch": progress.best.epoch, "value": progress.best.value},
        "ends": progress.ends,
        "validation": accuracy(best, "validation"),
        "test": accuracy(best, "test"),
        "test_of_last_epoch": accuracy(trainer.policy.eval(), "test"),
        "epochs": epochs,
        **spent,
        "values": flatten(one.recipe.model_dump()),
    }
    partial = target / ".partial_result"
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, target / "result.json")
    return result


@cache
def _prepared(data: str) -> Any:
    """The data of a recipe, read once a process."""
    from recipes.pointer_selector.preparation import prepare

    values, workload = json.loads(data)
    return prepare(PointerRecipe.model_validate({"data": values, "workload": workload}))


# --- many trials ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workers:
    """How a sweep runs: processes (0: in this one), how many of them may use the GPU, for how long."""

    jobs: int
    gpu_jobs: int
    seconds: float = float("inf")


def sweep(
    trials: Sequence[tuple[str, Trial]],
    folder: Path,
    workers: Workers,
    on_result: Callable[[str, dict[str, Any], int], None],
) -> int:
    """Run the trials that are missing, each once for all that share it; returns how many are left.

    What others start from runs first: supervised training, then warm-ups, then the rest.

    Args:
        trials: (name for messages, trial), the most wanted first.
        folder: where results and checkpoints go.
        workers: how much at once, and for how long.
        on_result: called with name, result and number of trials left, after each trial.
    """
    missing: dict[str, tuple[int, str, Trial]] = {}
    for name, last in trials:
        for depth, one in enumerate(last.chain):
            if one.result(folder) is None:
                label = name if one is last else f"{name}, what it starts from"
                missing[one.digest] = missing.get(one.digest) or (depth, label, one)
    deadline = time.time() + workers.seconds
    for depth in sorted({depth for depth, *_ in missing.values()}):
        level = {digest: (label, one) for digest, (at, label, one) in missing.items() if at == depth}
        for digest, result in _run_all(level, folder, workers, deadline):
            del missing[digest]
            on_result(level[digest][0], result, len(missing))
    return len(missing)


def _run_all(level: dict[str, tuple[str, Trial]], folder: Path, workers: Workers, deadline: float):
    """(digest, result) of each trial that ran before the deadline, as they finish."""
    ready = {d: one for d, (_, one) in level.items() if one.before is None or one.before.result(folder)}
    if workers.jobs == 0:
        for digest, one in ready.items():
            if (result := run(one, folder, deadline)) is not None:
                yield digest, result
        return
    context = multiprocessing.get_context("spawn")
    tickets = (context.Value("i", 0), workers.gpu_jobs)
    with ProcessPoolExecutor(workers.jobs, context, _start_worker, tickets) as pool:
        futures = {pool.submit(run, one, folder, deadline): digest for digest, one in ready.items()}
        for future in as_completed(futures):
            if (result := future.result()) is not None:
                yield futures[future], result


def _start_worker(tickets: Any, gpu_jobs: int) -> None:
    """The first `gpu_jobs` workers keep the GPU, the others do not see it; must run before CUDA is touched."""
    with tickets.get_lock():
        number, tickets.value = tickets.value, tickets.value + 1
    if number >= gpu_jobs:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def results(arms: Sequence[Arm], seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Finished trials of each arm, one a seed; arms without any are left out."""
    by_arm = {arm.name: [trial(arm, seed).result(folder) for seed in seeds] for arm in arms}
    finished = {name: [entry for entry in entries if entry is not None] for name, entries in by_arm.items()}
    return {name: entries for name, entries in finished.items() if entries}
