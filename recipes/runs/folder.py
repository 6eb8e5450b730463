"""Files of a run. Its launcher and trainer write them; any process may read them, while it runs and later."""

import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
from pydantic import TypeAdapter

from recipes.config import Recipe, load, total_steps
from recipes.config.resolve import replaced
from recipes.config.rewards import reward_call
from recipes.config.schema import leaves
from recipes.data.rows import row_count, rows_digest
from recipes.engines.checkpoints import BEST, Best, Checkpoint, best_checkpoint, last_checkpoint, step_of
from recipes.engines.verl.tools import file_digest
from recipes.errors import RecipeError, did_you_mean
from recipes.files import run_lock, sha256, write_whole
from recipes.model_files import read_json
from recipes.paths import artifacts, checkpoint_dir, in_artifacts, relative_to_cwd, run_dir
from recipes.rewards.identity import reward_files
from recipes.runs import metrics

ATTEMPT = "==== attempt of "
"""Prefix of the line of `train.log` at which an attempt begins."""
State = Literal["starting", "running", "finished", "ended early"]


class RunFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder  # `artifacts/runs/<experiment>`
        self.config, self.command = folder / "config.yaml", folder / "command.sh"
        self.metrics, self.log = folder / "metrics.jsonl", folder / "train.log"
        self.summary = folder / "summary.json"  # result file of the pointer selector's trainer, written at its end
        self.lock = folder / ".lock"  # held by the launcher; the file contains its process id
        self.attempt = folder / f".attempt-{os.getpid()}.jsonl"  # metrics of this process's attempt, by the trainer

    @property
    def attempts(self) -> list[Path]:
        """Metrics of attempts whose lines may not all be in `metrics` yet."""
        return sorted(self.folder.glob(".attempt-*.jsonl"))


@contextmanager
def lock_run(experiment: str, checkpoints: Path | None = None) -> Iterator[RunFiles]:
    """The run's files and checkpoints, for this launcher alone. Raises RecipeError while another has them."""
    files = RunFiles(run_dir(experiment))
    of_checkpoints = run_lock(checkpoints / ".lock", experiment, "CHECKPOINT_DIR") if checkpoints else nullcontext()
    with run_lock(files.lock, experiment), of_checkpoints:
        metrics.adopt_leftovers(files.attempts, files.metrics)
        yield files
        metrics.adopt_leftovers(files.attempts, files.metrics)


