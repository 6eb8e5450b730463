"""EasyR1's own trainer, through the launcher: three recipes without a GPU, what they write, and how they resume.

They run where EASYR1_HOME names EasyR1's tested commit.
"""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, stdev

import pyarrow.parquet as pq
import pytest

from recipes.config import load
from recipes.paths import ROOT, checkpoint_dir, run_dir
from recipes.rewards.loading import load_reward
from recipes.runs.metrics import read_history
from tests.recipes.engines.conftest import EXACT, dumped

pytestmark = [
    pytest.mark.trainer(seconds=100),
    pytest.mark.usefixtures("folder_of_runs"),
    pytest.mark.skipif("EASYR1_HOME" not in os.environ, reason="EasyR1: EASYR1_HOME names no source of it"),
]
NO_DISTANCE = 1e-9
"""Largest KL between two models of the same numbers."""


@dataclass(frozen=True)
class Run:
    """A finished run: its name, its metrics by step, and what the launcher printed."""

    name: str
    metrics: dict[int, dict[str, float]]
    printed: str


def launched(task: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "ENGINE": "easyr1", "HARDWARE": "cpu", **environ}
    command = ["bash", "scripts/launch.sh", task, *arguments]
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)


def trained(task: str, name: str, *arguments: str, **environ: str) -> Run:
    done = launched(task, *arguments, EXPERIMENT_NAME=name, **environ)
    log = run_dir(name) / "train.log"
    tail = log.read_text(encoding="utf-8", errors="replace")[-4000:] if log.is_file() else ""
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:] + tail
    return Run(name, {step.step: step.data for step in read_history(run_dir(name) / "metrics.jsonl")}, done.stdout)


REFERENCE = "worker.ref.fsdp.torch_dtype=bf16"
"""As on GPUs. The tiny models' weights are bf16, so that it is the policy before its first update."""


@pytest.fixture(scope="module")
def countdown() -> Run:
    """Two steps, saved and validated."""
    return trained("countdown", "two", REFERENCE, MAX_STEPS="2", SAVE_FREQ="1", VAL_FREQ="2")


@pytest.fixture(scope="module")
def adapted() -> Run:
    """A user's own data: two steps of adapters alone, with KL in the loss, saved and validated."""
    rare = {"MAX_STEPS": "2", "SAVE_FREQ": "2", "VAL_FREQ": "2", "VAL_BEFORE_TRAIN": "false"}
    place = f"trainer.save_checkpoint_path={checkpoint_dir('adapted')}"
    return trained("custom", "adapted", place, LORA_RANK="8", LR="2e-3", **rare)


def test_vllm_samples_from_the_adapters_that_the_trainer_holds(adapted: Run) -> None:
    # Sampling decides how far; a server that kept the base would show as much below.
    assert adapted.metrics[2]["actor/kl_loss"] > EXACT, "the adapters have moved the policy"
    for step in (1, 2):
        assert abs(adapted.metrics[step]["rollout_corr/kl"]) < EXACT
        assert adapted.metrics[step]["training/rollout_probs_diff_max"] < EXACT


def test_vllm_samples_from_the_weights_that_the_trainer_holds(countdown: Run) -> None:
    for step in (1, 2):
        assert abs(countdown.metrics[step]["rollout_corr/kl"]) < EXACT
        assert countdown.metrics[step]["training/rollout_probs_diff_max"] < EXACT
    # At step 1 the policy is the reference, in bf16 as its weights are; a step later it has moved.
    assert abs(countdown.metrics[1]["actor/reward_kl_penalty"]) < NO_DISTANCE < countdown.metrics[1]["actor/grad_norm"]
    assert abs(countdown.metrics[2]["actor/reward_kl_penalty"]) > NO_DISTANCE


def test_metrics_follow_from_the_responses_that_were_written_down(countdown: Run) -> None:
    reward = load_reward(str(ROOT / "reward_functions" / "countdown.py")).compute_score
    rows, found = dumped(countdown.name, "rollouts", 1), countdown.metrics[1]
    groups: dict[str, list[float]] = {}
    for row in rows:
        scored = reward("countdown", row["output"], row["gts"])
        assert (row["score"], row["accuracy"]) == pytest.approx((scored["score"], scored["accuracy"]))
        groups.setdefault(row["uid"].rsplit("_", 2)[0], []).append(row["score"])
    assert [len(group) for group in groups.values()] == [8] * 8
    assert mean(row["score"] for row in rows) == pytest.approx(found["critic/score/mean"], abs=1e-6)
    wanted = [(score - mean(group)) / (stdev(group) + 1e-6) for group in groups.values() for score in group]
    # At step 1 the policy is the reference, so KL takes nothing from the reward.
    assert found["critic/advantages/max"] == pytest.approx(max(wanted), abs=1e-3)
    validated = mean(row["accuracy"] for row in dumped(countdown.name, "validation", 2))
    assert validated == pytest.approx(countdown.metrics[2]["val-core/countdown/acc/mean@1"])
    assert mean(row["accuracy"] for row in rows) == pytest.approx(found["reward_accuracy"])


