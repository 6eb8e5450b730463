"""verl's asynchronous trainer on two ranks: one generates, one step ahead of the other; a second start goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.paths import ROOT
from recipes.runs.metrics import read_history

pytestmark = pytest.mark.trainer

STALENESS = "training/off_policy/trajectory_staleness"


def start(folder: Path, steps: int) -> str:
    environ = {
        **os.environ,
        "ARTIFACTS_DIR": str(folder),
        "HARDWARE": "cpu",
        "GPUS_PER_NODE": "2",
        "ROLLOUT_GPUS": "1",
        "MAX_STEPS": str(steps),
        "SAVE_FREQ": "1",
        "VAL_FREQ": "-1",
    }
    command = [sys.executable, "-m", "recipes.launch", "countdown", "trainer.val_before_train=false"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    log = folder / "runs" / "countdown" / "train.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text()[-4000:] if log.exists() else "")
    return done.stdout


def test_responses_are_one_step_old_and_a_second_start_goes_on(tmp_path):
    assert "1 of 2 ranks only generate" in start(tmp_path, 3)
    assert "resuming from step 3" in start(tmp_path, 5)
    run = tmp_path / "runs" / "countdown"
    steps = {step.step: step for step in read_history(run / "metrics.jsonl")}
    assert list(steps) == [1, 2, 3, 4, 5]
    old = {number: step.get(f"{STALENESS}/mean") for number, step in steps.items()}
    assert (old[1], old[2], old[3], old[5]) == (0, 1, 1, 1)
    assert 0 <= old[4] <= 1, "prompts under way at the save are asked again"
    assert all(step.get(f"{STALENESS}_worst/max") <= 1 for step in steps.values())
    # The policy that sampled is the one that trains in the first step only.
    apart = {number: abs(step.get("actor/rollout_corr/kl")) for number, step in steps.items()}
    assert apart[1] < 1e-5 < apart[3] < 0.1
    for number in steps:
        lines = [json.loads(line) for line in (run / "rollouts" / f"{number}.jsonl").read_text().splitlines()]
        groups = [line["uid"].rsplit("_", 2)[0] for line in lines]
        assert len(lines) == 64
        assert {groups.count(group) for group in groups} == {8}, "whole groups"
        assert all(line["row_id"] for line in lines), "those that were finished at the save too"
