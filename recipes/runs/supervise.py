"""The trainer, started and supervised until it ends, hangs, fails or is interrupted."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from recipes.config import Recipe, to_yaml
from recipes.config.rewards import reward_call
from recipes.config.variables import control
from recipes.data.rows import rows_digest
from recipes.engines.checkpoints import best_checkpoint, keep_best, last_checkpoint, request_stop, withdraw_stop
from recipes.engines.columns import answer_column, prompt_column, prompt_template
from recipes.errors import RecipeError, counted
from recipes.files import json_sha256
from recipes.paths import ROOT, relative_to_cwd, run_dir
from recipes.rewards.identity import reward_digest
from recipes.runs.folder import RunFiles, begin_attempt
from recipes.runs.health import MISMATCH_ADVICE, Health, mismatch, mismatch_bound
from recipes.runs.log import DroppedRows, Line, LogReader, TrainerError, first_error, phase_of
from recipes.runs.metrics import (
    MetricsFollower,
    Step,
    duration,
    held_out,
    number,
    per_token,
    read_history,
    seconds,
    validation,
)
from recipes.runs.process import Child, shared_memory_cleared
from recipes.runs.terminal import Progress

WATCHDOG_MINUTES = 5.0
STARTING = 4.0
"""The limit is multiplied by this before the first step, when nothing about the run is known."""
LONGER = 20.0
"""The limit is at least this multiple of the longest idle time that the run recovered from."""
WINDOW_S = 20.0
"""Seconds over which CPU use is averaged."""
IDLE_SHARE, WAITING_SHARE = 0.2, 0.08
"""Shares of one core: below the first a run is idle where the machine is not crowded, below the second anywhere. One
that waits for a reward for ever uses 0.06, Ray's daemons included. That an actor of Ray's died, Ray says at once."""


def watchdog_seconds(environ: Mapping[str, str]) -> float:
    """The limit of the watchdog: WATCHDOG_MINUTES, by default 5."""
    return 60 * (control(environ, "WATCHDOG_MINUTES") or WATCHDOG_MINUTES)


def crowding() -> float:
    """Runnable threads per core over the last minute; above 1, a run gets only a share of the cores."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class Watchdog:
    """Decides whether a run hangs: no new line, no new metrics, and processes that use next to no CPU.

    A collective that hangs keeps a core busy; torch ends it after 600 s. Times are seconds on a monotonic clock.

    Args:
        limit_s: idle seconds that count as a hang once the run has made a step; `STARTING` times that before; and
            never less than `LONGER` times the longest idle time that the run recovered from.
        crowding: divides the CPU threshold for idleness where it is above 1, down to what a waiting run uses.
    """

    def __init__(self, limit_s: float, now: float, crowding: Callable[[], float] = crowding) -> None:
        self._limit, self._window, self._crowding = limit_s, min(WINDOW_S, limit_s / 2), crowding
        self._alive_at, self._idle, self._stepped = now, False, False
        self._longest = 0.0
        self._measured: tuple[float, float] | None = None

    def note_output(self, now: float) -> None:
        """Note a sign of life: lines that were not there since the last step, or work."""
        if self._idle:
            self._longest = max(self._longest, now - self._alive_at)
        self._alive_at, self._idle = now, False

    def note_step(self, now: float) -> None:
        self.note_output(now)
        self._stepped = True

    def note_cpu(self, now: float, seconds: float) -> None:
        """Note the CPU time that the run's processes have used together."""
        since, before = self._measured = self._measured or (now, seconds)
        if now - since < self._window:
            return
        self._measured = now, seconds
        # The seconds of a process that ended are lost, so the sum may fall: that counts as work too.
        share = max(WAITING_SHARE, IDLE_SHARE / max(1.0, self._crowding()))
        if abs(seconds - before) < share * (now - since):
            self._idle = True
        else:
            self.note_output(now)

    def verdict(self, now: float) -> str | None:
        """The reason to end the run; None while it may go on."""
        silent = now - self._alive_at
        most = max((1.0 if self._stepped else STARTING) * self._limit, LONGER * self._longest)
        return f"no output and no work for {silent / 60:.0f} minutes" if self._idle and silent >= most else None


_COUNTS = "pending: "
"""Beginning of the line that verl writes every minute while it waits for responses, for ever if need be."""

_QUEUE = "TransferQueue"
"""In the name of the processes of verl's queue, which count their requests every five minutes, a waiting run's too."""


