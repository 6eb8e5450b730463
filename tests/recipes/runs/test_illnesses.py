"""The health rules on the real trainer: the tiny Countdown model, made ill on purpose."""

import os
import subprocess
import sys

import pytest

from recipes.paths import ROOT
from recipes.runs import folder as runs
from recipes.runs.health import Evidence, findings
from recipes.runs.metrics import measured

WHY = "minutes of real illnesses: FAULTS=some or FAULTS=all"
pytestmark = [pytest.mark.trainer, pytest.mark.skipif("FAULTS" not in os.environ, reason=WHY)]
CONSTANT = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 0.5, "acc": 0.0}
"""
HACKED = f"""
import importlib.util

spec = importlib.util.spec_from_file_location("countdown", {str(ROOT / "reward_functions" / "countdown.py")!r})
countdown = importlib.util.module_from_spec(spec)
spec.loader.exec_module(countdown)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = countdown.compute_score(data_source, solution_str, ground_truth, extra_info)["acc"]
    return {{"score": 1.0 - right, "accuracy": right, "acc": right}}
"""
"""Pays for wrong answers; `accuracy` is what the answer is worth."""


def launch(folder, *arguments, reward=None, **variables):
    """Exit code, output, run and the status of each rule after a short training of the tiny Countdown model."""
    if reward:
        (folder / "reward.py").write_text(reward)
        arguments = (*arguments, f"worker.reward.reward_function={folder / 'reward.py'}")
    environ = {**os.environ, "ARTIFACTS_DIR": str(folder), "HARDWARE": "cpu", "LOGGER": "console,file", **variables}
    command = [sys.executable, "-m", "recipes.launch", "countdown", *arguments]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    run = runs.read(folder / "runs" / "countdown")
    found = findings(Evidence(run.history, run.recipe, measured(run.folder, run.recipe, run.history)))
    return text, run, {finding.rule.name: finding.status for finding in found}


def test_a_learning_rate_times_100_is_named(tmp_path):
    text, run, status = launch(tmp_path, "worker.actor.optim.lr=1e-2", MAX_STEPS="3", VAL_FREQ="-1", SAVE_FREQ="-1")
    assert "warning: KL: " in text
    assert (run.step, status["KL"]) == (3, "warning")


def test_a_constant_reward_no_kl_and_another_policy_in_vllm_are_named(tmp_path):
    blind = "+actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.rms_norm_eps=0.5"
    keys = ("algorithm.disable_kl=true", "trainer.val_before_train=false", blind)
    text, _, status = launch(tmp_path, *keys, reward=CONSTANT, MAX_STEPS="3", VAL_FREQ="-1", SAVE_FREQ="-1")
    ill = {"groups": "failure", "grad-norm": "failure", "KL": "warning", "vLLM and trainer": "failure"}
    assert status.items() >= ill.items()
    assert "failure: groups: " in text


def test_a_hacked_reward_is_named(tmp_path):
    more = {"LR": "3e-4", "MAX_STEPS": "24", "VAL_FREQ": "8", "SAVE_FREQ": "-1"}
    text, _, status = launch(tmp_path, "algorithm.disable_kl=true", reward=HACKED, **more)
    assert status["reward and validation"] == "warning"
    assert "warning: reward and validation: " in text
