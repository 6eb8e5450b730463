"""The README's first command on the real trainer: a step, an interruption, a resumption, and nothing left behind."""

from __future__ import annotations

import json
import signal

import launching
import pytest

from recipes.monitor.metrics import read_history, validation
from recipes.paths import ROOT

LAUNCHER = ROOT / "examples" / "countdown" / "qwen3_4b_countdown_grpo.sh"

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def one_step(tmp_path_factory):
    """Artifacts and output of `MAX_STEPS=1 bash examples/countdown/qwen3_4b_countdown_grpo.sh`."""
    artifacts = tmp_path_factory.mktemp("one_step")
    return artifacts, launching.one_step(LAUNCHER, artifacts, "countdown")


def test_one_step_is_made_validated_and_saved(one_step):
    artifacts, text = one_step
    assert "step 1/1 | reward " in text
    assert "validation at step 0: accuracy countdown" in text
    assert "MAX_STEPS=2 bash examples/countdown/qwen3_4b_countdown_grpo.sh" in text
    steps = read_history(artifacts / "runs" / "countdown" / "metrics.jsonl")
    assert [step.step for step in steps] == [0, 1]
    assert all(0 <= validation(step)["countdown"] <= 1 for step in steps)
    assert steps[1].get("actor/grad_norm") > 0
    assert steps[1].get("training/rollout_probs_diff_max") < 1e-3
    assert (artifacts / "runs" / "countdown" / "rollouts" / "1.jsonl").is_file()
    assert not launching.left_behind(artifacts)


def test_the_checkpoint_is_a_model_with_its_chat_template_and_end_of_sequence(one_step):
    artifacts, _ = one_step
    model = artifacts / "checkpoints" / "countdown" / "global_step_1" / "actor" / "huggingface"
    config = json.loads((model / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert list(model.glob("*.safetensors"))
    source = ROOT / "recipes" / "tasks" / "countdown" / "tiny"
    for name in ("generation_config.json",):
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (model, source))
        assert ours["eos_token_id"] == theirs["eos_token_id"]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, original = (AutoTokenizer.from_pretrained(folder) for folder in (model, source))
    assert tokenizer.chat_template == original.chat_template
    assert AutoModelForCausalLM.from_pretrained(model).num_parameters() > 0


def test_a_finished_run_says_so_without_starting_the_trainer(one_step):
    artifacts, _ = one_step
    text, _ = (launcher := launching.start(LAUNCHER, artifacts, MAX_STEPS="1")).communicate(timeout=60)
    assert launcher.returncode == 0
    assert "nothing to do" in text


def test_ctrl_c_leaves_nothing_running_and_the_same_command_goes_on(one_step):
    artifacts, _ = one_step
    arguments = ("trainer.save_freq=1", "trainer.val_before_train=false", "trainer.val_freq=-1")
    launcher = launching.start(LAUNCHER, artifacts, *arguments, MAX_STEPS="500")
    text = ""
    for line in launcher.stdout:
        text += line
        if line.startswith("step 3/"):
            launcher.send_signal(signal.SIGINT)
    assert launcher.wait(60) == 130, text
    assert "resuming from step 1" in text
    assert "the run can be resumed from step" in text
    assert not launching.left_behind(artifacts)
    steps = read_history(artifacts / "runs" / "countdown" / "metrics.jsonl")
    assert [step.step for step in steps][:4] == [0, 1, 2, 3]