def is_sign(new: Sequence[Line], said: Set[Line]) -> bool:
    """Return whether new lines are a sign of life: not where all were `said` since the last step, are the queue's, or
    are verl's first counts, which tell something when they change."""
    fresh = {line for line in new if _QUEUE not in line.speaker} - said
    counts = {line for line in said | fresh if line.text.startswith(_COUNTS)} if fresh else set()
    return bool(fresh - counts) or len(counts) > 1


_POLL_S = 0.2
_PROCESSES_EVERY_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """End of a run."""

    code: int  # the trainer's exit code; 0 for success
    interrupted: signal.Signals | None = None  # the signal that the user sent
    hung: str | None = None  # why the watchdog ended the run
    fault: str | None = None  # what was wrong with a step's metrics, so that the run was ended
    error: TrainerError | None = None  # the first real error of a run that failed

    @property
    def exit_code(self) -> int:
        """The launcher's exit code: 128 + signal when interrupted, as shells do."""
        if self.interrupted:
            return 128 + self.interrupted
        return 1 if self.hung or self.fault or self.code != 0 else 0


def supervise(
    child: Child,
    log: Path,
    offset: int,
    metrics: MetricsFollower,
    progress: Progress,
    limit_s: float,
    on_step: Sequence[Callable[[Step], str | None]] = (),
    save_and_end: Callable[[], None] | None = None,
) -> Outcome:
    """Watch until the trainer ends; afterwards no process of the run is left.

    Args:
        log: the trainer's log; this attempt begins at `offset`.
        limit_s: the watchdog's limit.
        on_step: called with each step after its line was printed; a returned text is a fault, which ends the run.
        save_and_end: asks the trainer to save its step and to end, after SIGTERM; None where it saves nothing.
    """
    watchdog, lines, dropped = Watchdog(limit_s, time.monotonic()), LogReader(log, offset), DroppedRows()
    faults: list[str] = []
    said: set[Line] = set()  # since the last step
    last = ""  # line of the log
    trained: Step | None = None  # the last step that trained, and is no validation alone

    def look() -> None:
        """Print what is new."""
        nonlocal trained, last
        now = time.monotonic()
        new = lines.read()
        if is_sign(new, said):
            watchdog.note_output(now)
        said.update(new)
        last = new[-1].text if new else last
        for phase in filter(None, map(phase_of, new)):
            progress.phase(phase)
        for note in filter(None, map(dropped.read, new)):
            progress.note(f"note: {note} ({relative_to_cwd(log)})")
        for step in metrics.poll():
            watchdog.note_step(now)
            said.clear()
            progress.step(step)
            trained = step if step.step and step.get("timing_s/step") is not None else trained
            faults.extend(filter(None, [act(step) for act in on_step]))

    looked_at_processes, hung, saving = 0.0, None, False
    with _caught_signals() as caught:
        while child.poll() is None and len(caught) <= saving:
            look()
            now = time.monotonic()
            if now - looked_at_processes >= _PROCESSES_EVERY_S:
                looked_at_processes = now
                child.refresh()
                watchdog.note_cpu(now, child.cpu_seconds())
            hung = watchdog.verdict(now)
            if hung and last.startswith(_COUNTS):
                hung += f", while verl waited for the reward or vLLM ({last})"
            if hung or faults:
                break
            progress.tick()
            time.sleep(_POLL_S)
            if caught == [signal.SIGTERM] and save_and_end and not saving and trained:
                saving = True
                save_and_end()
                progress.note(
                    f"SIGTERM: the present step is saved, and the last, in about {duration(seconds(trained))}; another "
                    "signal ends the run at once"
                )
        ended_by_itself = child.poll() is not None
        if not ended_by_itself:
            progress.note("stopping the trainer, Ray and vLLM ...")
        signals = len(caught)
        child.stop(terminate_s=1.0 if hung or faults else 15.0, abort=lambda: len(caught) > signals)
    look()
    code = child.poll() or 0
    failed = hung is not None or (code != 0 and not caught and not faults)
    return Outcome(
        code=code,
        interrupted=caught[0] if caught and (saving or not (ended_by_itself and code == 0)) else None,
        hung=hung,
        fault=faults[0] if faults else None,
        error=first_error(LogReader(log, offset).read()) if failed else None,
    )


