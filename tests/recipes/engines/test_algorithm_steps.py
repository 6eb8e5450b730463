"""One real step of every algorithm on the CPU: Countdown's tiny model, four prompts with four responses, two updates.

Every step is checked against its own dump of responses: what the trainer reports of its advantages must follow from the
scores and lengths that it wrote down, by the formula of the algorithm that was asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest

from recipes.config import check, load, resolve
from recipes.engines import verl
from recipes.launch import trainer_variables
from recipes.paths import ROOT, checkpoint_dir, run_dir

pytestmark = pytest.mark.trainer

LIMIT_S = 400
LONGEST = 32
CHEAP = (
    "data.rollout_batch_size=4",
    "worker.actor.global_batch_size=2",  # two updates, so that in the second one the policy has moved
    "worker.actor.micro_batch_size_per_device_for_update=8",
    "worker.actor.micro_batch_size_per_device_for_experience=16",
    "worker.actor.optim.lr=1e-3",
    "worker.rollout.n=4",
    f"data.max_response_length={LONGEST}",
    "trainer.max_steps=1",
    "trainer.val_before_train=false",
    "trainer.val_freq=-1",
    "trainer.save_freq=-1",
)
OWN: dict[str, tuple[str, ...]] = {
    "dapo": ("worker.reward.overlong_buffer.len=28",),  # nearly every response ends inside it
    "cispo": ("worker.actor.clip_ratio_high=0.01",),
    "dr_grpo": ("worker.actor.global_batch_size=4",),  # one update
    "rloo": ("worker.actor.model.lora.rank=8", "trainer.save_freq=1"),
    "ppo": ("worker.critic.optim.lr=1e-3", "trainer.save_freq=1"),
}


@dataclass(frozen=True)
class Response:
    """A response as the trainer wrote it down: `paid` is the reward file's score, `tokens` counts its end."""

    group: str
    score: float
    paid: float
    accuracy: float
    tokens: int


