"""The real trainer on the CPU: Ray, FSDP over gloo and vLLM on the tiny models of Countdown and GSM8K, from recipes.

Three starts show what only a run can: ranks agree, adapters are saved, and what the trainer reports of advantages
follows from the responses that it wrote down. cpu/test_faults.py has a reward that fails.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pyarrow.parquet as pq
import pytest

from recipes.config import check, load
from recipes.dumps import ROW_ID
from recipes.engines.verl import translation as verl
from recipes.launch import trainer_variables
from recipes.paths import ROOT, checkpoint_dir, run_dir
from recipes.rewards.loading import load_reward
from recipes.runs.metrics import read_history
from tests.recipes.engines.conftest import EXACT, dumped

pytestmark = [pytest.mark.trainer(seconds=90), pytest.mark.usefixtures("folder_of_runs")]

TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"
LONGEST = 32
KL_COEFFICIENT = 0.2
CHEAP = {
    "data.rollout_batch_size": 4,
    "data.max_response_length": LONGEST,
    "data.val_max_samples": 8,
    "data.shuffle": False,  # with it verl draws the rows that validate
    "worker.actor.global_batch_size": 4,
    "worker.actor.micro_batch_size_per_device_for_update": 8,
    "worker.actor.micro_batch_size_per_device_for_experience": 16,
    "worker.actor.optim.lr": 1e-3,
    "worker.rollout.n": 4,
    "trainer.val_before_train": False,
    "trainer.val_freq": -1,
    "trainer.save_freq": -1,
}


@dataclass(frozen=True)
class Run:
    """A finished run: its task, its name, and its metrics by step."""

    task: str
    name: str
    metrics: dict[int, dict[str, float]]

    def saved(self, step: int) -> Path:
        return checkpoint_dir(self.name) / f"global_step_{step}" / "actor"

    def validated(self, step: int) -> list[tuple[list[dict[str, str]], str]]:
        """Prompts of the validation, and their greedy responses."""
        rows = pq.read_table(load(self.task, environ={}, hardware="cpu").data.val_files).to_pylist()
        prompts = {row["id"]: row["prompt"] for row in rows}
        return [(prompts[entry[ROW_ID]], entry["output"]) for entry in dumped(self.name, "validation", step)]


def trained(task: str, name: str, changes: dict[str, Any], **environ: str) -> Run:
    """Run the trainer to its end, beside a TRL without the class with a value head, as its later versions are."""
    given = {**CHEAP, **changes}
    arguments = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items()]
    recipe = load(task, arguments=arguments, environ={"EXPERIMENT_NAME": name, **environ}, hardware="cpu")
    check(recipe)
    if not Path(recipe.data.val_files).exists():
        subprocess.run([sys.executable, *recipe.prepare], cwd=ROOT, check=True, capture_output=True)
    folder = run_dir(name)
    (folder / "trl").mkdir(parents=True)
    (folder / "trl" / "__init__.py").touch()
    variables = {**os.environ, **trainer_variables(recipe, folder / "metrics.jsonl")}
    variables["PYTHONPATH"] += f"{os.pathsep}{folder}"
    done = subprocess.run(verl.command(recipe), env=variables, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "started anew" not in done.stderr, "every process was forked from one"
    return Run(task, name, {step.step: step.data for step in read_history(run_dir(name) / "metrics.jsonl")})


# Greedy: one and two ranks train on the same responses, and each run repeats the last one's numbers up to rounding. A
# prompt has one response, so that the advantages are those of the batch.
GREEDY = {
    "algorithm.kl_coef": KL_COEFFICIENT,
    "data.rollout_batch_size": 8,
    "worker.rollout.n": 1,
    "worker.rollout.top_k": 1,
    "worker.actor.global_batch_size": 8,
    "worker.actor.micro_batch_size_per_device_for_update": 4,
    "worker.actor.micro_batch_size_per_device_for_experience": 4,
}
THREE_STEPS = {"trainer.max_steps": 3, "trainer.save_freq": 3, "trainer.val_freq": 3, "trainer.val_before_train": True}


@pytest.fixture(scope="module")
def three_steps() -> Run:
    """REINFORCE++ on one rank, KL taken from the reward, validation before and after, a checkpoint at step 3."""
    return trained("countdown", "three", {**GREEDY, **THREE_STEPS}, ALGORITHM="reinforce_plus_plus")


def test_kl_is_taken_from_the_reward(three_steps: Run) -> None:
    first, second = three_steps.metrics[1], three_steps.metrics[2]
    # At step 1 the policy is the reference.
    assert first["critic/rewards/mean"] == pytest.approx(first["critic/score/mean"], abs=1e-5)
    assert abs(second["actor/reward_kl_penalty"]) > 1e-4
    assert second["actor/reward_kl_penalty_coeff"] == pytest.approx(KL_COEFFICIENT)
    assert second["critic/rewards/mean"] != pytest.approx(second["critic/score/mean"], abs=1e-4)


def test_a_checkpoint_keeps_tokenizer_template_and_ends(three_steps: Run) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    saved = three_steps.saved(3) / "huggingface"
    original, tokenizer = (AutoTokenizer.from_pretrained(path) for path in (TINY, saved))
    chat = [{"role": "user", "content": "Write sevens."}]
    assert tokenizer.chat_template == original.chat_template
    assert tokenizer.apply_chat_template(chat) == original.apply_chat_template(chat)
    ends = [GenerationConfig.from_pretrained(path).eos_token_id for path in (TINY, saved)]
    assert ends[0] == ends[1]
    assert str(AutoModelForCausalLM.from_pretrained(saved, dtype="auto").dtype) == "torch.float32"
    assert "attn_implementation" not in json.loads((saved / "config.json").read_text(encoding="utf-8"))


def test_two_ranks_take_the_same_step_as_one(three_steps: Run) -> None:
    changes = {**GREEDY, "trainer.max_steps": 1, "trainer.n_gpus_per_node": 2}
    alone = three_steps.metrics[1]
    shared = trained("countdown", "two_ranks", changes, ALGORITHM="reinforce_plus_plus").metrics[1]
    assert alone["actor/grad_norm"] > 1e-2
    for name in ("critic/score/mean", "critic/advantages/max", "actor/loss", "actor/entropy", "actor/grad_norm"):
        assert shared[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-6), name


LONG = 48
DAPO = {
    "algorithm.disable_kl": False,
    "algorithm.use_kl_loss": True,
    "algorithm.kl_loss_coef": 0.1,
    "data.max_response_length": LONG,
    "worker.actor.global_batch_size": 2,  # two updates, so that in the second one the policy has moved
    "worker.actor.model.lora.rank": 8,
    "worker.actor.optim.lr": 5e-3,
    "worker.actor.optim.lr_scheduler_type": "cosine",
    "worker.actor.optim.lr_warmup_steps": 0,
    "actor_rollout_ref.actor.optim.min_lr_ratio": 0.5,
    "worker.reward.overlong_buffer.len": LONG - 4,  # nearly every response ends inside it
    "trainer.max_steps": 2,
    "trainer.save_freq": 2,
    "trainer.val_freq": 2,
}


WATCHED = """
import os
from recipes.engines.cpu.engine import CpuEngine
from tensordict import NonTensorStack

