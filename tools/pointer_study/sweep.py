"""Sweeps: arms around the recipe times seeds. A finished trial is kept on disk, so an interrupted sweep goes on.

A trial is known by the digest of everything that decides its result. Arms that come to the same settings share it, and
a trial of settings that have changed since does not count.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from recipes.config.layers import flatten, read
from recipes.errors import RecipeError
from recipes.files import sha256, write_whole
from recipes.pointer_selector import selector
from recipes.pointer_selector.config import FOLDER, PointerRecipe, changed
from recipes.pointer_selector.evaluation import measure
from recipes.pointer_selector.policy import PointerPolicy, choose_device, use_threads
from recipes.pointer_selector.preparation import Prepared, prepare
from recipes.pointer_selector.training import FREE, EpochReport, Trainer

ARMS = Path(__file__).with_name("arms.yaml")
CURVES = (
    "actor/rce_loss", "actor/rce_tau", "actor/pg_loss", "actor/kl_loss", "actor/kl_coef", "actor/pg_clipfrac",
    "actor/entropy", "actor/ratio_max", "critic/advantages/std", "critic/equal_groups",
    "val-aux/pointer_selector/kl_on_policy", "val-core/pointer_selector/accuracy/mean",
    "train-core/pointer_selector/accuracy/mean",
)  # fmt: skip
"""The metrics of an epoch that a result keeps."""


@dataclass(frozen=True)
class TrialResult:
    """Hold the accuracies of a trial by number of shots, its epochs' metrics, and what it cost."""

    seed: int
    best: str  # phase and epoch
    ends: dict[str, str]
    validation: dict[str, float]
    test: dict[str, float]
    test_of_last_epoch: dict[str, float]
    epochs: list[dict[str, Any]]
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Trial:
    """Hold one arm with one seed; `start` is the trial whose weights it begins with."""

    recipe: PointerRecipe
    start: Trial | None = None

    def with_seed(self, seed: int) -> Trial:
        """Return the same arm with another seed, its start included."""
        return Trial(changed(self.recipe, {"trainer.seed": seed}), self.start and self.start.with_seed(seed))

    @cached_property
    def digest(self) -> str:
        """Return a short name for everything that decides the result; a phase without epochs decides nothing."""
        epochs = {"rce.": self.recipe.rce.epochs, "grpo.": self.recipe.grpo.epochs}
        free = (*FREE, *(phase for phase, count in epochs.items() if not count))
        keys = {path: v for path, v in flatten(self.recipe.model_dump()).items() if not path.startswith(free)}
        data = self.recipe.data
        files = (data.candidates, data.query_embeddings, data.candidate_embeddings)
        keys["files"] = [sha256(Path(file)) for file in files if file]
        keys["start"] = self.start.digest if self.start else None
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]


def arms(recipe: PointerRecipe, only: str = "*") -> dict[str, Trial]:
    """Return the arms of arms.yaml around a recipe whose name fits `only`, patterns with `|` between them."""
    known = read(ARMS)
    chosen = [name for name in known if any(fnmatch(name, pattern) for pattern in only.split("|"))]
    if not chosen:
        raise RecipeError(f"no arm fits {only!r}", where="--only", fix=f"for instance {', '.join(list(known)[:6])}")

    def trial(name: str) -> Trial:
        changes = dict(known[name])
        start, preset = changes.pop("start", None), changes.pop("preset", None)
        first = flatten(read(FOLDER / f"{preset}.yaml")) if preset else {}
        return Trial(changed(recipe, {**first, **changes}), trial(start) if start else None)

    return {name: trial(name) for name in chosen}


def result_of(trial: Trial, folder: Path) -> TrialResult | None:
    """Return the result of a trial that is finished, or None."""
    path = folder / trial.digest / "result.json"
    return TrialResult(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def run(trial: Trial, folder: Path) -> TrialResult:
    """Train a trial, after the one it starts from; one that was interrupted goes on from its last checkpoint."""
    if trial.start and result_of(trial.start, folder) is None:
        run(trial.start, folder)
    recipe, target = trial.recipe, folder / trial.digest
    if trial.start:
        recipe = changed(recipe, {"trainer.start_from": str(folder / trial.start.digest / selector.BEST)})
    use_threads(recipe.trainer.threads)
    prepared = _prepared(json.dumps([recipe.data.model_dump(), recipe.workload.model_dump()]))
    epochs: list[dict[str, Any]] = []

    def keep(report: EpochReport) -> None:
        numbers = {name: round(report.metrics[name], 6) for name in CURVES if name in report.metrics}
        epochs.append({"phase": report.phase, "epoch": report.epoch, **numbers})

    started, cpu = time.perf_counter(), time.process_time()
    device = choose_device(recipe.trainer.device)
    trainer = Trainer(recipe, prepared, target, device)
    trainer.on_epoch = keep
    best = trainer.run().require_best()
    seconds, cpu_seconds = round(time.perf_counter() - started, 1), round(time.process_time() - cpu, 1)

    def accuracy(policy: PointerPolicy, part: str) -> dict[str, float]:
        results = measure(policy, prepared.parts[part], prepared.model, recipe.validation.shots)
        return {str(shots): result.accuracy for shots, result in results.items()}

    chosen = selector.load(target)[0].to(device)
    result = TrialResult(
        seed=recipe.trainer.seed,
        best=f"{best.phase} {best.epoch}",
        ends=trainer.progress.ends,
        validation=accuracy(chosen, "validation"),
        test=accuracy(chosen, "test"),
        test_of_last_epoch=accuracy(trainer.policy.eval(), "test"),
        epochs=epochs,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
    )
    write_whole(target / "result.json", json.dumps(asdict(result), indent=1) + "\n")
    return result


@cache
def _prepared(data: str) -> Prepared:
    """Return the data of a recipe, read once a process."""
    values, workload = json.loads(data)
    return prepare(PointerRecipe.model_validate({"data": values, "workload": workload}))


def run_missing(trials: Mapping[str, Trial], folder: Path, jobs: int) -> Iterator[tuple[str, TrialResult]]:
    """Yield each trial that is not finished, as they end; `jobs` processes at once, 0: in this one."""
    starts = {f"start of {name}": trial.start for name, trial in trials.items() if trial.start}
    for stage in (starts, trials):  # what several trials begin with is trained once, before them
        missing = {t.digest: (name, t) for name, t in stage.items() if result_of(t, folder) is None}
        yield from _run_all(missing.values(), folder, jobs)


def _run_all(trials: Iterable[tuple[str, Trial]], folder: Path, jobs: int) -> Iterator[tuple[str, TrialResult]]:
    if jobs == 0:
        yield from ((name, run(trial, folder)) for name, trial in trials)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run, trial, folder): name for name, trial in trials}
        for future in as_completed(futures):
            yield futures[future], future.result()


def results(arms: Mapping[str, Trial], seeds: Sequence[int], folder: Path) -> dict[str, list[TrialResult]]:
    """Return the finished trials of each arm, one a seed; arms without any are left out."""
    by_arm = {name: [result_of(arm.with_seed(seed), folder) for seed in seeds] for name, arm in arms.items()}
    finished = {name: [result for result in each if result is not None] for name, each in by_arm.items()}
    return {name: each for name, each in finished.items() if each}
