"""The real trainer, with real Ray, FSDP over gloo and vLLM, on a model of 0.2 M parameters with random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.trainer

EXACT = 1e-3
"""Largest difference between a token's probability in vLLM and in FSDP; both compute in float32."""
KL_COEF = 0.2
KL_FROM_REWARD = {
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_penalty": "low_var_kl",
    "algorithm.kl_ctrl.kl_coef": KL_COEF,
    "trainer.save_freq": 2,
    "trainer.test_freq": 1,
}
GREEDY = {
    # No sampling, so that one and two ranks train on the same responses; no group, so that these have advantages.
    "actor_rollout_ref.rollout.top_k": 1,
    "actor_rollout_ref.rollout.n": 1,
    "algorithm.adv_estimator": "reinforce_plus_plus",
    "actor_rollout_ref.actor.entropy_coeff": 0.01,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
    "trainer.val_before_train": False,
}
KL_AS_LOSS = {
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.1,
    "trainer.save_freq": 2,
    "trainer.test_freq": 2,
}


@pytest.fixture(scope="module")
def three_steps(trial: Any) -> Any:
    """One rank, KL taken from the reward, validation at every step, checkpoints at steps 2 and 3."""
    return trial.run("three", _with_dumps(trial, "three", KL_FROM_REWARD), steps=3)


@pytest.fixture(scope="module")
def resumed(trial: Any, three_steps: Any) -> Any:
    """The third step again, by a new process that starts from the checkpoint of the second."""
    start = {
        "trainer.resume_mode": "resume_path",
        "trainer.resume_from_path": str(three_steps.checkpoints / "global_step_2"),
    }
    return trial.run("resumed", _with_dumps(trial, "resumed", {**KL_FROM_REWARD, **start}), steps=3)