@contextmanager
def _caught_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of dying of them."""
    caught: list[signal.Signals] = []
    # A signal that nohup or a shell set to be ignored stays ignored.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: caught.append(signal.Signals(got))) for number in handled}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BestCheckpoint:
    """Keeps the saved step with the highest held-out accuracy, or score, as `best/` (`trainer.keep_best`).

    verl saves, then validates, then logs: when a step's validation arrives here, its checkpoint, if any, is written.
    """

    def __init__(self, recipe: Recipe, log: Callable[[str], None]) -> None:
        self._folder, self._log = Path(str(recipe.trainer.save_checkpoint_path)), log
        self._held_out = partial(held_out, run_dir(recipe.experiment), recipe)
        call = reward_call(recipe)
        reward = [call and reward_digest(*call, recipe.engine), recipe.worker.reward.overlong_buffer.model_dump()]
        asked = [prompt_column(recipe), answer_column(recipe), prompt_template(recipe), recipe.data.max_response_length]
        sampling = recipe.worker.rollout.val_override_config.model_dump()
        questions = [rows_digest(recipe, "data.val_files"), asked, sampling]
        self._chosen_by = {"reward": json_sha256(reward), "validation": json_sha256(questions)}

    def add_step(self, step: Step) -> None:
        """Keep the step's checkpoint if it was saved and its validation is the highest so far."""
        last, until = last_checkpoint(self._folder), time.monotonic() + 2.0
        if last is None or last.step != step.step or validation(step) is None:
            return
        with _caught_signals() as caught:  # verl's other trainers log before the dump is whole
            while (validated := self._held_out(step)) is None and not caught and time.monotonic() < until:
                time.sleep(_POLL_S)
        for each in caught:
            signal.raise_signal(each)
        if validated is None or not math.isfinite(validated.value):
            return
        measure, value = validated.measure, validated.value
        best, chosen_by = best_checkpoint(self._folder), {"metric": measure, **self._chosen_by}
        if best and best.chosen_by == chosen_by and value <= best.value:
            return
        try:
            kept = keep_best(last, {**chosen_by, "value": value})
        except (OSError, RecipeError) as error:
            self._log(f"warning: the best checkpoint, step {step.step}, could not be kept: {error}")
        else:
            shown = f"{measure} {number(value)}, kept in {relative_to_cwd(kept)}"
            self._log(f"best so far: step {step.step}, validation {shown}")


def resumed_history(recipe: Recipe, files: RunFiles, last: int) -> list[Step]:
    """The steps up to the checkpoint of step `last`. Raises RecipeError where one has an image mismatch."""
    history = [per_token(step, recipe) for step in read_history(files.metrics) if step.step <= last]
    most = mismatch_bound(recipe, os.environ)
    if found := next((text for step in history if (text := mismatch(step, most))), None):
        what = f"the checkpoint to go on from was trained on a wrong image: {found}"
        fix = f"remove that folder, or choose another EXPERIMENT_NAME; {MISMATCH_ADVICE}"
        raise RecipeError(what, where=str(recipe.trainer.save_checkpoint_path), fix=fix)
    return history


def train(
    recipe: Recipe,
    files: RunFiles,
    command: Sequence[str],
    variables: Mapping[str, str],
    history: list[Step],
    total: int | None,
    limit_s: float,
    console: Console,
) -> Outcome:
    """Start the trainer by its command, with variables besides the launcher's, and watch it until it ends.

    `history` has the steps up to the checkpoint that it resumes from; `total` is the number of steps, where known.
    """
    most, checkpoints = mismatch_bound(recipe, os.environ), Path(str(recipe.trainer.save_checkpoint_path))
    withdraw_stop(checkpoints)
    offset = begin_attempt(files, to_yaml(recipe), command, variables)
    # Printed last before hours of training: where MAX_STEPS was mistyped, the number of steps shows it.
    for note in recipe.resolution.unread:
        console.print(f"note: {note}; the run makes {counted(total, 'step') if total else 'all steps'}")
    console.print(f"the trainer's own output goes to {relative_to_cwd(files.log)}")

    on_step: list[Callable[[Step], str | None]] = [partial(mismatch, most=most)]
    on_step.append(Health(recipe, history, files.folder, console.print).add_step)
    if recipe.trainer.keep_best:
        on_step.append(BestCheckpoint(recipe, console.print).add_step)
    progress = Progress(console, total, partial(held_out, files.folder, recipe))
    with shared_memory_cleared():
        progress.phase("the trainer starts: Python's imports and Ray")
        return supervise(
            child=Child(command, {**os.environ, **variables}, files.log, ROOT),
            log=files.log,
            offset=offset,
            metrics=MetricsFollower(files.attempt, files.metrics, recipe),
            progress=progress,
            limit_s=limit_s,
            on_step=on_step,
            save_and_end=partial(request_stop, checkpoints) if recipe.trainer.save_freq > 0 else None,
        )
