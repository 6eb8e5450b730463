"""Resuming: whether a run goes on from a checkpoint that is its own, and which changes take effect.

Content is compared by digests, never by paths: of the rows, of the reward with its helpers, and of the model.
`KeyInfo.resume` and `KeyInfo.fixed` define what a key's changed value means; this module, what other content's does.
`recipes/engines/checkpoints.py` says what an engine restores, and sets the command's optimiser settings again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.config.names import NATIVE, native, verl_defaults
from recipes.config.resolve import replaced
from recipes.config.schema import leaves
from recipes.engines import checkpoints
from recipes.engines.checkpoints import Checkpoint
from recipes.errors import RecipeError
from recipes.files import json_sha256, sha256, write_whole
from recipes.model_files import PROCESSOR_FILES, TOKENIZER_FILES, local_model, weight_files
from recipes.paths import run_dir
from recipes.rewards.identity import named_files
from recipes.runs import folder as runs
from recipes.settings import VERL

RANKS, WEIGHTS = "ranks", "model"
CONFIG, TOKENIZER, PROCESSOR, CODE, GENERATION = (
    f"{WEIGHTS}: {part}" for part in ("config.json", "tokenizer", "processor", "code", "generation_config.json")
)
OF_MODEL = (WEIGHTS, CONFIG)
"""Content that is no key and belongs to the model that a run began from."""
FIXED = {
    RANKS: "each rank wrote a file of its own, so their number is fixed",
    **dict.fromkeys(OF_MODEL, "the checkpoint belongs to that model"),
}
"""Content that is no key and whose change makes checkpoints impossible to resume -> why."""
ORDER = (runs.TRAINING_ROWS, TOKENIZER, PROCESSOR)
"""Content that is no key and decides the order of the rows: where it changed, the dataloader's state is useless."""
_VERL_SETTINGS = re.compile(r"(trainer|ray_kwargs|global_profiler|transfer_queue)\..*|data\.val_.*")
"""verl's own keys that are settings. All others are content; those of them below `data` decide the order of rows."""
SAMPLED, PIECES = 1 << 16, 32
"""Bytes of a piece of a weight file, and number of pieces that are read: an update of the model changes nearly all."""


def fingerprint(recipe: Recipe) -> runs.Attempt:
    """The attempt of this recipe from its first step on; reads rows, reward and pieces of the weights."""
    content: dict[str, Any] = {RANKS: recipe.n_gpus, **_model(recipe)}
    content |= {name: runs.digest_of(recipe, name) for name in (runs.REWARD, *runs.ROWS)}
    settings: dict[str, Any] = {}
    for key, leaf in leaves(Recipe).items():
        value = recipe.value(key)
        if key == VERL or leaf.info.resume == "place" or not recipe.uses(key):
            continue
        if leaf.info.resume == "setting":
            settings[key] = value
        else:
            content[key] = runs.digest_of(recipe, key) if leaf.info.path else value
    for name, value in native(recipe).items():
        if _VERL_SETTINGS.fullmatch(name):
            settings[f"{NATIVE}{name}"] = value
        else:
            content |= {f"{NATIVE}{name}": value, **named_files(value, f"the file of {name}")}
    return runs.Attempt(0, *(json.loads(json.dumps(part, default=str)) for part in (content, settings)))


TAKES_EFFECT, DATA_ANEW = "takes effect", "takes effect; the data begins anew"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, content: bool) -> list[runs.Change]:
    """The differences between the content, or the settings, of two attempts, each with its effect.

    A key of verl's that one side lacks has verl's default there. Any other name that one side lacks is not compared,
    nor is a digest that could not be made.
    """
    found = []
    for name in dict.fromkeys((*new, *old)):
        default = verl_defaults().get(name.removeprefix(NATIVE)) if name.startswith(NATIVE) else None
        one, other = old.get(name, default), new.get(name, default)
        is_key = name in leaves(Recipe) and name in old and name in new
        if one != other and (is_key or name.startswith(NATIVE) or None not in (one, other)):
            leaf = leaves(Recipe).get(name)
            orders = leaf.info.resume == "order" if leaf else name in ORDER or name.startswith(f"{NATIVE}data.")
            found.append(runs.Change(name, one, other, DATA_ANEW if content and orders else TAKES_EFFECT, content))
    return found


def why_fixed(name: str) -> str:
    """The reason why no checkpoint can be resumed with another value; empty where it can."""
    leaf = leaves(Recipe).get(name)
    return leaf.info.fixed if leaf else FIXED.get(name, "")