def begin_attempt(files: RunFiles, config: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Write the recipe, as YAML, and the command of this attempt, with variables beyond the launcher's own.

    An older attempt's differing configuration is kept under a number. Returns the length of the log so far.
    """
    if files.config.is_file() and files.config.read_text(encoding="utf-8") != config:
        numbers = (file.suffixes[0].removeprefix(".") for file in files.folder.glob("config.*.yaml"))
        files.config.rename(files.folder / f"config.{_next(numbers)}.yaml")
    files.config.write_text(config, encoding="utf-8")
    files.command.write_text(script(command, environment), encoding="utf-8")
    files.command.chmod(0o755)
    with files.log.open("a", encoding="utf-8") as log:
        log.write(f"{ATTEMPT}{datetime.now().astimezone().isoformat(timespec='seconds')}\n")
    return files.log.stat().st_size


def _next(numbers: Iterable[str]) -> int:
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


SET_ASIDE = "set_aside"
"""Folder of what later attempts discarded, below a number; one in the run's folder, one beside its checkpoints."""


def set_aside(recipe: Recipe, after: int) -> str:
    """Move what earlier attempts made after a step out of the way of an attempt that makes these steps anew.

    These are metrics, dumps, recorded changes, checkpoints and the best one. `after` is -1 where the run begins with
    its first step. Returns a sentence on where they went; empty where there was nothing.
    """
    files = RunFiles(run_dir(recipe.experiment))
    place = Path(str(recipe.trainer.save_checkpoint_path))
    target, beside = (
        folder / SET_ASIDE / str(_next(path.name for path in folder.glob(f"{SET_ASIDE}/*")))
        for folder in (files.folder, place)
    )
    best, found = best_checkpoint(place), list[tuple[int | None, Path, Path]]()  # step, path, and where it goes
    for kind in metrics.DUMPS:
        dumps = metrics.dump_folder(files.folder, recipe, kind).glob("*.jsonl")
        found += [(int(file.stem), file, target / kind) for file in dumps if file.stem.isdecimal()]
    found += [(step_of(str(folder)), folder, beside) for folder in place.glob("global_step_*")]
    found += [(best.step, place / BEST, beside)] if best else []
    for path, to in [(path, to) for step, path, to in found if step is not None and step > after]:
        to.mkdir(parents=True, exist_ok=True)
        path.rename(to / path.name)
    # What the last attempt changed is compared anew.
    for file, last, key in (files.metrics, after, "step"), (files.folder / CHANGES, after - 1, "after_step"):
        if lines := metrics.drop_steps(file, last, key):
            write_whole(target / file.name, lines)
    where = " and ".join(str(relative_to_cwd(folder)) for folder in (target, beside) if folder.is_dir())
    return f"what an earlier attempt made after step {max(after, 0)} is set aside in {where}" if where else ""


def script(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The trainer's command as a script that runs by itself."""
    lines = ["#!/usr/bin/env bash", "# What the launcher started; it watches the trainer, this script does not."]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    words = " \\\n    ".join(map(shlex.quote, command))
    return "\n".join([*lines, f"exec {words}"]) + "\n"


@dataclass(frozen=True)
class Run:
    """State of a run, from its folder."""

    folder: Path  # artifacts/runs/<experiment>
    task: str
    history: list[metrics.Step]
    recipe: Recipe | None  # None where config.yaml cannot be read
    total: int | None  # steps, where known
    state: State  # "starting" or "running" while its launcher is alive
    notes: tuple[str, ...]  # what could not be read, in sentences
    checkpoint: Checkpoint | None  # the last one
    best: Best | None
    since: int  # the first step whose validation compares with the last one (`compares_since`)
    silent_s: float | None  # seconds since metrics or log changed; None for a run that has ended

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def step(self) -> int:
        return max((step.step for step in self.history), default=0)

    def series(self, *names: str) -> metrics.Series:
        """(step, value) of the first of these metrics that each trained step has."""
        return metrics.series(self.history, lambda step: step.get(*names))

    @cached_property
    def validations(self) -> dict[int, metrics.Measured]:
        """Step -> its validation, of those that compare with the last one."""
        steps = [step for step in self.history if step.step >= self.since]
        found = {step.step: metrics.held_out(self.folder, self.recipe, step) for step in steps}
        return metrics.of_last_measure({step: measured for step, measured in found.items() if measured})

    @cached_property
    def validated(self) -> metrics.Measured | None:
        """The last validation; None before the first."""
        every = (metrics.held_out(self.folder, self.recipe, step) for step in reversed(self.history))
        return next(filter(None, every), None)

    @property
    def measure(self) -> str:
        """ "accuracy", or "score" where the reward states no accuracy."""
        return self.validated.measure if self.validated else "accuracy"

    @property
    def left_s(self) -> float | None:
        """Seconds to go, by the last steps; None where that is not known."""
        return metrics.seconds_left(self.history, self.total) if self.state == "running" else None


def folders() -> list[Path]:
    """The folders of all runs, the one that changed last first."""
    root = artifacts() / "runs"
    every = [path for path in root.iterdir() if _is_run(path)] if root.is_dir() else []
    return sorted(every, key=lambda path: path.stat().st_mtime, reverse=True)


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in ("metrics.jsonl", "config.yaml"))


def find(name: str = "") -> Path:
    """The folder of a run, by its name or path; without a name, of the one that changed last.

    Raises RecipeError with the closest name where there is no such run.
    """
    there = folders()
    for folder in (run_dir(name), Path(in_artifacts(name))) if name else there[:1]:
        if _is_run(folder):
            return folder.absolute()
    names = [path.name for path in there]
    what = f"there is no run {name!r}" if name else "there is no run yet"
    listed = f"use one of {', '.join(names[:10])}" if names else "start one first: bash examples/.../....sh"
    raise RecipeError(what, where=str(artifacts() / "runs"), fix=did_you_mean(Path(name).name, names) or listed)


def read(folder: Path) -> Run:
    """A run as its files are now; what cannot be read is a note."""
    files = RunFiles(folder)
    written = [files.metrics, *files.attempts]
    notes, recipe, total = [], None, None
    about = read_json(folder / "about.json")  # of a run of another trainer: `task`, `total` steps, `checkpoints`
    try:
        recipe = _relocated(load(str(files.config), environ={}), folder)
        total = total_steps(recipe, row_count(recipe)) or None
    except RecipeError as error:
        total = about.get("total")
        if not about:
            notes.append(f"{files.config.name} cannot be read, another version may have written it: {error.what}")
    history = [metrics.per_token(step, recipe) for step in metrics.read_history(*written)]
    alive = _alive(files.lock)
    place = recipe.trainer.save_checkpoint_path if recipe else about.get("checkpoints", checkpoint_dir(folder.name))
    saved = Path(place or "")
    checkpoint = last_checkpoint(saved)
    steps = [*(step.step for step in history), checkpoint.step if checkpoint else 0]
    done = files.summary.is_file() or bool(total and max(steps) >= total)
    state: State = ("running" if history else "starting") if alive else "finished" if done else "ended early"
    signs = [file.stat().st_mtime for file in (*written, files.log) if file.is_file()]
    return Run(
        folder=folder,
        task=recipe.name if recipe else about.get("task", "unknown recipe"),
        history=history,
        recipe=recipe,
        total=total,
        state=state,
        notes=tuple(notes),
        checkpoint=checkpoint,
        best=best_checkpoint(saved),
        since=compares_since(folder),
        silent_s=max(0.0, time.time() - max(signs)) if alive and signs else None,
    )


def _relocated(recipe: Recipe, run: Path) -> Recipe:
    """The recipe with the paths of files that were moved, or copied, with the run's folder of artifacts."""
    dumps, here = Path(str(recipe.trainer.validation_data_dir)), run.absolute()
    if dumps.parts[-3:] != ("runs", recipe.experiment, "validation") or len(here.parents) < 2:
        return recipe
    then, now = dumps.parents[2], here.parents[1]
    if then == now:
        return recipe

    def moved(path: str) -> str:
        there = now / Path(path).relative_to(then) if Path(path).is_relative_to(then) else Path(path)
        return str(there) if there.exists() else path

    paths = {key: recipe.value(key) for key, leaf in leaves(Recipe).items() if leaf.info.path and recipe.value(key)}
    found = {key: [*map(moved, value)] if isinstance(value, list) else moved(value) for key, value in paths.items()}
    return replaced(recipe, found, "the folder of artifacts as it is now")


def _alive(lock: Path) -> bool:
    """True while the launcher that wrote its process id into the lock file runs; the lock is not taken."""
    try:
        pid = int(lock.read_text(encoding="utf-8"))
        # The id may have been reused since; that process then began after the file was written.
        return psutil.Process(pid).create_time() <= lock.stat().st_mtime + 1.0
    except (OSError, ValueError, psutil.Error):
        return False


CHANGES = "changes.jsonl"
"""File in the run's folder that lists the changes which RESUME=changed accepted."""
_HASH = 64
"""Characters of a hex SHA-256; a message shows the first 8."""


class Change(NamedTuple):
    """One thing that differs between two attempts."""

    name: str  # a key, or a name of compared content
    old: Any  # its values; hashes for content
    new: Any
    effect: str  # what becomes of the new value
    content: bool  # makes the resumed run another run

    @property
    def described(self) -> str:
        if isinstance(self.old, dict) and isinstance(self.new, dict):
            both = sorted(self.old.keys() & self.new.keys())
            parts = {
                "another": [name for name in both if self.old[name] != self.new[name]],
                "now": sorted(self.new.keys() - self.old.keys()),
                "no longer": sorted(self.old.keys() - self.new.keys()),
            }
            return f"{self.name}: " + ", ".join(f"{word} {', '.join(names)}" for word, names in parts.items() if names)
        if all(isinstance(value, str) and len(value) == _HASH for value in (self.old, self.new)):
            return f"{self.name}: {self.old[:8]} -> {self.new[:8]}"
        return f"{self.name}: {self.old!r} -> {self.new!r}"


class Changed(NamedTuple):
    """The changes of one resumption."""

    after_step: int  # the last step before it
    changes: tuple[Change, ...]
    validated: bool = False  # the model of `after_step` was validated anew

    @property
    def breaks_series(self) -> bool:
        """Scores or validations before and after do not compare."""
        return any(each.name in BREAKS or each.name.startswith("worker.reward.") for each in self.changes)


REWARD, TRAINING_ROWS, VALIDATION_ROWS = "reward", "training rows", "validation rows"
"""Content of an attempt that is no key."""
BREAKS = (REWARD, VALIDATION_ROWS, "content")
"""Changed content after which scores or validations do not compare; `content`: it is not known what differs."""


def add_changes(run: Path, after_step: int, changes: Sequence[Change], validated: bool = False) -> None:
    """Record in a run's folder what an attempt changes from the step after `after_step` on."""
    run.mkdir(parents=True, exist_ok=True)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    entry = {"time": now, "after_step": after_step, "validated": validated}
    with (run / CHANGES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**entry, "changes": [change._asdict() for change in changes]}) + "\n")


