"""What a benchmark sees of a command: its time, its memory, its processes and its steps."""

from __future__ import annotations

import os
import signal
import sys
import threading

from recipes.benchmarks.watching import last_lines, watch

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
print("done")
sys.exit(3)
"""


def test_a_command_is_measured_with_its_children(tmp_path):
    metrics, log = tmp_path / "metrics.jsonl", tmp_path / "log"
    environment = {"METRICS": str(metrics)}
    seen = watch([sys.executable, "-c", RUN], environment=environment, metrics=metrics, log=log, interval_s=0.05)
    assert (seen.exit_code, log.read_text().strip()) == (3, "done")
    assert 100 << 20 < seen.peak_pss_bytes < 400 << 20
    assert seen.peak_processes == 2
    assert seen.cpu_s > 0.4
    assert 0 < seen.first_metrics_s < seen.wall_s
    assert seen.step_s == [2.0, 1.0]


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
    seen = watch([sys.executable, "-c", held], environment={}, metrics=nowhere, log=log, interval_s=0.02, memory=False)
    thread.join()
    assert seen.peak_processes == seen.peak_pss_bytes == 0, "nothing is looked at that was not asked for"
    assert (seen.exit_code, seen.step_s, last_lines(log, 1)) == (0, [], "stopped")
