"""Faults of the real trainer: each run ends soon, says why, leaves nothing behind, and the same command goes on.

One experiment suffers every fault in turn, so that each start is also the resumption after the fault before.
Without a word from outside, a worker is killed while it saves. `FAULTS=all` injects all faults, `FAULTS=some` three,
`FAULTS=vllm@sync,gcs@update` those; each of these that ends as it should writes its row of docs/FAULTS.md. `RANKS=2`
trains on two ranks, of which one is killed.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from recipes.paths import ROOT
from recipes.runs.metrics import read_history

pytestmark = pytest.mark.trainer

PAGE = ROOT / "docs" / "FAULTS.md"
BEGIN, END = "<!-- generated: faults -->", "<!-- end of faults -->"
CHEAPEST = "worker@save"
WITHIN_S = 60.0
STEPS = "40"
SEGMENTS = "verl_weights_*"
"""Shared memory in which verl's trainer hands weights to vLLM."""
RANKS = int(os.environ.get("RANKS", "1"))


@dataclass(frozen=True)
class Fault:
    """What is injected, in the words of `injected/sitecustomize.py`, and what the launcher has to say."""

    what: str
    phase: str
    inject: str
    cause: str
    often: bool = False
    within_s: float = WITHIN_S


DEAD_SERVER = "process of CpuHttpServer died"
HUNG = "a process no longer answers|no output and no work"  # by Ray's keepalive, or by the watchdog if that is sooner
FAULTS = [
    Fault("worker killed", "saving", "worker@save", "process of WorkerDict died", often=True),
    Fault("vLLM server killed", "generating", "vllm@generate", DEAD_SERVER, often=True),
    Fault("disk full", "saving", "disk@save", "the disk is full", often=True),
    Fault("vLLM server hangs", "syncing weights", "vllm-stopped@sync", HUNG, within_s=500),
    Fault("trainer killed", "generating", "trainer@generate", "was killed"),
    Fault("trainer killed", "updating", "trainer@update", "was killed"),
    Fault("worker killed", "updating", "worker@update", "process of WorkerDict died"),
    Fault("vLLM server killed", "syncing weights", "vllm@sync", DEAD_SERVER),
    Fault("error in vLLM's worker", "receiving weights", "raises@receive", "injected"),
    Fault("Ray's raylet killed", "generating", "raylet@generate", "Ray's raylet was killed"),
    Fault("Ray's GCS killed", "updating", "gcs@update", "Ray's GCS was killed"),
    Fault("driver killed", "logging a saved step", "driver@log", "was killed"),
]


@dataclass(frozen=True)
class Attempt:
    """One start of the launcher: its end, and what is there afterwards."""

    code: int
    text: str
    seconds: float
    left: list[str]


