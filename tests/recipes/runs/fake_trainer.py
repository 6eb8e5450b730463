"""Stands in for verl's trainer: writes metrics and log lines as it does, and misbehaves on request.

`fake_trainer.py MODE [STEPS]`; the metrics go to VERL_FILE_LOGGER_PATH, checkpoints to FAKE_CHECKPOINTS.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from zipfile import ZipFile

RAY = "\x1b[36m(TaskRunnerV1 pid=77)\x1b[0m "
SLEEPER = "import time; time.sleep(600)"


def say(text):
    print(text, flush=True)


def write_step(step, blind=False):
    data = {"critic/score/mean": 0.1 * step, "actor/entropy": 1.5, "actor/reward_kl_penalty": 0.002}
    data |= {"reward_accuracy": step / 4, "actor/grad_norm": 0.7, "perf/throughput": 1234.5}
    data |= {"timing_s/step": 2.5, "timing_s/gen": 1.5}
    data |= {"rollout_corr/kl": 1.3 if blind else 2e-7, "training/rollout_probs_diff_max": 0.97 if blind else 1e-5}
    if step == 0:
        data = {}
    if step in (0, 2):
        data["val-core/countdown/acc/mean@1"] = 0.25 + 0.1 * step
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "ab", buffering=0) as file:
        file.write(json.dumps({"step": step, "data": data}).encode() + b"\n")


def archive(file):
    with ZipFile(file, "w") as opened:
        for name in ("data.pkl", "data/0"):
            opened.writestr(f"{file.stem}/{name}", b"x" * 100)


def save(step):
    folder = Path(os.environ["FAKE_CHECKPOINTS"])
    model = folder / f"global_step_{step}" / "actor" / "huggingface"
    model.mkdir(parents=True, exist_ok=True)
    for name in ("actor/model_world_size_1_rank_0", "actor/optim_world_size_1_rank_0", "data"):
        archive(folder / f"global_step_{step}" / f"{name}.pt")
    archive(folder / f"global_step_{step}" / "actor" / "extra_state_world_size_1_rank_0.pt")
    (model / "model.safetensors").write_bytes(b"x" * 2048)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def first_step():
    tracker = Path(os.environ.get("FAKE_CHECKPOINTS", "nowhere")) / "latest_checkpointed_iteration.txt"
    return int(tracker.read_text()) if tracker.is_file() else 0


def daemon():
    """As Ray's daemons: own session, reparented when the trainer dies."""
    return subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)


def crash():
    say(RAY + "Traceback (most recent call last):")
    say(RAY + '  File "/site/verl/trainer/ppo.py", line 12, in fit')
    say(RAY + "    self.step()")
    say(RAY + "ValueError: the batch is empty")
    say("ray.exceptions.RayTaskError(ValueError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=77, ip=192.0.2.2)")
    sys.exit(1)


def main(mode, steps):
    start = first_step()
    say("2026-01-01 00:00:00,000\tINFO worker.py:2038 -- Started a local Ray instance.")
    say(RAY + "Creating file logger at x")
    if mode == "ignore_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Path(os.environ["FAKE_PIDS"]).write_text(f"{os.getpid()} {daemon().pid}")
    if mode == "crash_at_start":
        crash()
    write_step(start)
    for step in range(start + 1, steps + 1):
        if "FAKE_CHECKPOINTS" in os.environ:
            save(step)
        write_step(step, blind=mode == "blind" and step >= 2)
        if mode == "crash" and step == 2:
            crash()
        if mode == "hang_after_exception" and step == 2:
            say(RAY + "Traceback (most recent call last):")
            say(RAY + '  File "/site/vllm/worker.py", line 3, in update_weights')
            say(RAY + "RuntimeError: layer.weight is gone")
            time.sleep(600)
        while mode == "hang_and_count" and step == 2:
            moment = time.strftime("%Y-%m-%d %H:%M:%S,000")
            say(f"INFO:{moment}:pending: 0, running: 2, finished: 0, failure: 0")
            time.sleep(0.5)
        if mode in ("ignore_sigterm", "hang") and step == 2:
            time.sleep(600)
        if mode == "asked_to_stop" and step == 2:
            while not (Path(os.environ["FAKE_CHECKPOINTS"]) / "stop").exists():
                time.sleep(0.05)
            return
    say("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
