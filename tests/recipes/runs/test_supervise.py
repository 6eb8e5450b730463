"""Supervision: a fake trainer that ends, crashes, hangs and is interrupted; no process and no shared memory is left."""

import io
import mmap
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from recipes.engines.checkpoints import is_to_stop, last_checkpoint, request_stop
from recipes.runs import supervise as supervise_module
from recipes.runs.log import clean
from recipes.runs.metrics import MetricsFollower, read_history
from recipes.runs.process import Child, shared_memory_cleared
from recipes.runs.summary import failure
from recipes.runs.supervise import Watchdog, is_sign, supervise, watchdog_seconds
from recipes.runs.terminal import Progress

FAKE = Path(__file__).with_name("fake_trainer.py")


def run(folder, mode, limit_s, interrupts=0, number=signal.SIGINT):
    """What became of a run of the fake trainer, which is interrupted so often after its second step."""
    attempt, log, shown = folder / ".attempt-1", folder / "train.log", io.StringIO()
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(attempt), "FAKE_PIDS": str(folder / "pids")}
    if number == signal.SIGTERM:
        environment["FAKE_CHECKPOINTS"] = str(folder)
    child = Child([sys.executable, str(FAKE), mode], environment, log, folder)

    def interrupt():
        while "step 2/" not in shown.getvalue():
            time.sleep(0.05)
        for _ in range(interrupts):
            os.kill(os.getpid(), number)
            time.sleep(1.0)

    if interrupts:
        threading.Thread(target=interrupt, daemon=True).start()
    metrics = MetricsFollower(attempt, folder / "metrics.jsonl")
    progress = Progress(Console(file=shown, width=300), 3)
    outcome = supervise(child, log, 0, metrics, progress, limit_s, save_and_end=partial(request_stop, folder))
    assert not alive(child.pid)
    return outcome


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # also one that ends between the two questions
        return False


def test_a_trainer_that_ignores_signals_is_ended_by_the_second_one_with_its_daemons_and_nothing_else(tmp_path):
    bystander = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    outcome = run(tmp_path, "ignore_sigterm", 60, interrupts=2)
    assert (outcome.interrupted, outcome.exit_code, outcome.error) == (signal.SIGINT, 130, None)
    assert not [pid for pid in map(int, (tmp_path / "pids").read_text().split()) if alive(pid)]
    assert [step.step for step in read_history(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert alive(bystander.pid), "only this run's processes are ended"
    bystander.kill()
    bystander.wait()


def test_sigterm_has_the_present_step_saved_and_a_second_one_ends_the_run_at_once(tmp_path):
    for mode, signals, code in (("asked_to_stop", 1, 143), ("ignore_sigterm", 2, 143)):
        folder = tmp_path / mode
        folder.mkdir()
        outcome = run(folder, mode, 60, signals, signal.SIGTERM)
        assert (outcome.interrupted, outcome.exit_code) == (signal.SIGTERM, code)
        assert last_checkpoint(folder).step == 2
        assert is_to_stop(folder)


@pytest.mark.parametrize(
    ("mode", "error"), [("hang", ""), ("hang_and_count", ""), ("hang_after_exception", "layer.weight is gone")]
)
def test_a_hang_is_noticed_and_its_cause_named(tmp_path, monkeypatch, mode, error):
    monkeypatch.setattr(supervise_module, "LONGER", 1.0)  # a slow start counts as a silence that ended
    outcome = run(tmp_path, mode, 3)
    assert outcome.exit_code == 1
    assert "no output and no work" in outcome.hung
    assert ("waited for the reward or vLLM (pending: 0, running: 2" in outcome.hung) is (mode == "hang_and_count")
    assert "SIG" not in "".join(failure(outcome, tmp_path / "train.log", None)), "that was the launcher's own"
    assert error in outcome.error.error


def test_what_repeats_is_no_sign_of_life_and_verls_counts_are_one_when_they_change():
    said = set()
    for running, at, sign in ((8, 1, False), (8, 2, False), (7, 3, True), (7, 4, False)):
        line = clean(f"INFO:2026-01-01 00:0{at}:00,000:pending: 0, running: {running}, finished: 0, failure: 0")
        assert is_sign([line], said) is sign
        said.add(line)
    assert not is_sign([], said)
    assert not is_sign([clean("(TransferQueueController pid=7) KV_LIST: req_count=5707, req/min=1141.25")], said)
    assert is_sign([clean("WARNING 01-02 03:04:05 [file.py:1] retrying")], said)
    assert not is_sign([line, clean("(A pid=1) x")], {*said, clean("(A pid=1) x")})


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


@pytest.mark.parametrize(
    ("cpu", "steps", "lines", "seconds", "hangs", "crowd"),
    [
        (1.0, [], [], 40_000, False, 1.0),
        (0.05, [], [], 2300, False, 1.0),  # before its first step
        (0.05, [], [], 2450, True, 1.0),
        (0.05, [0], [], 650, True, 1.0),
        (1.0, [0], [], 9700, False, 1.0),
        (0.05, [0], [200], 3900, False, 1.0),  # came back from an idle silence, as where a judge answers late
        (0.05, [0], [200], 4500, True, 1.0),
        (0.1, [0], [], 650, True, 1.0),
        (0.1, [0], [], 650, False, 10.0),  # ten threads a core: the run's fair part
        (0.06, [0], [], 650, True, 10.0),  # what a run uses whose reward's own process died, Ray's daemons included
    ],
)
def test_when_the_watchdog_gives_a_run_up(cpu, steps, lines, seconds, hangs, crowd):
    watchdog = Watchdog(watchdog_seconds({"WATCHDOG_MINUTES": "10"}), 0.0, crowding=lambda: crowd)
    for second in range(seconds + 1):
        if second % 2 == 0:
            watchdog.note_cpu(second, cpu * second)
        if second in steps:
            watchdog.note_step(second)
        elif second in lines:
            watchdog.note_output(second)
    assert bool(watchdog.verdict(seconds)) is hangs


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