def watched(name):
    ordinary = getattr(CpuEngine, name)

    def call(self, data, *args, **kwargs):
        texts = [column for column in data.keys() if isinstance(data.get(column), NonTensorStack)]
        with open(os.path.join(os.path.dirname(os.environ["VERL_FILE_LOGGER_PATH"]), "texts"), "a") as file:
            print(name, *texts, file=file)
        return ordinary(self, data, *args, **kwargs)

    setattr(CpuEngine, name, call)

watched("infer_batch")
watched("train_batch")
"""
"""In place of the plug-in for CPUs: the plug-in, and a file with the columns of each pass that are no tensors."""


@pytest.fixture(scope="module")
def dapo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """DAPO on GSM8K with adapters and a KL loss, validation and a checkpoint at step 2."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "watched_engine.py").write_text(WATCHED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}:{folder}")
        plugin = {"actor_rollout_ref.model.external_lib": "watched_engine"}
        return trained("gsm8k", "dapo", {**DAPO, **plugin}, ALGORITHM="dapo")


def test_dapo_reports_what_follows_from_the_responses_that_it_wrote_down(dapo: Run) -> None:
    """Groups are neither all right nor all wrong; the penalty grows from token 4; advantages are GRPO's."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(dapo.saved(2) / "huggingface")
    reward = load_reward(str(ROOT / "reward_functions" / "gsm8k.py")).compute_score
    groups: dict[str, list[tuple[float, float]]] = {}
    tokens = []  # of the text, which are the sampled ones: 2,048 samples of this model kept theirs
    for entry in dumped(dapo.name, "rollouts", 1):
        written = len(tokenizer(entry["output"], add_special_tokens=False)["input_ids"])
        tokens.append(min(written + 1, LONG))
        scored = reward("gsm8k", entry["output"], entry["gts"])
        penalty = min(0.0, -(tokens[-1] - 4) / (LONG - 4))
        assert entry["score"] == pytest.approx(scored["score"] + penalty, abs=1e-5)
        groups.setdefault(entry["uid"].split("_")[0], []).append((scored["accuracy"], entry["score"]))
    assert [{accuracy for accuracy, _ in group} for group in groups.values()] == [{0.0, 1.0}] * 4
    found = dapo.metrics[1]
    assert (len(tokens), mean(tokens)) == (16, pytest.approx(found["response_length/mean"]))
    scores = [[score for _, score in group] for group in groups.values()]
    wanted = [(score - mean(group)) / (stdev(group) + 1e-6) for group in scores for score in group]
    assert found["critic/advantages/max"] == pytest.approx(max(wanted), abs=1e-4)
    assert found["critic/advantages/min"] == pytest.approx(min(wanted), abs=1e-4)
    assert found["actor/ppo_kl"] != 0, "the second update sees a policy that has moved"


def test_adapters_learn_at_a_falling_rate_with_kl_as_loss_and_vllm_samples_from_them(dapo: Run) -> None:
    # verl logs the rate of the next update: after two of two steps the least one.
    assert [dapo.metrics[step]["actor/lr"] for step in (1, 2)] == pytest.approx([0.75 * 5e-3, 0.5 * 5e-3])
    # How far the policy has moved is sampled, whether is not: with the policy as reference this is rounding, 1e-12.
    assert dapo.metrics[2]["actor/kl_loss"] > 1e-9
    assert dapo.metrics[2]["training/rollout_probs_diff_max"] < EXACT
    assert "actor/reward_kl_penalty" not in dapo.metrics[2]


def test_passes_of_a_model_are_sent_tensors_and_no_texts(dapo: Run) -> None:
    lines = (run_dir(dapo.name) / "texts").read_text(encoding="utf-8").splitlines()
    assert {line.split()[0] for line in lines} == {"infer_batch", "train_batch"}
    assert [line for line in lines if len(line.split()) > 1] == []


@pytest.mark.parametrize(("run", "step"), [("three_steps", 3), ("dapo", 2)])
def test_a_checkpoint_loads_as_a_plain_model_that_answers_as_the_trainer_validated(
    run: str, step: int, request: pytest.FixtureRequest, short_of_greedy: Callable[..., float]
) -> None:
    """With adapters too, which become part of the projections; embeddings and norms have none."""
    from transformers import AutoModelForCausalLM

    done = request.getfixturevalue(run)
    saved = done.saved(step) / "huggingface"
    model, report = AutoModelForCausalLM.from_pretrained(saved, dtype="auto", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    started_from = load(done.task, environ={}, hardware="cpu").worker.actor.model.model_path
    before = dict(AutoModelForCausalLM.from_pretrained(ROOT / started_from).named_parameters())
    moved = {name for name, new in model.named_parameters() if not new.equal(before[name].to(new.dtype))}
    assert moved
    assert len(done.validated(step)) == CHEAP["data.val_max_samples"]
    assert short_of_greedy(saved, done.validated(step)) < EXACT
    if run == "three_steps":
        assert short_of_greedy(saved, done.validated(0)) > EXACT, "a model that was not trained would be seen"
    else:
        assert all("_proj" in name for name in moved)
        resumed_from = done.saved(step) / "model_world_size_1_rank_0.pt"
        assert resumed_from.stat().st_size < (saved / "model.safetensors").stat().st_size / 4, "adapters alone"
