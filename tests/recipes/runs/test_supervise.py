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

from recipes.runs.metrics import MetricsFollower, read_history
from recipes.runs.process import Child, shared_memory_cleared
from recipes.runs.supervise import Limits, Watchdog, supervise
from recipes.runs.terminal import Progress

FAKE = Path(__file__).with_name("fake_trainer.py")


def run(folder, mode, limits, interrupts=0):
    """What became of a run of the fake trainer, which is interrupted so often after its second step."""
    attempt, log, shown = folder / ".attempt-1", folder / "train.log", io.StringIO()
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(attempt), "FAKE_PIDS": str(folder / "pids")}
    child = Child([sys.executable, str(FAKE), mode], environment, log, folder)

    def interrupt():
        while "step 2/" not in shown.getvalue():
            time.sleep(0.05)
        for _ in range(interrupts):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)

    if interrupts:
        threading.Thread(target=interrupt, daemon=True).start()
    with Progress(Console(file=shown, width=300), 3) as progress:
        metrics = MetricsFollower(attempt, folder / "metrics.jsonl")
        outcome = supervise(child, log, 0, metrics, progress, limits)
    assert not alive(child.pid)
    return outcome


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_trainer_that_ignores_signals_is_ended_by_the_second_one_with_its_daemons_and_nothing_else(tmp_path):
    bystander = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    outcome = run(tmp_path, "ignore_sigterm", Limits(idle_s=60, silent_s=60, alarmed_s=60), interrupts=2)
    assert (outcome.interrupted, outcome.exit_code, outcome.error) == (signal.SIGINT, 130, None)
    assert not [pid for pid in map(int, (tmp_path / "pids").read_text().split()) if alive(pid)]
    assert [step.step for step in read_history(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert alive(bystander.pid), "only this run's processes are ended"
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize(
    ("mode", "limits", "cause", "error"),
    [
        ("hang", Limits(idle_s=3, silent_s=600, alarmed_s=600), "no output and no work", ""),
        ("hang_after_exception", Limits(600, 600, alarmed_s=3), "an exception in a worker", "layer.weight is gone"),
    ],
)
def test_a_hang_is_noticed_and_its_cause_named(tmp_path, mode, limits, cause, error):
    outcome = run(tmp_path, mode, limits)
    assert outcome.exit_code == 1
    assert cause in outcome.hung
    assert error in outcome.error.error


def test_the_trainer_dies_with_its_launcher(tmp_path):
    script = (
        "import os, sys, time; from pathlib import Path; from recipes.runs.process import Child\n"
        "sleeper = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = Child(sleeper, dict(os.environ), Path(sys.argv[1]), Path())\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    launcher = psutil.Popen([sys.executable, "-c", script, str(tmp_path / "log")], stdout=-1, text=True)
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 300
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


ALARM, STEP, LINE = "alarm", "step", "line"


@pytest.mark.parametrize(
    ("cpu", "events", "seconds", "verdict"),
    [
        (1.0, {}, 40_000, "no output for 6"),  # busy before its first step
        (0.05, {}, 2300, None),
        (0.05, {}, 2450, "no output and no work"),
        (0.05, {0: STEP}, 650, "no output and no work"),
        (1.0, {0: STEP}, 9500, None),
        (1.0, {0: STEP}, 9700, "no output for 16"),
        (1.0, {0: STEP, 1000: STEP}, 19_000, None),  # steps of a thousand seconds: twenty of them
        (1.0, {0: STEP, 1000: STEP}, 22_000, "no output for 35"),
        (0.05, {0: STEP, 200: LINE}, 3900, None),  # came back from an idle silence, as where a judge answers late
        (0.05, {0: STEP, 200: LINE}, 4500, "no output and no work"),
        (0.05, {0: ALARM}, 200, None),
        (0.05, {0: ALARM}, 270, "an exception in a worker"),
        (0.0, {0: STEP, 4: ALARM}, 90, "an exception in a worker"),
        (0.0, {0: ALARM, 10: STEP}, 300, None),  # the trainer has survived it
        (0.0, {0: ALARM, 1: STEP}, 90, "an exception in a worker"),  # a step that was done before it
    ],
)
def test_when_the_watchdog_gives_a_run_up(cpu, events, seconds, verdict):
    watchdog = Watchdog(Limits.from_environment({"WATCHDOG_MINUTES": "10"}), 0.0)
    for second in range(seconds + 1):
        if second % 2 == 0:
            watchdog.note_cpu(second, cpu * second)
        if events.get(second) == STEP:
            watchdog.note_step(second)
        elif second in events:
            watchdog.note_output(second, alarming=events[second] == ALARM)
    said = watchdog.verdict(seconds)
    assert said is None if verdict is None else said.startswith(verdict)


def test_a_run_that_shares_its_cores_with_many_others_is_not_taken_for_idle():
    """Ten threads a core: what would be idle on a machine of its own is this run's fair part."""
    for crowd, gives_up in ((1.0, True), (10.0, False)):
        watchdog = Watchdog(Limits(60, 6000), 0.0, crowding=lambda crowd=crowd: crowd)
        watchdog.note_step(0)
        for second in range(0, 200, 2):
            watchdog.note_cpu(second, 0.1 * second)
        assert bool(watchdog.verdict(199)) is gives_up


def test_shared_memory_that_a_run_left_goes_and_everything_else_stays(tmp_path):
    (tmp_path / "verl_weights_before").write_bytes(b"x")
    with suppress(KeyError), shared_memory_cleared(tmp_path):
        for name in ("verl_weights_left", "psm_of_another_container"):
            (tmp_path / name).write_bytes(b"x" * 4096)
        (tmp_path / "verl_weights_mapped").write_bytes(b"x" * 4096)
        with (tmp_path / "verl_weights_mapped").open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
        raise KeyError
    left = {path.name.removeprefix("verl_weights_") for path in tmp_path.iterdir()}
    assert left == {"before", "psm_of_another_container", "mapped"}
    mapped.close()
