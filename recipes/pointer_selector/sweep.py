"""Arms times seeds, kept in an Optuna study on disk: a sweep that was interrupted goes on where it was.

A trial is known by the digest of everything that decides its result, so arms that come to the same share it, and a
trial of settings that have changed since does not count.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.pointer_selector import trials
from recipes.pointer_selector.arms import Arm
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.resolve import changed

if TYPE_CHECKING:
    import optuna

STUDY = "pointer_selector"


@dataclass(frozen=True)
class Workers:
    """How a sweep runs: processes of one thread each (0: in this process), how many may use the GPU, how long."""

    jobs: int
    gpu_jobs: int
    seconds: float = float("inf")


def open_study(folder: Path) -> optuna.Study:
    """The study in `folder/study.log`, made if it is not there."""
    try:
        import optuna
    except ImportError as error:
        raise RecipeError("sweeps are kept in Optuna, which is not installed", fix="pip install optuna") from error
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(folder / "study.log")))
    return optuna.create_study(study_name=STUDY, storage=storage, direction="maximize", load_if_exists=True)


def results(study: optuna.Study) -> dict[str, dict[str, Any]]:
    """What `trials.run` measured, with the `seed`, by the trial's digest."""
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return {
        t.user_attrs["digest"]: {**json.loads(t.user_attrs["result"]), "seed": t.user_attrs["seed"]} for t in finished
    }


def of_arms(study: optuna.Study, arms: list[Arm], seeds: dict[str, list[int]]) -> dict[str, list[dict[str, Any]]]:
    """Finished trials of each arm, one a seed; arms without any are left out."""
    found = results(study)
    by_arm = {
        arm.name: [found[d] for seed in seeds[arm.name] if (d := trials.digest(of_seed(arm.recipe, seed))) in found]
        for arm in arms
    }
    return {name: entries for name, entries in by_arm.items() if entries}


def of_seed(recipe: PointerRecipe, seed: int) -> PointerRecipe:
    """The recipe with another seed."""
    return changed(recipe, {"trainer.seed": seed})


def sweep(
    study: optuna.Study,
    recipes: list[tuple[str, PointerRecipe]],
    folder: Path,
    workers: Workers,
    told: Callable[[str, dict[str, Any], int], None],
) -> int:
    """Run the trials that are missing, warm-ups first, each once for all that share it; returns how many are left.

    Args:
        study: where finished trials are kept.
        recipes: (name for messages, resolved recipe with its seed), the most wanted first.
        folder: checkpoints of the trials.
        workers: how much at once, and for how long.
        told: called with name, result and number of trials left, after each trial.
    """
    done = results(study)
    missing: dict[str, tuple[str, PointerRecipe]] = {}
    for name, recipe in recipes:
        if (key := trials.digest(recipe)) not in done:
            missing.setdefault(key, (name, recipe))
    plan = _Plan(study, missing, folder, told)
    until = time.monotonic() + workers.seconds
    with _Here() if workers.jobs == 0 else _processes(workers) as pool:
        while plan.running or (plan.ready() and time.monotonic() < until):
            while len(plan.running) < max(1, workers.jobs) and time.monotonic() < until and plan.start(pool):
                pass
            plan.collect()
    return len(plan.missing)


class _Plan:
    """Which trials run, which can start, and which wait for a warm-up."""

    def __init__(self, study: Any, missing: dict[str, tuple[str, PointerRecipe]], folder: Path, told: Callable) -> None:
        self.study, self.missing, self.folder, self.told = study, missing, folder, told
        self.running: dict[Future, str] = {}
        self.warm: dict[str, dict[str, Any]] = {}
        self.warm_up_of = {key: trials.warm_up_of(recipe) for key, (_, recipe) in missing.items()}
        self.started: set[str] = set()

    def ready(self) -> list[trials.Task]:
        """Tasks that could start now, in order."""
        found = []
        for key, (_, recipe) in self.missing.items():
            warm_up = self.warm_up_of[key]
            first = trials.digest(warm_up)
            if recipe.rce.epochs and recipe.grpo.epochs and first not in self.warm:
                task = self._task(first, warm_up)
            elif recipe.rce.epochs and recipe.grpo.epochs:
                task = self._task(key, changed(recipe, {"trainer.warm_up_from": str(self.folder / first)}))
            else:
                task = self._task(key, recipe if recipe.grpo.epochs else warm_up)
            if Path(task.folder).name not in self.started:
                found.append(task)
        return found

    def start(self, pool: Executor) -> bool:
        """Start the first task that can; false where there is none."""
        ready = self.ready()
        if ready:
            name = Path(ready[0].folder).name
            self.started.add(name)
            self.running[pool.submit(trials.run, ready[0])] = name
        return bool(ready)

    def collect(self) -> None:
        """Wait for a trial to end and keep what it measured."""
        if not self.running:
            return
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            name, result = self.running.pop(future), future.result()
            self.warm[name] = result
            if name in self.missing:
                label, recipe = self.missing.pop(name)
                _record(self.study, name, recipe.trainer.seed, result)
                self.told(label, result, len(self.missing))

    def _task(self, name: str, recipe: PointerRecipe) -> trials.Task:
        return trials.Task(recipe.model_dump(), str(self.folder / name))


class _Here(Executor):
    """Runs a trial at once, in this process."""

    def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def _processes(workers: Workers) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers.jobs, context, _start_worker, (context.Value("i", 0), workers.gpu_jobs))


def _start_worker(tickets: Any, gpu_jobs: int) -> None:
    """The first `gpu_jobs` workers keep the GPU, the others do not see it; must run before CUDA is touched."""
    with tickets.get_lock():
        number, tickets.value = tickets.value, tickets.value + 1
    if number >= gpu_jobs:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _record(study: optuna.Study, digest: str, seed: int, result: dict[str, Any]) -> None:
    study.enqueue_trial({"seed": seed}, user_attrs={"digest": digest, "seed": seed, "result": json.dumps(result)})
    trial = study.ask()
    trial.suggest_int("seed", 0, 2**31 - 1)
    study.tell(trial, result["best"]["value"])