class Experiment:
    """The Countdown recipe on its tiny model, which saves after each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints" / "countdown"
        self.attempts = 0

    @property
    def saved(self) -> int:
        return int((self.checkpoints / "latest_checkpointed_iteration.txt").read_text())

    @property
    def steps(self) -> list[int]:
        return [step.step for step in read_history(self.folder / "runs" / "countdown" / "metrics.jsonl")]

    def run(self, fault: str = "", steps: str = STEPS) -> Attempt:
        """Start the launcher with a fault and wait for its end."""
        self.attempts += 1
        fired, output = (self.folder / f"{name}-{self.attempts}" for name in ("fired", "output"))
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
            "ARTIFACTS_DIR": str(self.folder),
            "HARDWARE": "cpu",
            "GPUS_PER_NODE": str(RANKS),
            "MAX_STEPS": steps,
            "PYTHONPATH": f"{ROOT}:{Path(__file__).with_name('injected')}",
            "FAULT": fault,
            "FAULT_FIRED": str(fired),
        }
        keys = ("trainer.save_freq=1", "trainer.val_freq=-1", "trainer.val_before_train=false")
        before = set(Path("/dev/shm").glob(SEGMENTS))
        with output.open("w") as stream:
            command = [sys.executable, "-m", "recipes.launch", "countdown", *keys]
            done = subprocess.run(
                command, env=environment, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, timeout=500, check=False
            )
        seconds = time.time() - float(fired.read_text()) if fired.exists() else float("nan")
        left = [*_processes(self.folder), *_unused_segments(before)]
        return Attempt(done.returncode, output.read_text(), seconds, left)


def _processes(folder: Path) -> list[str]:
    left = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("ARTIFACTS_DIR") == str(folder):
                left.append(f"{process.pid} {process.name()}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return left


def _unused_segments(before: set[Path]) -> list[str]:
    """Shared memory that is new and that no process maps; what another run uses beside this one is mapped."""
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # the process has ended
            mapped += maps.read_text()
    return [str(path) for path in set(Path("/dev/shm").glob(SEGMENTS)) - before if path.name not in mapped]


def _outcome(experiment: Experiment, fault: Fault) -> tuple[list[str], list[str]]:
    """Inject a fault; the row of the table, and what is not as promised."""
    attempt = experiment.run(fault.inject)
    while math.isnan(attempt.seconds) and "try again when it is less so" in attempt.text:
        attempt = experiment.run(fault.inject)  # Ray did not start on a busy machine
    steps, saved = experiment.steps, experiment.saved
    found = [line.strip() for line in attempt.text.splitlines() if line.lstrip().startswith(("error:", "cause:"))]
    wrong = []
    if not attempt.seconds <= fault.within_s:
        wrong.append(f"ended after {attempt.seconds:.0f} s")
    if attempt.code == 0 or not re.search(fault.cause, attempt.text):
        wrong.append(f"exit code {attempt.code}, and not the cause {fault.cause!r}")
    if "Traceback" in attempt.text:
        wrong.append("a traceback")
    if attempt.left:
        wrong.append(f"left {attempt.left}")
    if steps != list(range(1, steps[-1] + 1)):
        wrong.append(f"metrics of the steps {steps}")
    if steps[-1] - saved > 1 or f"resumed from step {saved}" not in attempt.text:
        wrong.append(f"saved {saved} of {steps[-1]}")
    cause = re.split(r" \(|; ", found[-1].split(": ", 1)[1])[0] if found else ""
    what = f"one of {RANKS} ranks killed" if RANKS > 1 and fault.what == "worker killed" else fault.what
    row = [what, fault.phase, f"{attempt.seconds:.0f} s", f"`{cause}`", str(max(0, steps[-1] - saved))]
    return row, [f"{fault.what} while {fault.phase}: {text}\n{attempt.text[-1500:]}" for text in wrong]


def test_each_fault_ends_the_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    chosen = os.environ.get("FAULTS", CHEAPEST).split(",")
    experiment = Experiment(tmp_path)
    wrong = []
    for fault in FAULTS:
        if "all" in chosen or fault.inject in chosen or (fault.often and "some" in chosen):
            row, problems = _outcome(experiment, fault)
            wrong += problems
            print(row, problems, flush=True)
            if not problems and "FAULTS" in os.environ:
                _write(row)
    assert not wrong, "\n".join(wrong)
    if "FAULTS" not in os.environ:
        return  # test_resuming.py resumes

    saved = experiment.saved
    if saved == 1:  # no step before, to go back to
        resumed = experiment.run(steps="2")
        assert resumed.code == 0, resumed.text[-3000:]
        assert "resuming from step 1" in resumed.text
        assert (experiment.saved, experiment.steps, resumed.left) == (2, [1, 2], [])
        return
    torn = experiment.checkpoints / f"global_step_{saved}" / "actor" / f"optim_world_size_{RANKS}_rank_0.pt"
    os.truncate(torn, torn.stat().st_size // 2)
    last = experiment.run(steps=str(saved + 1))
    assert last.code == 0, last.text[-3000:]
    assert f"global_step_{saved}/actor/{torn.name} is cut off" in last.text
    assert f"resuming from step {saved - 1}" in last.text
    assert experiment.steps == list(range(1, saved + 2))
    assert not last.left
    if "FAULTS" in os.environ:
        _write(["checkpoint cut off", "stopped", "-", "resumes from the step before", "1"])


def _write(row: list[str]) -> None:
    """Put a row into the page's table, in the place of an earlier one of the same fault."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = table.strip().splitlines()
    name = f"| {row[0]} | {row[1]} | "
    place = next((index for index, line in enumerate(lines) if line.startswith(name)), len(lines))
    lines[place : place + 1] = ["| " + " | ".join(row) + " |"]
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", encoding="utf-8")
