"""Supervision: a fake trainer that ends, crashes, hangs and is interrupted; no process is left."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from recipes.monitor.metrics import MetricsFollower, read_history, rollout_accuracy
from recipes.monitor.process import Child
from recipes.monitor.progress import Progress
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
        progress = Progress(
            Console(file=self.out, width=300), steps, lambda step: rollout_accuracy(self.folder / "rollouts", step)
        )
        with progress:
            metrics = MetricsFollower(attempt, self.history)
            return supervise(self.child, self.log, offset, metrics, progress, limits, judge=judge)

    def _interrupt(self, numbers):
        deadline = time.monotonic() + 20
        while "step 2/" not in self.out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(1.0)

    def started(self):
        return [int(pid) for pid in self.pids.read_text().split()]

    @property
    def text(self):
        return self.out.getvalue()


@pytest.fixture
def trial(tmp_path):
    found = Trial(tmp_path)
    yield found
    found.child.tree.stop(0.0, 0.0)


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_run_that_succeeds(trial):
    outcome = trial.run("good")
    assert (outcome.exit_code, outcome.error, outcome.left) == (0, None, ())
    assert [step.step for step in read_history(trial.history)] == [0, 1, 2, 3]
    assert "Ray is up" in trial.text
    assert "validation at step 0: accuracy countdown 0.250" in trial.text
    assert (
        "step 3/3 | reward 0.300 | accuracy 0.750 | entropy 1.500 | KL 0.002 | grad-norm 0.700 | 1,234 tokens/s/GPU"
        in trial.text
    )
    assert "Started a local Ray instance" not in trial.text, "the trainer's own lines stay in the log"
    assert "Started a local Ray instance" in trial.log.read_text()


def test_a_crash_shows_the_first_real_error_and_keeps_the_metrics(trial):
    outcome = trial.run("crash")
    assert outcome.exit_code == 1
    assert outcome.error.error == "ValueError: the batch is empty"
    assert outcome.error.frame == "/site/verl/trainer/ppo.py:12 in fit"
    assert [step.step for step in read_history(trial.history)] == [0, 1, 2]


def test_only_this_attempts_errors_count(trial):
    trial.run("crash_at_start")
    outcome = trial.run("killed")
    assert outcome.code == -signal.SIGKILL
    assert outcome.exit_code == 1
    assert "batch is empty" not in outcome.error.error


@pytest.mark.parametrize("mode", ["daemons_crash", "daemons"])
def test_daemons_that_left_the_family_are_ended_too(trial, mode):
    bystander = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    trial.run(mode, limits=Limits(idle_s=4, silent_s=4, alarmed_s=4))
    assert [pid for pid in trial.started() if alive(pid)] == []
    assert alive(bystander.pid), "only this run's processes are ended"
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_its_daemons(trial, number, code):
    outcome = trial.run("daemons", interrupt=[number])
    assert (outcome.interrupted, outcome.exit_code, outcome.error) == (number, code, None)
    assert [pid for pid in trial.started() if alive(pid)] == []
    assert [step.step for step in read_history(trial.history)] == [0, 1, 2]


def test_a_second_signal_ends_a_trainer_that_ignores_the_first(trial):
    began = time.monotonic()
    outcome = trial.run("ignore_sigterm", interrupt=[signal.SIGINT, signal.SIGINT])
    assert outcome.exit_code == 130
    assert [pid for pid in trial.started() if alive(pid)] == []
    assert time.monotonic() - began < 12, "the second signal cuts the waiting short"


def test_a_hang_is_noticed(trial):
    outcome = trial.run("hang", limits=Limits(idle_s=3, silent_s=600, alarmed_s=600))
    assert outcome.exit_code == 1
    assert "no work" in outcome.hung


def test_a_hang_after_an_exception_is_noticed_sooner_and_names_it(trial):
    outcome = trial.run("hang_after_exception", limits=Limits(idle_s=600, silent_s=600, alarmed_s=3))
    assert "exception" in outcome.hung
    assert outcome.error.error == "RuntimeError: layer.weight is gone"


def test_a_step_that_is_judged_wrong_ends_the_run(trial):
    outcome = trial.run("hang", judge=lambda step: "nonsense" if step.get("critic/score/mean") == 0.1 else None)
    assert (outcome.exit_code, outcome.fault, outcome.error) == (1, "nonsense", None)
    assert not alive(trial.child.pid)


def test_a_wrong_last_step_fails_a_run_that_ended_well(trial):
    outcome = trial.run("good", judge=lambda step: f"step {step.step} is wrong" if step.step == 3 else None)
    assert (outcome.code, outcome.exit_code, outcome.fault) == (0, 1, "step 3 is wrong")


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
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


LIMITS = Limits(idle_s=600, silent_s=2400, alarmed_s=60)


def watched(cpu_per_second, seconds, alarming=False, start=0.0):
    """A watchdog after so many seconds without output, with a constant use of CPU."""
    watchdog = Watchdog(LIMITS, start)
    watchdog.saw_output(start, alarming)
    for second in range(0, seconds + 1, 2):
        watchdog.saw_cpu(start + second, cpu_per_second * second)
    return watchdog.verdict(start + seconds)


def test_a_busy_silent_run_may_go_on():
    assert watched(1.0, 700) is None
    assert watched(1.0, 120, alarming=True) is None


def test_an_idle_silent_run_is_given_up():
    assert watched(0.05, 590) is None
    assert "no work" in watched(0.05, 601)


def test_a_run_that_spins_in_silence_is_given_up_later():
    assert watched(1.0, 2390) is None
    assert "no output for 40 minutes" in watched(1.0, 2401)


def test_silence_after_an_exception_is_given_up_soon():
    assert watched(0.05, 58, alarming=True) is None
    assert "exception" in watched(0.05, 61, alarming=True)


def test_a_step_after_an_exception_clears_the_alarm():
    watchdog = Watchdog(LIMITS, 0.0)
    watchdog.saw_output(0.0, alarming=True)
    watchdog.saw_step(10.0)
    for second in range(0, 101, 2):
        watchdog.saw_cpu(second, 0.0)
    assert watchdog.verdict(100.0) is None


def test_output_is_a_sign_of_life():
    watchdog = Watchdog(LIMITS, 0.0)
    for second in range(0, 1000, 2):
        watchdog.saw_cpu(second, 0.0)
    watchdog.saw_output(500.0, alarming=False)
    assert watchdog.verdict(999.0) is None
    assert watchdog.verdict(1101.0) is not None


def test_without_a_measure_of_cpu_nothing_counts_as_idle():
    watchdog = Watchdog(LIMITS, 0.0)
    assert watchdog.verdict(700.0) is None


def test_minutes():
    assert Limits.from_minutes(10) == Limits(idle_s=600, silent_s=2400)


def test_a_step_that_is_read_together_with_an_exception_does_not_clear_it():
    watchdog = Watchdog(LIMITS, 0.0)
    watchdog.saw_output(0.0, alarming=True)
    watchdog.saw_step(0.0)
    for second in range(0, 101, 2):
        watchdog.saw_cpu(second, 0.0)
    assert "exception" in watchdog.verdict(61.0)
