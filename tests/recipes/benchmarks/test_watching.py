"""What a benchmark sees of a command: its time, its memory, its processes and its steps."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from recipes.benchmarks.watching import last_lines, step_seconds, watch

RUN = """
import json, os, subprocess, sys, time
held = bytearray(os.urandom(1 << 20) * 40)
child = subprocess.Popen([sys.executable, "-c", "import time; held = bytearray(b'x') * (60 << 20); time.sleep(1.5)"])
begin = time.process_time()
while time.process_time() - begin < 0.5:
    pass
with open(os.environ["METRICS"], "w") as metrics:
    for step, data in enumerate(({}, {"timing_s/step": 2.5, "timing_s/save_checkpoint": 0.5}, {"timing_s/step": 1.0})):
        print(json.dumps({"step": step, "data": data}), file=metrics, flush=True)
time.sleep(0.3)
child.wait()
print("told")
sys.exit(3)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("watched")
    metrics, log = folder / "metrics.jsonl", folder / "log"
    result = watch(
        [sys.executable, "-c", RUN],
        environment={"METRICS": str(metrics)},
        metrics=metrics,
        log=log,
        interval_s=0.05,
    )
    return result, log.read_text()


def test_exit_code_output_and_time(seen) -> None:  # type: ignore[no-untyped-def]
    result, output = seen

    assert result.exit_code == 3
    assert output.strip() == "told"
    assert result.wall_s > 1.4


def test_memory_and_cpu_of_all_processes_are_summed(seen) -> None:  # type: ignore[no-untyped-def]
    result, _ = seen

    assert 100 << 20 < result.peak_pss_bytes < 400 << 20
    assert result.peak_processes == 2
    assert result.cpu_s > 0.4
    assert result.cpu_s == pytest.approx(sum(result.cpu_by_process_s.values()))


def test_metrics_are_timed_and_checkpoints_left_out(seen) -> None:  # type: ignore[no-untyped-def]
    result, _ = seen

    assert 0 < result.first_metrics_s < result.wall_s
    assert result.step_s == [2.0, 1.0]


def test_a_run_without_metrics_has_no_steps(tmp_path: Path) -> None:
    assert step_seconds(tmp_path / "none.jsonl") == []


def test_a_signal_ends_the_command_and_leaves_its_report(tmp_path: Path) -> None:
    held = "import time\nprint('started', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('stopped')"
    log = tmp_path / "log"

    def send() -> None:
        while not (log.is_file() and "started" in log.read_text()):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    seen = watch([sys.executable, "-c", held], environment={}, metrics=tmp_path / "none", log=log, interval_s=0.02)
    thread.join()
    assert seen.exit_code == 0
    assert last_lines(log, 1) == "stopped"