def compares_since(run: Path) -> int:
    """The first step whose validation compares with the last one: after the last change of the reward or the questions.

    Training scores compare from the step after it on, where it was validated anew.
    """
    breaks = [each for each in read_changes(run) if each.breaks_series]
    return breaks[-1].after_step + (not breaks[-1].validated) if breaks else 0


def read_changes(run: Path) -> list[Changed]:
    """The changes of a run, in order; incomplete lines are skipped."""
    file, found = run / CHANGES, []
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        with suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            changes = tuple(Change(**each) for each in entry["changes"])
            found.append(Changed(int(entry["after_step"]), changes, bool(entry.get("validated"))))
    return found


RECORD = "recipe.json"
"""File in the folder of the checkpoints: what each attempt trained, and the step that it began after."""
ROWS = {TRAINING_ROWS: "data.train_files", VALIDATION_ROWS: "data.val_files"}
TOOLS, TEMPLATE = "worker.rollout.tools", "data.override_chat_template"


@dataclass(frozen=True)
class Attempt:
    after_step: int  # the last step before it
    content: dict[str, Any]  # name -> value; None where it cannot be known yet. A changed value makes another run
    settings: dict[str, Any]  # key -> value, for the keys that may change between attempts


def recorded(place: Path) -> list[Attempt]:
    """The attempts whose checkpoints are in a folder, the oldest first; none where no record of them can be read."""
    try:
        found = json.loads((place / RECORD).read_text(encoding="utf-8"))
        return TypeAdapter(list[Attempt]).validate_python(found["attempts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def attempt_of(attempts: Sequence[Attempt], step: int) -> Attempt | None:
    """The attempt that made a step."""
    return next((attempt for attempt in reversed(attempts) if attempt.after_step < step), None)


def digest_of(recipe: Recipe, name: str) -> Any:
    """What an attempt records of the reward, of rows, or of the file that a key names; None where there is none."""
    if name == REWARD:
        return (reward := reward_call(recipe)) and reward_files(*reward, recipe.engine)
    if name in ROWS:
        return rows_digest(recipe, ROWS[name])
    file = Path(recipe.value(name) or "")
    return (file_digest(str(file)) if name == TOOLS else sha256(file)) if file.is_file() else None
