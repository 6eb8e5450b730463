"""Resuming: the checkpoint that a run resumes, whether it is the run's own, and which changes take effect.

`recipes/engines/checkpoints.py` says what an engine restores, and sets the command's optimiser settings again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.config.resolve import replaced
from recipes.engines.checkpoints import (
    EVERYTHING,
    LAYOUTS,
    MODEL,
    Checkpoint,
    Expected,
    checkpoint_at,
    go_on_from,
    last_checkpoint,
    resumable,
    saved_steps,
)
from recipes.errors import RecipeError
from recipes.files import write_whole
from recipes.paths import run_dir
from recipes.preflight.fingerprint import DATA_ANEW, OF_MODEL, RANKS, Attempt, differences, fingerprint, why_fixed
from recipes.runs.folder import Change, add_changes, set_aside

RECORD = "recipe.json"
"""File in the folder of the checkpoints: what each attempt trained, and the step that it began after."""
CHANGED = "changed"
"""The value of trainer.find_last_checkpoint, and of RESUME, that resumes although the content changed."""
BEGUN_ANEW = ".begun_anew"
"""Folder beside the checkpoints: links to steps without dataloader state, for a run that starts its data over."""
GIVE_STEP = "give the folder of a whole step, such as .../global_step_20"
VERL_PARTS = {"model": "model", "optim": "optimizer", "extra_state": "extra"}


def folder(recipe: Recipe) -> Path:
    """Return where the run's checkpoints go."""
    return Path(str(recipe.trainer.save_checkpoint_path))