def test_two_steps_draw_different_noise(countdown: Run) -> None:
    """With one seed for each request, as EasyR1 has it, the eight responses to a prompt would be one."""
    rows = [row for step in (1, 2) for row in dumped(countdown.name, "rollouts", step)]
    prompts = {row["uid"].rsplit("_", 2)[0] for row in rows}
    assert len(rows) == 8 * len(prompts)
    assert len({row["output"] for row in rows}) > len(prompts)


@pytest.mark.parametrize("run", ["countdown", "adapted"])
def test_the_saved_model_is_the_one_with_which_the_trainer_validated(
    run: str, request: pytest.FixtureRequest, short_of_greedy: Callable[..., float]
) -> None:
    """The adapters too, which vLLM adds to each product, and the saved model has in its weights."""
    from transformers import AutoModelForCausalLM

    done = request.getfixturevalue(run)
    saved = checkpoint_dir(done.name) / "global_step_2/actor/huggingface"
    model, report = AutoModelForCausalLM.from_pretrained(saved, dtype="auto", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert str(model.dtype) == "torch.float32"
    data = load(str(run_dir(done.name) / "config.yaml"), environ={}, hardware="cpu").data
    prompts = pq.read_table(data.val_files)["prompt"].to_pylist()
    outputs = [row["output"] for row in dumped(done.name, "validation", 2)]
    assert short_of_greedy(saved, zip(prompts, outputs, strict=True)) < EXACT


def test_the_saved_model_is_the_base_plus_the_adapters_unrounded(adapted: Run) -> None:
    from safetensors.torch import load_file

    actor = checkpoint_dir(adapted.name) / "global_step_2/actor"
    base, merged = (
        load_file(path / "model.safetensors") for path in (ROOT / "recipes/tasks/countdown/tiny", actor / "huggingface")
    )
    adapters = load_file(actor / "lora_adapter/adapter_model.safetensors")
    stems = [name.removesuffix(".lora_A.weight") for name in adapters if name.endswith(".lora_A.weight")]
    assert len(stems) == 28
    for stem in stems:
        product = adapters[f"{stem}.lora_B.weight"] @ adapters[f"{stem}.lora_A.weight"]
        name = f"{stem.removeprefix('base_model.model.')}.weight"
        assert (merged[name] - base[name].float() - 64 / 8 * product).abs().max() < 1e-6


def test_a_run_goes_on_where_it_was_and_its_history_stays(countdown: Run) -> None:
    import torch

    more = trained("countdown", countdown.name, REFERENCE, MAX_STEPS="3", SAVE_FREQ="1", VAL_FREQ="2")
    assert "resuming from step 2" in more.printed
    assert sorted(more.metrics) == [0, 1, 2, 3]
    assert abs(more.metrics[3]["rollout_corr/kl"]) < EXACT
    assert more.metrics[3]["actor/reward_kl_penalty"] != 0
    folder = checkpoint_dir(countdown.name)
    history = (folder / "experiment_log.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["step"] for line in history} == {0, 1, 2, 3}
    states = torch.load(folder / "global_step_3/actor/optim_world_size_1_rank_0.pt", weights_only=False)["state"]
    assert {int(state["step"]) for state in states.values()} == {3}
    other = launched("countdown", EXPERIMENT_NAME=countdown.name, ENGINE="verl", MAX_STEPS="4")
    assert other.returncode != 0
    assert "written by the engine easyr1, and the engine of this run is verl" in other.stdout + other.stderr


def test_the_number_game_trains_a_step() -> None:
    rare = {"SAVE_FREQ": "-1", "VAL_FREQ": "-1", "VAL_BEFORE_TRAIN": "false"}
    passes = [f"worker.actor.micro_batch_size_per_device_for_{kind}=16" for kind in ("update", "experience")]
    few = ("data.rollout_batch_size=4", "worker.actor.global_batch_size=4", "worker.rollout.n=4", *passes)
    run = trained("number_game", "number_game", REFERENCE, *few, MAX_STEPS="1", **rare)
    assert abs(run.metrics[1]["rollout_corr/kl"]) < 10 * EXACT
    assert run.metrics[1]["actor/grad_norm"] >= 0
    assert dumped(run.name, "rollouts", 1)
    assert not list(checkpoint_dir(run.name).glob("global_step_*")), "SAVE_FREQ=-1 is no saving"