@dataclass(frozen=True)
class Step:
    """The metrics of the one step, and its responses."""

    metrics: dict[str, float]
    responses: list[Response]

    def by_group(self, formula: Callable[[list[float]], list[float]]) -> list[float]:
        """What the formula makes of the scores of a group, for every response in its place."""
        scores: dict[str, list[float]] = {}
        for response in self.responses:
            scores.setdefault(response.group, []).append(response.score)
        made = {group: iter(formula(values)) for group, values in scores.items()}
        return [next(made[response.group]) for response in self.responses]

    def per_response(self, values: list[float]) -> list[float]:
        """Each value times the tokens of its response."""
        return [value * response.tokens for value, response in zip(values, self.responses, strict=True)]

    def per_token(self, values: list[float]) -> list[float]:
        return [value for value, response in zip(values, self.responses, strict=True) for _ in range(response.tokens)]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Step]]:
    """`step(name)` trains one step under the algorithm, once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARTIFACTS_DIR", str(tmp_path_factory.mktemp("algorithms")))
        prepare = load("countdown", environ={}, hardware="cpu").prepare
        subprocess.run([sys.executable, *prepare], cwd=ROOT, check=True, capture_output=True)
        yield cache(_train)


def _train(name: str) -> Step:
    environ = {"ALGORITHM": name, "EXPERIMENT_NAME": name}
    own = OWN.get(name, ())
    cheap = [given for given in CHEAP if not given.startswith(tuple(key.split("=")[0] for key in own))]
    recipe = load("countdown", environ=environ, arguments=[*cheap, *own], hardware="cpu")
    check(recipe)
    folder = run_dir(name)
    folder.mkdir(parents=True)
    done = subprocess.run(
        verl.command(recipe),
        env={**os.environ, **trainer_variables(recipe, folder / "metrics.jsonl")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    (line,) = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return Step(json.loads(line)["data"], list(_responses(folder / "rollouts" / "1.jsonl")))


def _responses(path: Path) -> Iterator[Response]:
    from transformers import AutoTokenizer

    from recipes.data.rewards import load_reward

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "recipes" / "tasks" / "countdown" / "tiny")
    reward = load_reward(str(ROOT / "reward_functions" / "countdown.py"))
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        written = len(tokenizer(entry["output"], add_special_tokens=False)["input_ids"])
        scored = reward.compute_score("countdown", entry["output"], entry["gts"])
        yield Response(
            entry["uid"].split("_")[0], entry["score"], scored["score"], scored["accuracy"], min(written + 1, LONGEST)
        )


@pytest.mark.parametrize("name", resolve.algorithms())
def test_a_step_moves_the_policy_that_vllm_sampled_from(step, name):
    found = step(name).metrics
    assert found["actor/grad_norm"] > 1e-3
    assert abs(found["actor/loss"]) < 10
    assert name == "dr_grpo" or found["actor/ppo_kl"] != 0, "the second update sees a policy that has moved"
    assert found["training/rollout_probs_diff_max"] < 1e-3
    tokens = [response.tokens for response in step(name).responses]
    assert (len(tokens), mean(tokens)) == (16, pytest.approx(found["response_length/mean"]))


def over_deviation(group: list[float]) -> list[float]:
    return [(score - mean(group)) / (stdev(group) + 1e-6) for score in group]


def minus_mean(group: list[float]) -> list[float]:
    return [score - mean(group) for score in group]


def leave_one_out(group: list[float]) -> list[float]:
    return [score - mean(group[:i] + group[i + 1 :]) for i, score in enumerate(group)]


BY_GROUP = {
    "grpo": over_deviation,
    "dapo": over_deviation,
    "gspo": over_deviation,
    "cispo": over_deviation,
    "dr_grpo": minus_mean,
    "rloo": leave_one_out,
}


@pytest.mark.parametrize("name", sorted(BY_GROUP))
def test_advantages_follow_from_the_scores_of_the_group(step, name):
    wanted = step(name).by_group(BY_GROUP[name])
    found = step(name).metrics
    assert found["critic/advantages/max"] == pytest.approx(max(wanted), abs=1e-4)
    assert found["critic/advantages/min"] == pytest.approx(min(wanted), abs=1e-4)
    assert max(wanted) > 0, "some group disagrees"


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_advantages_are_whitened_over_the_tokens_of_the_batch(step, name):
    done = step(name)
    scores = [response.score for response in done.responses]
    if name.endswith("baseline"):
        scores = done.by_group(minus_mean)
    tokens = done.per_token(scores)
    wanted = [(value - mean(tokens)) / stdev(tokens) for value in tokens]
    assert done.metrics["critic/advantages/mean"] == pytest.approx(0, abs=1e-4)
    assert done.metrics["critic/advantages/max"] == pytest.approx(max(wanted), abs=1e-3)
    assert done.metrics["critic/advantages/min"] == pytest.approx(min(wanted), abs=1e-3)


def test_kl_acts_where_the_algorithm_has_it(step):
    for name in resolve.algorithms():
        values = resolve.algorithm(name).values
        in_loss = values["algorithm.use_kl_loss"]
        in_reward = not values["algorithm.disable_kl"] and not in_loss
        found = step(name).metrics
        assert ("actor/kl_loss" in found, "actor/reward_kl_penalty" in found) == (in_loss, in_reward), name
        assert not in_loss or found["actor/kl_loss"] > 0, "the second update is away from the reference"


def test_dr_grpo_sums_over_a_response_and_divides_by_a_constant(step):
    """In a single update the ratio is 1, and the loss is known: advantage times length over 32, however padded."""
    done = step("dr_grpo")
    wanted = -mean(done.per_response(done.by_group(minus_mean))) / LONGEST
    assert done.metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    assert done.metrics["actor/pg_loss"] == pytest.approx(wanted, abs=1e-5)
    assert abs(wanted) > 1e-4


def test_dapo_keeps_only_groups_that_are_neither_all_right_nor_all_wrong(step):
    accuracies: dict[str, set[float]] = {}
    for response in step("dapo").responses:
        accuracies.setdefault(response.group, set()).add(response.accuracy)
    assert len(accuracies) == 4
    assert all(found == {0.0, 1.0} for found in accuracies.values())


def test_dapo_takes_the_overlong_penalty_from_the_score(step):
    """The buffer of 28 tokens begins behind token 4."""
    for response in step("dapo").responses:
        penalty = min(0.0, -(response.tokens - (LONGEST - 28)) / 28)
        assert response.score == pytest.approx(response.paid + penalty, abs=1e-5)
    assert step("dapo").metrics["critic/score/min"] < 0


def test_gspo_clips_whole_responses_at_a_ten_thousandth(step):
    """Half of the tokens are in the second update, where nearly every response has left the narrow clip."""
    found = step("gspo").metrics
    assert 0.05 < found["actor/pg_clipfrac"] <= 0.5
    assert found["actor/pg_clipfrac_lower"] == 0, "there is no dual clip"


def test_cispo_counts_the_weights_that_it_bounds(step):
    found = step("cispo").metrics
    assert 0 < found["actor/pg_clipfrac"] <= 0.5
    assert found["actor/pg_clipfrac_lower"] == 0, "there is no dual clip"


def test_rloo_trains_adapters_and_saves_a_whole_model(step):
    from transformers import AutoModelForCausalLM

    step("rloo")
    saved = checkpoint_dir("rloo") / "global_step_1" / "actor" / "huggingface"
    trained, report = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    original = AutoModelForCausalLM.from_pretrained(ROOT / "recipes" / "tasks" / "countdown" / "tiny")
    moved = {
        name
        for (name, new), (_, old) in zip(trained.named_parameters(), original.named_parameters(), strict=True)
        if not new.equal(old.to(new.dtype))
    }
    assert not report["missing_keys"]
    assert moved
    assert all("_proj" in name for name in moved), "embeddings and norms have no adapters"


def test_ppo_trains_and_saves_a_critic(step):
    found = step("ppo").metrics
    assert found["critic/vf_loss"] > 0
    assert found["critic/grad_norm"] > 0
    assert found["critic/lr"] == pytest.approx(1e-3)
    assert found["critic/returns/max"] == pytest.approx(found["critic/score/max"]), "gamma is 1"
    assert found["critic/advantages/mean"] == pytest.approx(0, abs=1e-4)
    assert all("critic/vf_loss" not in step(name).metrics for name in ("grpo", "rloo"))
    saved = checkpoint_dir("ppo") / "global_step_1"
    assert list((saved / "critic").glob("model_world_size_1_rank_0.pt"))
    assert list((saved / "actor" / "huggingface").glob("*.safetensors"))
