"""GSM8K's launcher on the real trainer: one step of the tiny Qwen2 on generated word problems."""

from __future__ import annotations

import json

import launching
import pytest

from recipes.monitor.metrics import read_history, validation
from recipes.paths import ROOT

LAUNCHER = ROOT / "examples" / "gsm8k" / "qwen2_5_3b_gsm8k_grpo.sh"

pytestmark = pytest.mark.trainer


def test_one_step_is_made_validated_and_saved(tmp_path):
    text = launching.one_step(LAUNCHER, tmp_path, "gsm8k")
    assert "step 1/1 | reward " in text
    run = tmp_path / "runs" / "gsm8k"
    steps = read_history(run / "metrics.jsonl")
    assert [step.step for step in steps] == [0, 1]
    assert 0.1 <= validation(steps[0])["gsm8k"] <= 0.5  # the tiny model solves some of them, and leaves room
    assert steps[1].get("actor/grad_norm") > 0
    assert steps[1].get("training/rollout_probs_diff_max") < 1e-3
    rollouts = [json.loads(line) for line in (run / "rollouts" / "1.jsonl").read_text().splitlines()]
    assert len(rollouts) == 64
    assert {round(entry["score"], 3) for entry in rollouts} == {0.1, 1.0}  # right and wrong ones: a signal
    assert not [entry for entry in rollouts if "####" not in entry["output"]]  # the recipe's limit is long enough
    model = tmp_path / "checkpoints" / "gsm8k" / "global_step_1" / "actor" / "huggingface"
    assert json.loads((model / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    assert list(model.glob("*.safetensors"))
    assert not launching.left_behind(tmp_path)
