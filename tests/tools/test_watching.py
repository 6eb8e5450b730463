"""A command that a benchmark runs: the time of its first metrics, and a signal that ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading

from tools.benchmarks.watching import last_lines, watch

RUN = """
import os, sys, time
open(os.environ["METRICS"], "w").write("{}")
print("done", flush=True)
time.sleep(0.3)
sys.exit(3)
"""


def test_a_command_is_timed_to_its_first_metrics(tmp_path):
    metrics, log = tmp_path / "metrics.jsonl", tmp_path / "log"
    environment = {"METRICS": str(metrics)}
    seen = watch([sys.executable, "-c", RUN], environment=environment, metrics=metrics, log=log, interval_s=0.02)
    assert (seen.exit_code, last_lines(log)) == (3, "done")
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
    assert (seen.exit_code, last_lines(log, 1)) == (0, "stopped")