def recorded(place: Path) -> list[Attempt]:
    """The attempts whose checkpoints are in a folder, the oldest first; none where no record of them can be read."""
    try:
        return [Attempt(**entry) for entry in json.loads((place / RECORD).read_text(encoding="utf-8"))["attempts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _attempt_of(attempts: Sequence[Attempt], step: int) -> Attempt | None:
    """The attempt that made a step."""
    return next((attempt for attempt in reversed(attempts) if attempt.after_step < step), None)


def _parts(attempts: Sequence[Attempt], step: int) -> frozenset[str] | None:
    """Return what a step was saved with; None where nobody recorded that."""
    attempt = _attempt_of(attempts, step)
    if attempt is None:
        return None
    return frozenset({MODEL}) if attempt.content["trainer.save_model_only"] else EVERYTHING


@dataclass(frozen=True)
class Start:
    """Start of a run: fresh, or a checkpoint."""

    checkpoint: Checkpoint | None  # None for a fresh run
    problems: tuple[str, ...] = ()  # what is wrong with later checkpoints
    changes: tuple[Change, ...] = ()  # content and settings that differ from the attempt that made the step
    unknown: str = ""  # why the content cannot be compared; empty where it can
    # Parts that the step was saved with; files that an earlier save of the same step left do not count.
    parts: frozenset[str] = frozenset()
    now: Attempt | None = None  # the attempt that begins; None where nothing was compared with it
    remarks: tuple[str, ...] = ()  # what a user has to know

    @property
    def other_content(self) -> list[Change]:
        return [change for change in self.changes if change.content]


def start(recipe: Recipe) -> Start:
    """Return where a run starts, by the files that are there now. Raises RecipeError where none can be resumed."""
    named = recipe.trainer.load_checkpoint_path
    if named:
        checkpoint = _named(recipe, Path(named))
    elif recipe.trainer.find_last_checkpoint:
        checkpoint = None
    else:
        return Start(None)
    place = checkpoint.folder.parent if checkpoint else folder(recipe)
    _refuse_other_engine(recipe, [checkpoint.folder] if checkpoint else sorted(place.glob("global_step_*")))
    attempts = recorded(place)
    at, ours = checkpoint or last_checkpoint(place), fingerprint(recipe)
    ranks = (at.ranks() if at else None) or recipe.n_gpus  # another number is reported as such, not as missing files
    expected = Expected(LAYOUTS[recipe.engine], ranks, partial(_parts, attempts))
    problems: list[str] = []
    if checkpoint is None:
        checkpoint, problems = resumable(place, expected)
        if checkpoint is None and problems:
            what = f"no checkpoint is whole to go on from: {problems[0]}"
            raise RecipeError(what, where=str(place), fix=_begin_anew(recipe))
        if checkpoint is None:
            return Start(None, now=ours)
    elif damage := expected.damage(checkpoint):
        raise recipe.error(damage, GIVE_STEP, "trainer.load_checkpoint_path")
    wrote = checkpoint.ranks()
    other_ranks = () if wrote in (None, recipe.n_gpus) else (Change(RANKS, wrote, recipe.n_gpus, "", True),)
    parts = checkpoint.holds() & (expected.parts(checkpoint.step) or EVERYTHING)
    attempt = _attempt_of(attempts, checkpoint.step)
    if attempt is None:
        why = f"no {RECORD} that can be read says which reward, rows, model and algorithm made these checkpoints"
        return Start(checkpoint, tuple(problems), other_ranks, why, parts, ours)
    changes = differences(attempt.content, ours.content, content=True)
    changes += differences(attempts[-1].settings, ours.settings, content=False)
    changes += () if RANKS in (change.name for change in changes) else other_ranks
    return Start(checkpoint, tuple(problems), tuple(changes), parts=parts, now=ours)


def _refuse_other_engine(recipe: Recipe, steps: Sequence[Path]) -> None:
    """Raise where only another engine's dataloader state is there: this engine would start the data over."""
    wrote = {engine for engine, layout in LAYOUTS.items() if any((step / layout.loader).is_file() for step in steps)}
    if wrote and recipe.engine not in wrote:
        raise RecipeError(
            f"the checkpoints were written by the engine {wrote.pop()}, and the engine of this run is {recipe.engine}: "
            f"{why_fixed('engine')}",
            where=str(steps[-1].parent),
            fix=f"keep the old one, or {_begin_anew(recipe)}",
        )


def _named(recipe: Recipe, step: Path) -> Checkpoint:
    """The checkpoint that trainer.load_checkpoint_path names."""
    number = re.fullmatch(r"global_step_(\d+)", step.name)
    found = checkpoint_at(step.parent, int(number.group(1))) if number else None
    if found is None or not (step / "actor").is_dir():
        what = f"{step} is not a checkpoint: it has no folder actor"
        raise recipe.error(what, GIVE_STEP, "trainer.load_checkpoint_path")
    return found


def check_resume(recipe: Recipe) -> Start:
    """Raise where the run would resume or overwrite another run's checkpoint, or cannot resume with its settings.

    Returns the start; its remarks say which checkpoint is resumed, the parts that it lacks, and what differs from the
    earlier attempt.
    """
    place, anyway = folder(recipe), recipe.trainer.find_last_checkpoint == CHANGED
    if not recipe.trainer.find_last_checkpoint and not recipe.trainer.load_checkpoint_path:
        if saved := saved_steps(place):
            raise RecipeError(
                f"the folder has checkpoints (last: step {saved[-1]}), and RESUME is off: a new run would write over "
                "them",
                where=str(place),
                fix="choose another EXPERIMENT_NAME, leave RESUME on to go on, or move the folder away",
            )
        return Start(None)
    begin = start(recipe)
    if begin.checkpoint is None:
        none = f"RESUME=changed, but {place} has no checkpoint: the run begins with its first step"
        return replace(begin, remarks=(none,)) if anyway else begin
    _refuse_impossible(recipe, begin)
    different = begin.other_content
    if (different or begin.unknown) and not anyway:
        raise RecipeError(
            begin.unknown
            or "the checkpoints are another run's: " + "; ".join(change.described for change in different),
            where=str(place if not recipe.trainer.load_checkpoint_path else begin.checkpoint.folder),
            fix=f"another EXPERIMENT_NAME begins a run of its own; RESUME={CHANGED} goes on in {place.name} with what "
            "is new",
        )
    remarks = [f"{problem}: not gone on from" for problem in begin.problems]
    remarks.append(f"resuming from step {begin.checkpoint.step}, in {begin.checkpoint.folder}")
    if anyway and begin.unknown:
        remarks.append(f"{begin.unknown}: whether this run is the same cannot be known")
    if lacking := _lacking(begin):
        remarks.append(f"step {begin.checkpoint.step} was saved without {lacking}: these begin anew, with its weights")
    remarks += [f"changed: {change.described}: {change.effect}" for change in different]
    remarks += [f"changed since the last attempt: {change.described}" for change in begin.changes if not change.content]
    return replace(begin, remarks=tuple(remarks))


def _refuse_impossible(recipe: Recipe, begin: Start) -> None:
    assert begin.checkpoint is not None
    for change in begin.other_content:
        if why := why_fixed(change.name):
            raise RecipeError(
                f"a resumed run cannot change this: {change.described}: {why}",
                where=str(begin.checkpoint.folder),
                # where the model changed, the new run trains the one that was given, not the checkpoint's
                fix="keep the old one, or "
                + _begin_anew(recipe, None if change.name in OF_MODEL else begin.checkpoint),
            )
    if _lacking(begin) and not LAYOUTS[recipe.engine].takes_parts:
        raise RecipeError(
            f"step {begin.checkpoint.step} was saved without {_lacking(begin)}, which EasyR1 always opens",
            where=str(begin.checkpoint.folder),
            fix=_begin_anew(recipe, begin.checkpoint),
        )


def _lacking(begin: Start) -> str:
    """Return what a checkpoint was saved without, in words."""
    names = {"optim": "the optimiser's state", "extra_state": "schedule and random state"}
    return " and ".join(words for part, words in names.items() if part not in begin.parts)


def _begin_anew(recipe: Recipe, checkpoint: Checkpoint | None = None) -> str:
    weights = f" MODEL_PATH={checkpoint.model}" if checkpoint and checkpoint.model else ""
    weights += " TINY=1" * bool(weights and recipe.resolution.is_tiny)
    return f"begin another run: EXPERIMENT_NAME=another{weights}, or move {folder(recipe).name} away"


def steps_done(recipe: Recipe, last: Checkpoint | None) -> int:
    """The step of a run's last checkpoint; 0 for a fresh run, or one with a `load_checkpoint_path`."""
    return last.step if last and recipe.trainer.find_last_checkpoint and not recipe.trainer.load_checkpoint_path else 0


def begin_attempt(recipe: Recipe, begin: Start, log: Callable[[str], None] = print) -> Recipe:
    """Record the attempt and return the trainer's recipe; `log` takes a line on what was set aside."""
    trained = for_trainer(recipe, begin)
    if aside := record(recipe, begin):
        log(f"note: {aside}")
    return trained


def for_trainer(recipe: Recipe, begin: Start) -> Recipe:
    """Return the trainer's recipe: it loads no part that the checkpoint lacks and no dataloader state of other data."""
    if begin.checkpoint is None:
        return recipe
    changes: dict[str, Any] = {}
    if _lacking(begin) and recipe.engine == "verl":
        held = [VERL_PARTS[part] for part in sorted(begin.parts, key=list(VERL_PARTS).index)]
        changes["verl"] = {**recipe.verl, "actor_rollout_ref.actor.checkpoint.load_contents": held}
    if any(change.effect == DATA_ANEW for change in begin.changes):
        changes["trainer.load_checkpoint_path"] = str(_without_place(folder(recipe), begin.checkpoint))
    return replaced(recipe, changes, "what the checkpoint holds") if changes else recipe


def _without_place(place: Path, checkpoint: Checkpoint) -> Path:
    """A step's folder with a link to a checkpoint's `actor` folder, and without dataloader state."""
    step = place / BEGUN_ANEW / checkpoint.folder.name
    step.mkdir(parents=True, exist_ok=True)
    link = step / "actor"
    link.unlink(missing_ok=True)
    link.symlink_to((checkpoint.folder / "actor").absolute(), target_is_directory=True)
    return step


def record(recipe: Recipe, begin: Start) -> str:
    """Write the record into the folder of the checkpoints, and the changes into the run's files.

    What earlier attempts made after the step that the run begins with is set aside, and the engine's tracker names
    that step. Returns a sentence on what was set aside, or an empty text.
    """
    place = folder(recipe)
    step = begin.checkpoint.step if begin.checkpoint else 0
    now = replace(begin.now or fingerprint(recipe), after_step=step)
    own_folder = begin.checkpoint is not None and begin.checkpoint.folder.parent.resolve() == place.resolve()
    before = [attempt for attempt in recorded(place) if attempt.after_step < step] if own_folder else []
    if before and before[-1].content == now.content:
        now = replace(now, after_step=before.pop().after_step)
    attempts = [vars(attempt) for attempt in (*before, now)]
    write_whole(place / RECORD, json.dumps({"attempts": attempts}, indent=1) + "\n")
    changes = begin.other_content
    if begin.unknown:
        changes.append(Change("content", "not recorded", "see recipe.json", begin.unknown, True))
    aside = set_aside(recipe, step if own_folder else -1)
    if own_folder and begin.checkpoint:
        go_on_from(begin.checkpoint, LAYOUTS[recipe.engine])
    if changes:
        run = run_dir(recipe.experiment)
        add_changes(run, step, changes, recipe.trainer.val_before_train)
    return aside