def _model(recipe: Recipe) -> dict[str, Any]:
    """The content of the model, its tokenizer and its own code; None for what is not on this machine yet."""
    model = recipe.worker.actor.model
    folder = local_model(str(model.model_path))
    words = local_model(str(model.tokenizer_path)) if model.tokenizer_path else folder
    code = sorted(folder.glob("*.py")) if folder and model.trust_remote_code else []
    return {
        WEIGHTS: json_sha256([_weights(file) for file in weight_files(folder)]) if folder else None,
        CONFIG: _file(folder / "config.json") if folder else None,
        GENERATION: _file(folder / "generation_config.json") or "" if folder else None,  # "": there is none
        TOKENIZER: _files(words / name for name in TOKENIZER_FILES) if words else None,
        PROCESSOR: _files(words / name for name in PROCESSOR_FILES) if words else None,
        CODE: _files(code) if folder else None,
    }


def _weights(file: Path) -> list[Any]:
    """Name and size of a weight file, and a digest of pieces of it, its first bytes included."""
    size = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        for piece in range(PIECES):
            opened.seek(piece * max(0, size - SAMPLED) // max(1, PIECES - 1))
            digest.update(opened.read(SAMPLED))
    return [file.name, size, digest.hexdigest()]


def _files(files: Iterable[Path]) -> str:
    return json_sha256([[file.name, sha256(file)] for file in files if file.is_file()])


def _file(path: Path) -> str | None:
    """The digest of a file; None where there is none."""
    return sha256(path) if path.is_file() else None


CHANGED = "changed"
"""The value of trainer.find_last_checkpoint, and of RESUME, that resumes although the content changed."""
BEGUN_ANEW = ".begun_anew"
"""Folder beside the checkpoints: links to steps without dataloader state, for a run that starts its data over."""
GIVE_STEP = "give the folder of a whole step, such as .../global_step_20"
VERL_PARTS = {checkpoints.MODEL: "model", checkpoints.OPTIMIZER: "optimizer", checkpoints.EXTRA: "extra"}
"""Part of a checkpoint -> verl's name of it."""


def folder(recipe: Recipe) -> Path:
    """The folder of the run's checkpoints."""
    return Path(str(recipe.trainer.save_checkpoint_path))


def _parts(attempts: Sequence[runs.Attempt], step: int) -> frozenset[str] | None:
    """The parts that a step was saved with; None where nobody recorded them."""
    attempt = runs.attempt_of(attempts, step)
    model_only = attempt and attempt.content.get("trainer.save_model_only")
    return None if model_only is None else frozenset({checkpoints.MODEL}) if model_only else checkpoints.EVERYTHING


@dataclass(frozen=True)
class Start:
    """Start of a run: fresh, or a checkpoint."""

    checkpoint: Checkpoint | None  # None for a fresh run
    problems: tuple[str, ...] = ()  # of later checkpoints
    changes: tuple[runs.Change, ...] = ()  # content and settings that differ from the attempt that made the step
    unknown: str = ""  # why the content cannot be compared; empty where it can
    parts: frozenset[str] = frozenset()  # that the step was saved with, whatever an earlier save of it left
    now: runs.Attempt | None = None  # the attempt that begins; None where nothing was compared with it
    remarks: tuple[str, ...] = ()  # for the user

    @property
    def other_content(self) -> list[runs.Change]:
        return [change for change in self.changes if change.content]

    @property
    def lacking(self) -> str:
        """The parts that the checkpoint was saved without, in words."""
        names = {checkpoints.OPTIMIZER: "the optimiser's state", checkpoints.EXTRA: "schedule and random state"}
        return " and ".join(words for part, words in names.items() if part not in self.parts)


def start(recipe: Recipe) -> Start:
    """The start of a run, by the files that are there now. Raises RecipeError where none can be resumed."""
    named = recipe.trainer.load_checkpoint_path
    checkpoint = _named(recipe, Path(named)) if named else None
    place = checkpoint.folder.parent if checkpoint else folder(recipe)
    _refuse_other_engine(recipe, [checkpoint.folder] if checkpoint else sorted(place.glob("global_step_*")))
    attempts = runs.recorded(place)
    at, ours = checkpoint or checkpoints.last_checkpoint(place), fingerprint(recipe)
    ranks = (at.ranks() if at else None) or recipe.n_gpus  # another number is reported as such, not as missing files
    expected = checkpoints.Expected(checkpoints.LAYOUTS[recipe.engine], ranks, partial(_parts, attempts))
    problems: list[str] = []
    if checkpoint is None:
        checkpoint, problems = checkpoints.resumable(place, expected)
        if checkpoint is None and problems:
            model = checkpoints.whole_model(place)
            known = f"; the model of step {model.step} is whole, for another run or an evaluation" if model else ""
            what = f"no checkpoint is whole to go on from: {problems[0]}{known}"
            raise RecipeError(what, where=str(place), fix=_begin_anew(recipe, model))
        if checkpoint is None:
            return Start(None, now=ours)
    elif damage := expected.damage(checkpoint):
        raise recipe.error(damage, GIVE_STEP, "trainer.load_checkpoint_path")
    wrote = checkpoint.ranks()
    other_ranks = () if wrote in (None, recipe.n_gpus) else (runs.Change(RANKS, wrote, recipe.n_gpus, "", True),)
    parts = checkpoint.holds() & (expected.parts(checkpoint.step) or checkpoints.EVERYTHING)
    attempt = runs.attempt_of(attempts, checkpoint.step)
    if attempt is None:
        why = f"no {runs.RECORD} that can be read says which reward, rows, model and algorithm made these checkpoints"
        return Start(checkpoint, tuple(problems), other_ranks, why, parts, ours)
    changes = differences(attempt.content, ours.content, content=True)
    changes += differences(attempts[-1].settings, ours.settings, content=False)
    changes += () if RANKS in (change.name for change in changes) else other_ranks
    return Start(checkpoint, tuple(problems), tuple(changes), parts=parts, now=ours)


def _refuse_other_engine(recipe: Recipe, steps: Sequence[Path]) -> None:
    """Raise where only another engine's dataloader state is there."""
    layouts = checkpoints.LAYOUTS.items()
    wrote = {engine for engine, layout in layouts if any((step / layout.loader).is_file() for step in steps)}
    if wrote and recipe.engine not in wrote:
        raise RecipeError(
            f"the checkpoints were written by the engine {wrote.pop()}, and the engine of this run is {recipe.engine}: "
            f"{why_fixed('engine')}",
            where=str(steps[-1].parent),
            fix=f"keep the old one, or {_begin_anew(recipe)}",
        )


def _named(recipe: Recipe, step: Path) -> Checkpoint:
    """The checkpoint that trainer.load_checkpoint_path names."""
    number = checkpoints.step_of(step.name)
    found = checkpoints.checkpoint_at(step.parent, number) if number is not None else None
    if found is None or not (step / "actor").is_dir():
        what = f"{step} is not a checkpoint: it has no folder actor"
        raise recipe.error(what, GIVE_STEP, "trainer.load_checkpoint_path")
    return found


def check_resume(recipe: Recipe) -> Start:
    """The start, with remarks on the checkpoint that is resumed, the parts that it lacks, and the differences.

    Raises RecipeError where the run would resume or overwrite another run's checkpoint, or cannot resume.
    """
    place, anyway = folder(recipe), recipe.trainer.find_last_checkpoint == CHANGED
    if not recipe.trainer.find_last_checkpoint and not recipe.trainer.load_checkpoint_path:
        if saved := checkpoints.saved_steps(place):
            what = (
                f"the folder has checkpoints (last: step {saved[-1]}) that a new run, with RESUME off, would write over"
            )
            fix = "choose another EXPERIMENT_NAME, leave RESUME on to go on, or move the folder away"
            raise RecipeError(what, where=str(place), fix=fix)
        return Start(None)
    begin = start(recipe)
    if begin.checkpoint is None:
        none = f"RESUME=changed, but {place} has no checkpoint: the run begins with its first step"
        return replace(begin, remarks=(none,)) if anyway else begin
    step, where = begin.checkpoint.step, str(begin.checkpoint.folder)
    different = begin.other_content
    for change in different:
        if why := why_fixed(change.name):
            # Where the model changed, the new run trains the one that was given, not the checkpoint's.
            anew = _begin_anew(recipe, None if change.name in OF_MODEL else begin.checkpoint)
            what = f"a resumed run cannot change this: {change.described}: {why}"
            raise RecipeError(what, where=where, fix=f"keep the old one, or {anew}")
    if begin.lacking and not checkpoints.LAYOUTS[recipe.engine].takes_parts:
        what = f"step {step} was saved without {begin.lacking}, which EasyR1 always opens"
        raise RecipeError(what, where=where, fix=_begin_anew(recipe, begin.checkpoint))
    if (different or begin.unknown) and not anyway:
        named = "; ".join(change.described for change in different)
        raise RecipeError(
            begin.unknown or f"the checkpoints are another run's: {named}",
            where=where if recipe.trainer.load_checkpoint_path else str(place),
            fix=f"another EXPERIMENT_NAME begins a run of its own; RESUME={CHANGED} goes on in {place.name} with the "
            "new content",
        )
    remarks = [f"{problem}: not gone on from" for problem in begin.problems]
    remarks.append(f"resuming from step {step}, in {where}")
    if begin.unknown:
        remarks.append(f"{begin.unknown}: whether this run is the same cannot be known")
    if begin.lacking:
        remarks.append(f"step {step} was saved without {begin.lacking}: these begin anew, with its weights")
    remarks += [f"changed: {change.described}: {change.effect}" for change in different]
    remarks += [f"changed since the last attempt: {change.described}" for change in begin.changes if not change.content]
    return replace(begin, remarks=tuple(remarks))


def _begin_anew(recipe: Recipe, checkpoint: Checkpoint | None = None) -> str:
    weights = f" MODEL_PATH={checkpoint.model}" if checkpoint and checkpoint.model else ""
    weights += " TINY=1" * bool(weights and recipe.resolution.is_tiny)
    return f"begin another run: EXPERIMENT_NAME=another{weights}, or move {folder(recipe).name} away"


def steps_done(recipe: Recipe, last: Checkpoint | None) -> int:
    """The step of a run's last checkpoint; 0 for a fresh run, or one with a `load_checkpoint_path`."""
    return last.step if last and recipe.trainer.find_last_checkpoint and not recipe.trainer.load_checkpoint_path else 0


def begin_attempt(recipe: Recipe, begin: Start, log: Callable[[str], None] = print) -> Recipe:
    """Record the attempt and return the trainer's recipe; `log` takes a line on steps that were set aside."""
    trained = for_trainer(recipe, begin)
    if aside := record(recipe, begin):
        log(f"note: {aside}")
    return trained


def for_trainer(recipe: Recipe, begin: Start) -> Recipe:
    """The trainer's recipe: it loads no part that the checkpoint lacks and no dataloader state of other data."""
    if begin.checkpoint is None:
        return recipe
    changes: dict[str, Any] = {}
    if begin.lacking and recipe.engine == "verl":
        held = [name for part, name in VERL_PARTS.items() if part in begin.parts]
        changes["verl"] = {**recipe.verl, "actor_rollout_ref.actor.checkpoint.load_contents": held}
    if any(change.effect == DATA_ANEW for change in begin.changes):
        step = folder(recipe) / BEGUN_ANEW / begin.checkpoint.folder.name
        step.mkdir(parents=True, exist_ok=True)
        (step / "actor").unlink(missing_ok=True)
        (step / "actor").symlink_to((begin.checkpoint.folder / "actor").absolute(), target_is_directory=True)
        changes["trainer.load_checkpoint_path"] = str(step)
    return replaced(recipe, changes, "what the checkpoint holds")


def record(recipe: Recipe, begin: Start) -> str:
    """Write the record into the folder of the checkpoints, and the changes into the run's files.

    Later steps of earlier attempts are set aside, and the engine's tracker names the step that the run begins with.
    Returns a sentence on what was set aside, or an empty text.
    """
    place = folder(recipe)
    step = begin.checkpoint.step if begin.checkpoint else 0
    now = replace(begin.now or fingerprint(recipe), after_step=step)
    own_folder = begin.checkpoint is not None and begin.checkpoint.folder.parent.resolve() == place.resolve()
    before = [attempt for attempt in runs.recorded(place) if attempt.after_step < step] if own_folder else []
    if before and before[-1].content == now.content:
        now = replace(now, after_step=before.pop().after_step)
    attempts = [vars(attempt) for attempt in (*before, now)]
    write_whole(place / runs.RECORD, json.dumps({"attempts": attempts}, indent=1) + "\n")
    changes = begin.other_content
    if begin.unknown:
        changes.append(runs.Change("content", "not recorded", "see recipe.json", begin.unknown, True))
    aside = runs.set_aside(recipe, step if own_folder else -1)
    if own_folder and begin.checkpoint:
        checkpoints.go_on_from(begin.checkpoint, checkpoints.LAYOUTS[recipe.engine])
    if changes:
        runs.add_changes(run_dir(recipe.experiment), step, changes, recipe.trainer.val_before_train)
    return aside