def _with_dumps(trial: Any, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    folders = {kind: str(trial.folder / name / kind) for kind in ("validation", "rollouts")}
    return {
        **changes,
        "trainer.validation_data_dir": folders["validation"],
        "trainer.rollout_data_dir": folders["rollouts"],
    }


def _dumped(run: Any, kind: str, step: int, field: str) -> list[str]:
    lines = (run.folder / kind / f"{step}.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted(json.loads(line)[field] for line in lines)


def test_vllm_and_fsdp_agree_after_every_weight_sync(three_steps: Any) -> None:
    changed = [three_steps.metrics[step]["training/rollout_probs_diff_max"] for step in (1, 2, 3)]

    assert three_steps.metrics[1]["actor/grad_norm"] > 0
    assert max(changed) < EXACT
    assert abs(three_steps.metrics[3]["rollout_corr/kl"]) < EXACT


def test_weights_change_what_vllm_generates(three_steps: Any) -> None:
    before, after = (_dumped(three_steps, "validation", step, "output") for step in (0, 3))

    assert before != after


def test_kl_is_taken_from_the_reward(three_steps: Any) -> None:
    first, second = three_steps.metrics[1], three_steps.metrics[2]

    # At step 1 the policy is the reference.
    assert first["critic/rewards/mean"] == pytest.approx(first["critic/score/mean"], abs=1e-5)
    assert second["actor/reward_kl_penalty"] > 1e-4
    assert second["actor/reward_kl_penalty_coeff"] == pytest.approx(KL_COEF)
    assert second["critic/rewards/mean"] < second["critic/score/mean"] - 1e-4


def test_a_resumed_run_starts_from_the_weights_of_its_checkpoint(three_steps: Any, resumed: Any) -> None:
    assert sorted(resumed.metrics) == [2, 3]
    assert _dumped(resumed, "validation", 2, "output") == _dumped(three_steps, "validation", 2, "output")
    assert _dumped(resumed, "validation", 2, "output") != _dumped(three_steps, "validation", 0, "output")
    assert resumed.metrics[3]["training/rollout_probs_diff_max"] < EXACT
    # The reference is the model that training began with, not the checkpoint.
    assert resumed.metrics[3]["actor/reward_kl_penalty"] > 1e-4


def test_a_resumed_run_goes_on_with_data_and_optimizer(three_steps: Any, resumed: Any) -> None:
    import torch

    optimizer = torch.load(resumed.checkpoints / "global_step_3/actor/optim_world_size_1_rank_0.pt", weights_only=False)

    assert _dumped(resumed, "rollouts", 3, "input") == _dumped(three_steps, "rollouts", 3, "input")
    assert {int(state["step"]) for state in optimizer["state"].values()} == {3}


def test_a_checkpoint_keeps_tokenizer_template_and_ends(trial: Any, three_steps: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    saved = three_steps.checkpoints / "global_step_3/actor/huggingface"
    original, tokenizer = (AutoTokenizer.from_pretrained(path) for path in (trial.folder / "model", saved))
    model = AutoModelForCausalLM.from_pretrained(saved, dtype="auto")
    chat = [{"role": "user", "content": "Write sevens."}]

    assert GenerationConfig.from_pretrained(saved).eos_token_id == [original.eos_token_id, original.pad_token_id]
    assert tokenizer.chat_template == original.chat_template
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True) == original.apply_chat_template(
        chat, add_generation_prompt=True
    )
    assert str(model.dtype) == "torch.float32"
    assert "attn_implementation" not in json.loads((saved / "config.json").read_text(encoding="utf-8"))


def test_vllm_loads_a_checkpoint_and_continues_as_the_trainer_validated(trial: Any, three_steps: Any) -> None:
    """In a process of its own, without verl: the greedy answers are those of the last validation."""
    saved = three_steps.checkpoints / "global_step_3/actor/huggingface"
    script = trial.folder / "generate.py"
    script.write_text(GENERATE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(saved), str(trial.folder / "test.parquet")],
        env=trial.environment("three"),
        cwd=trial.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert sorted(answers) == _dumped(three_steps, "validation", 3, "output")


GENERATE = """
import json
import sys

from recipes.engines.verl_cpu import patches

patches.name_vllm()
import pandas
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    patches.inspect_models_here()
    model = LLM(
        sys.argv[1], max_model_len=96, enforce_eager=True, kv_cache_memory_bytes=1 << 26,
        distributed_executor_backend="uni", dtype="float32",
    )
    chats = [list(prompt) for prompt in pandas.read_parquet(sys.argv[2])["prompt"]]
    outputs = model.chat(chats, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
    print(json.dumps([output.outputs[0].text for output in outputs]))
"""


def test_two_ranks_take_the_same_first_step_as_one(trial: Any) -> None:
    alone = trial.run("one_rank", GREEDY, steps=1, ranks=1).metrics[1]
    shared = trial.run("two_ranks", GREEDY, steps=1, ranks=2).metrics[1]

    assert shared["critic/score/mean"] == pytest.approx(alone["critic/score/mean"], rel=1e-6)
    assert shared["actor/loss"] == pytest.approx(alone["actor/loss"], rel=1e-4)
    assert shared["actor/entropy"] == pytest.approx(alone["actor/entropy"], rel=1e-4)
    assert alone["actor/grad_norm"] > 1e-2
    assert shared["actor/grad_norm"] == pytest.approx(alone["actor/grad_norm"], rel=1e-3)


@pytest.fixture(scope="module")
def lora(trial: Any) -> Any:
    """One rank, adapters of rank 8, KL as a loss, validation and a checkpoint at step 2."""
    return trial.run("lora", _with_dumps(trial, "lora", KL_AS_LOSS), steps=2, lora=8)


def test_lora_with_kl_as_loss(lora: Any) -> None:
    assert lora.metrics[1]["actor/kl_loss"] == pytest.approx(0, abs=1e-6)
    assert lora.metrics[2]["actor/kl_loss"] > 1e-5
    assert lora.metrics[2]["training/rollout_probs_diff_max"] < EXACT
    assert "actor/reward_kl_penalty" not in lora.metrics[2]
    assert _dumped(lora, "validation", 0, "output") != _dumped(lora, "validation", 2, "output")


def test_a_lora_checkpoint_loads_as_a_plain_model_that_answers_like_the_trained_one(trial: Any, lora: Any) -> None:
    import pandas as pd
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved = lora.checkpoints / "global_step_2/actor/huggingface"
    tokenizer = AutoTokenizer.from_pretrained(saved)
    model, report = AutoModelForCausalLM.from_pretrained(saved, dtype="auto", output_loading_info=True)
    answers = []
    for prompt in pd.read_parquet(trial.folder / "test.parquet")["prompt"]:
        ids = tokenizer.apply_chat_template(
            list(prompt), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        written = model.generate(**ids, max_new_tokens=32, do_sample=False)[0, ids["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(written, skip_special_tokens=True))

    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sorted(answers) == _dumped(lora, "validation", 2, "output")


def test_a_failed_weight_sync_ends_the_run(trial: Any) -> None:
    """vLLM builds one layer of two, so the first sync has weights that it has no place for."""
    broken = {"actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides": "{num_hidden_layers:1}"}
    folder = trial.folder / "broken"
    folder.mkdir()
    done = subprocess.run(
        trial.command("broken", broken),
        env=trial.environment("broken"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode != 0
    assert "There is no module or parameter named" in done.stdout + done.stderr


def test_no_process_survives_a_run(trial: Any, three_steps: Any) -> None:
    """All of a run's processes, Ray's included, inherit the name of its metrics file."""
    mark = f"VERL_FILE_LOGGER_PATH={trial.folder}/".encode()
    left = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]

    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
