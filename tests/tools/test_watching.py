"""A command that a benchmark runs: its steps' times, and a signal that ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading

from tools.benchmarks.watching import last_lines, watch

RUN = """
import json, os, sys
with open(os.environ["METRICS"], "w") as metrics:
    for step, data in enumerate(({}, {"timing_s/step": 2.5, "timing_s/save_checkpoint": 0.5}, {"timing_s/step": 1.0})):
        print(json.dumps({"step": step, "data": data}), file=metrics, flush=True)
print("done")
__import__("time").sleep(0.3)
sys.exit(3)
"""


def test_a_command_and_its_steps_are_timed(tmp_path):
    metrics, log = tmp_path / "metrics.jsonl", tmp_path / "log"
    environment = {"METRICS": str(metrics)}
    seen = watch([sys.executable, "-c", RUN], environment=environment, metrics=metrics, log=log, interval_s=0.02)
    assert (seen.exit_code, seen.step_s, last_lines(log)) == (3, [2.0, 1.0], "done")
    assert seen.first_metrics_s > 0


def test_a_signal_ends_the_command_and_leaves_its_report(tmp_path):
    held = "import time\nprint('started', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('stopped')"
    log, ended = tmp_path / "log", threading.Event()

    def send():
        while not (log.is_file() and "started" in log.read_text()):
            ended.wait(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    nowhere = tmp_path / "none"
    seen = watch([sys.executable, "-c", held], environment={}, metrics=nowhere, log=log, interval_s=0.02)
    thread.join()
    assert (seen.exit_code, seen.step_s, last_lines(log, 1)) == (0, [], "stopped")
