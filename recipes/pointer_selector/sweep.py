"""Arms times seeds, kept in an Optuna study on disk: a sweep that was interrupted goes on where it was."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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


def results(study: optuna.Study) -> list[dict[str, Any]]:
    """One dict a finished trial: `arm`, `seed`, `digest`, and what `trials.run` measured."""
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [
        {**json.loads(t.user_attrs["result"]), **{k: t.user_attrs[k] for k in ("arm", "seed", "digest")}}
        for t in finished
    ]


def digest(recipe: PointerRecipe, seed: int) -> str:
    """What a trial of this recipe and seed is known by; results of other settings under the same name do not count."""
    return trials.digest(changed(recipe, {"trainer.seed": seed}))


def sweep(
    study: optuna.Study,
    arms: list[Arm],
    seeds: list[int],
    folder: Path,
    jobs: int,
    told: Callable[[str, dict, int], None],
) -> None:
    """Run what is missing.

    Warm-ups come first, once for all arms that share them; GRPO arms start from theirs.

    Args:
        study: where finished trials are kept.
        arms, seeds: every pair is one trial.
        folder: checkpoints of the trials.
        jobs: processes at once, of one thread each.
        told: called with arm, result and number of trials left, after each trial.
    """
    done = {(entry["arm"], entry["seed"], entry["digest"]) for entry in results(study)}
    missing = [(arm, seed) for arm in arms for seed in seeds if (arm.name, seed, digest(arm.recipe, seed)) not in done]
    warm_ups = {trials.digest(w): w for arm, seed in missing if _warms_up(w := _warm_up(arm, seed))}
    shared: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        first = {pool.submit(trials.run, _task(w, folder)): name for name, w in warm_ups.items()}
        waiting: dict[Future, tuple[Arm, int]] = {}
        left = len(missing)

        def release(name: str | None) -> None:
            for arm, seed in missing:
                warm_up = _warm_up(arm, seed)
                own = trials.digest(warm_up) if _warms_up(warm_up) else None
                if own != name:
                    continue
                if arm.has_grpo:
                    waiting[pool.submit(trials.run, _grpo_task(arm, seed, own, folder))] = (arm, seed)
                else:
                    finish(arm, seed, shared[own])

        def finish(arm: Arm, seed: int, result: dict[str, Any]) -> None:
            nonlocal left
            left -= 1
            _record(study, arm, seed, result)
            told(arm.name, result, left)

        release(None)
        while first or waiting:
            ended, _ = wait([*first, *waiting], return_when=FIRST_COMPLETED)
            for future in ended:
                if future in first:
                    name = first.pop(future)
                    shared[name] = future.result()
                    release(name)
                else:
                    finish(*waiting.pop(future), future.result())


def _of_seed(arm: Arm, seed: int) -> PointerRecipe:
    return changed(arm.recipe, {"trainer.seed": seed})


def _warm_up(arm: Arm, seed: int) -> PointerRecipe:
    return trials.warm_up_of(_of_seed(arm, seed))


def _warms_up(warm_up: PointerRecipe) -> bool:
    return warm_up.rce.epochs > 0


def _task(recipe: PointerRecipe, folder: Path) -> trials.Task:
    return trials.Task(recipe.model_dump(), str(folder / trials.digest(recipe)))


def _grpo_task(arm: Arm, seed: int, warm_up: str | None, folder: Path) -> trials.Task:
    recipe = _of_seed(arm, seed)
    task = _task(recipe, folder)
    if warm_up is None:
        return task
    return trials.Task(changed(recipe, {"trainer.warm_up_from": str(folder / warm_up)}).model_dump(), task.folder)


def _record(study: optuna.Study, arm: Arm, seed: int, result: dict[str, Any]) -> None:
    attributes = {"arm": arm.name, "seed": seed, "digest": digest(arm.recipe, seed), "result": json.dumps(result)}
    study.enqueue_trial({"seed": seed}, user_attrs=attributes)
    trial = study.ask()
    trial.suggest_int("seed", 0, 2**31 - 1)
    study.tell(trial, result["best"]["value"])
