"""Supervision: a fake trainer that ends, crashes, hangs and is interrupted; no process and no shared memory is left."""

from __future__ import annotations

import io
import mmap
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from recipes.monitor.metrics import MetricsFollower, read_history
from recipes.monitor.process import Child, shared_memory_cleared
from recipes.monitor.progress import Progress
from recipes.monitor.rollouts import Rollouts
from recipes.monitor.supervise import Limits, Watchdog, supervise

FAKE = Path(__file__).with_name("fake_trainer.py")
PATIENT = Limits(idle_s=60, silent_s=60, alarmed_s=60)


class Trial:
    """One run of the fake trainer in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, io.StringIO()
        self.log, self.history, self.pids = folder / "train.log", folder / "metrics.jsonl", folder / "pids"

    def run(self, mode, *, limits=PATIENT, interrupt=(), steps=3, judge=lambda step: None):
        attempt = self.folder / f".attempt-{time.monotonic_ns()}"
        environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(attempt), "FAKE_PIDS": str(self.pids)}
        environment["FAKE_ROLLOUTS"] = str(self.folder / "rollouts")
        offset = self.log.stat().st_size if self.log.exists() else 0
        self.child = Child([sys.executable, str(FAKE), mode, str(steps)], environment, self.log, self.folder)
        if interrupt:
            threading.Thread(target=self._interrupt, args=(interrupt,), daemon=True).start()
        with Progress(Console(file=self.out, width=300), steps, Rollouts(self.folder / "rollouts").of) as progress:
            metrics = MetricsFollower(attempt, self.history)
            return supervise(self.child, self.log, offset, metrics, progress, limits, judge=judge)

    def _interrupt(self, numbers):
        deadline = time.monotonic() + 20
        while "step 2/" not in self.out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(1.0)

    @property
    def living(self):
        """Processes of the run, daemons that left its family among them."""
        return [pid for pid in map(int, self.pids.read_text().split()) if alive(pid)]

    @property
    def steps(self):
        return [step.step for step in read_history(self.history)]


@pytest.fixture
def trial(tmp_path):
    made = Trial(tmp_path)
    yield made
    made.child.stop(0.0, 0.0)


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_run_that_succeeds(trial):
    outcome = trial.run("good")
    assert (outcome.exit_code, outcome.error, outcome.left, trial.steps) == (0, None, (), [0, 1, 2, 3])
    text = trial.out.getvalue()
    assert "Ray is up" in text
    assert "validation at step 0: accuracy countdown 0.250" in text
    assert "step 3/3 | reward 0.300 | accuracy 0.750 | entropy 1.500 | KL 0.002 | grad-norm 0.700 | 1,234 tok" in text
    assert "Started a local Ray instance" not in text, "the trainer's own lines stay in the log"
    assert "Started a local Ray instance" in trial.log.read_text()


def test_a_crash_shows_the_first_real_error_of_this_attempt_and_keeps_the_metrics(trial):
    outcome = trial.run("crash")
    assert (outcome.exit_code, trial.steps) == (1, [0, 1, 2])
    assert outcome.error.error == "ValueError: the batch is empty"
    assert outcome.error.frame == "/site/verl/trainer/ppo.py:12 in fit"
    killed = trial.run("killed")
    assert (killed.code, killed.exit_code) == (-signal.SIGKILL, 1)
    assert "batch is empty" not in killed.error.error


@pytest.mark.parametrize("mode", ["daemons_crash", "daemons"])
def test_daemons_that_left_the_family_are_ended_too(trial, mode):
    bystander = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    trial.run(mode, limits=Limits(idle_s=4, silent_s=4, alarmed_s=4))
    assert trial.living == []
    assert alive(bystander.pid), "only this run's processes are ended"
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize(
    ("mode", "signals", "code"),
    [
        ("daemons", [signal.SIGTERM], 143),
        ("ignore_sigterm", [signal.SIGINT, signal.SIGINT], 130),  # the second one cuts the waiting short
    ],
)
def test_a_signal_ends_the_run_and_its_daemons(trial, mode, signals, code):
    began = time.monotonic()
    outcome = trial.run(mode, interrupt=signals)
    assert (outcome.interrupted, outcome.exit_code, outcome.error) == (signals[0], code, None)
    assert (trial.living, trial.steps) == ([], [0, 1, 2])
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("mode", "limits", "cause", "error"),
    [
        ("hang", Limits(idle_s=3, silent_s=600, alarmed_s=600), "no output and no work", ""),
        ("hang_after_exception", Limits(600, 600, alarmed_s=3), "an exception in a worker", "layer.weight is gone"),
    ],
)
def test_a_hang_is_noticed_and_its_cause_named(trial, mode, limits, cause, error):
    outcome = trial.run(mode, limits=limits)
    assert outcome.exit_code == 1
    assert cause in outcome.hung
    assert error in outcome.error.error


@pytest.mark.parametrize(("mode", "wrong"), [("hang", 1), ("good", 3)])
def test_a_step_that_is_judged_wrong_ends_the_run_and_fails_one_that_ended_well(trial, mode, wrong):
    outcome = trial.run(mode, judge=lambda step: f"step {step.step} is wrong" if step.step == wrong else None)
    assert (outcome.exit_code, outcome.fault, outcome.error) == (1, f"step {wrong} is wrong", None)
    assert not alive(trial.child.pid)


def test_the_trainer_dies_with_its_launcher(tmp_path):
    script = (
        "import os, sys, time; from pathlib import Path; from recipes.monitor.process import Child\n"
        "sleeper = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = Child(sleeper, dict(os.environ), Path(sys.argv[1]), Path())\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    launcher = psutil.Popen([sys.executable, "-c", script, str(tmp_path / "log")], stdout=-1, text=True)
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


ALARM, OUTPUT, STEP = "alarm", "output", "step"


@pytest.mark.parametrize(
    ("cpu", "events", "seconds", "verdict"),
    [
        (1.0, {}, 700, None),
        (1.0, {0: ALARM}, 120, None),
        (0.05, {}, 590, None),
        (0.05, {}, 601, "no output and no work"),
        (1.0, {}, 2390, None),
        (1.0, {}, 2401, "no output for 40 minutes"),
        (0.05, {0: ALARM}, 58, None),
        (0.05, {0: ALARM}, 61, "an exception in a worker"),
        (0.0, {0: ALARM, 10: STEP}, 100, None),  # the trainer has survived it
        (0.0, {0: ALARM, 1: STEP}, 62, "an exception in a worker"),  # a step that was done before it
        (0.0, {500: OUTPUT}, 999, None),
        (0.0, {500: OUTPUT}, 1101, "no output and no work"),
        (None, {}, 700, None),  # without a measure of CPU nothing counts as idle
    ],
)
def test_when_the_watchdog_gives_a_run_up(cpu, events, seconds, verdict):
    watchdog = Watchdog(Limits.from_environment({"WATCHDOG_MINUTES": "10"}), 0.0)
    for second in range(seconds + 1):
        if cpu is not None and second % 2 == 0:
            watchdog.saw_cpu(second, cpu * second)
        match events.get(second):
            case "step":
                watchdog.saw_step(second)
            case "alarm" | "output" as event:
                watchdog.saw_output(second, alarming=event == ALARM)
    said = watchdog.verdict(seconds)
    assert said is None if verdict is None else said.startswith(verdict)


def test_shared_memory_that_a_run_left_goes_and_everything_else_stays(tmp_path):
    (tmp_path / "verl_weights_before").write_bytes(b"x")
    with suppress(KeyError), shared_memory_cleared(tmp_path):
        for name in ("verl_weights_left", "psm_of_another_container"):
            (tmp_path / name).write_bytes(b"x" * 4096)
        opened = (tmp_path / "verl_weights_open").open("wb")
        (tmp_path / "verl_weights_mapped").write_bytes(b"x" * 4096)
        with (tmp_path / "verl_weights_mapped").open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
        raise KeyError
    left = {path.name.removeprefix("verl_weights_") for path in tmp_path.iterdir()}
    assert left == {"before", "psm_of_another_container", "open", "mapped"}
    opened.close()
    mapped.close()
