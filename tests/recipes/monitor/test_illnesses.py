"""The health rules and early stop on the real trainer: the tiny Countdown model, made ill on purpose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from recipes.engines.checkpoints import last_checkpoint
from recipes.monitor import runs
from recipes.paths import ROOT

pytestmark = [
    pytest.mark.trainer,
    pytest.mark.skipif("FAULTS" not in os.environ, reason="minutes of real illnesses: FAULTS=some or FAULTS=all"),
]
CONSTANT = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 0.5, "acc": 0.0}
"""


def launch(folder, *arguments, **variables):
    """Exit code, output and run of a short training of the tiny Countdown model."""
    environ = {**os.environ, "ARTIFACTS_DIR": str(folder), "HARDWARE": "cpu", "LOGGER": "console,file", **variables}
    done = subprocess.run(
        [sys.executable, "-m", "recipes.launch", "countdown", *arguments],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, runs.read(folder / "runs" / "countdown")


def test_a_learning_rate_times_100_is_named_and_the_run_ends_after_its_next_save(tmp_path):
    """The validation of step 2 has lost everything; step 3 saves, and verl's loop ends there by the callback."""
    keys = ("worker.actor.optim.lr=1e-2", "trainer.early_stop.patience=1")
    code, text, run = launch(tmp_path, *keys, MAX_STEPS="9", VAL_FREQ="2", SAVE_FREQ="3")
    assert code == 0, text
    assert "warning: KL: " in text
    assert "the run ends after its next save" in text
    assert run.step == 3
    assert last_checkpoint(tmp_path / "checkpoints" / "countdown").step == 3
    assert not (tmp_path / "checkpoints" / "countdown" / "stop").exists()
    assert {finding.rule.name for finding in run.findings() if finding.status == "warning"} >= {"KL"}


def test_a_constant_reward_and_kl_off_are_named(tmp_path):
    reward = tmp_path / "constant.py"
    reward.write_text(CONSTANT)
    keys = (f"worker.reward.reward_function={reward}", "algorithm.disable_kl=true", "trainer.val_before_train=false")
    code, text, run = launch(tmp_path, *keys, MAX_STEPS="3", VAL_FREQ="-1", SAVE_FREQ="-1")
    assert code == 0, text
    status = {finding.rule.name: finding.status for finding in run.findings()}
    assert (status["groups"], status["grad-norm"], status["KL"]) == ("failure", "failure", "warning")
    assert "failure: groups: " in text
