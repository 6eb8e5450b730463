"""Numbers that do not fit are refused before a start, with keys, layers and the nearest that fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import check, load
from recipes.config.checks import READINGS, nearest_divisors, nearest_multiples
from recipes.config.merge import validated
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_the_recipes_pass(hardware):
    check(load("countdown", environ={}, hardware=hardware), gpus=8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data.rollout_batch_size=60"], ["60", "global_batch_size 64", "set worker.actor.global_batch_size to 60"]),
        (["data.rollout_batch_size=100"], ["to 50 or 100", "data.rollout_batch_size to 64 or 128"]),
        (["worker.rollout.tensor_parallel_size=3"], ["does not divide the 8 GPUs", "to 2 or 4"]),
        (["worker.actor.ulysses_size=3"], ["worker.actor.ulysses_size 3", "to 2 or 4"]),
        (["trainer.n_gpus_per_node=7", "worker.rollout.n=5"], ["= 320 responses", "7 data-parallel", "63 or 70"]),
        (
            ["worker.actor.dynamic_batching=false", "worker.actor.micro_batch_size_per_device_for_update=5"],
            ["128", "to 4 or 8"],
        ),
        (
            ["worker.actor.dynamic_batching=false", "worker.actor.micro_batch_size_per_device_for_experience=48"],
            ["128 responses per GPU and step", "to 32 or 64"],
        ),
        (["data.mini_rollout_batch_size=24"], ["data.mini_rollout_batch_size 24", "16 or 32"]),
        (["worker.rollout.n=1"], ["grpo compares", "ROLLOUT_N"]),
        (["worker.rollout.max_model_len=100"], ["100", "1024 tokens"]),
        (["worker.actor.max_token_len_per_device=100"], ["cannot hold one sequence", "1024 or more"]),
        (["data.min_pixels=9", "data.max_pixels=3"], ["data.min_pixels 9 is above"]),
        (
            ["worker.reward.overlong_buffer.enable=true", "worker.reward.overlong_buffer.len=9999"],
            ["overlong_buffer.len 9999 is above", "null"],
        ),
        (["worker.actor.clip_ratio_low=0.5"], ["clip_ratio_low 0.5 is above", "exchange them"]),
        (["worker.critic.optim.lr=1e-5"], ["no effect", "grpo has no critic", "ALGORITHM=ppo"]),
        (["algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std=false"], ["rloo divides by no group's deviation"]),
        (["worker.actor.loss_scale_factor=100"], ["no effect", "LOSS_AGG_MODE=seq-mean-token-sum-norm"]),
        (
            ["algorithm.adv_estimator=reinforce_plus_plus", "algorithm.online_filtering=true", "worker.rollout.n=1"],
            ["drops groups whose responses agree", "ONLINE_FILTERING=false"],
        ),
        (["engine=easyr1", "worker.actor.loss_type=cispo", "worker.actor.clip_ratio_low=10"], ["logarithm", "to 1"]),
        (["algorithm.disable_kl=true", "algorithm.use_kl_loss=true"], ["both true"]),
        (["algorithm.use_kl_in_reward=false"], ["neither in the loss nor in the reward"]),
        (["algorithm.kl_loss_coef=0.1"], ["algorithm.kl_loss_coef 0.1 has no effect", "USE_KL_LOSS"]),
        (
            ["algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0.1", "algorithm.kl_coef=0.2"],
            ["algorithm.kl_coef 0.2 has no"],
        ),
        (["worker.actor.ulysses_size=2", "worker.actor.padding_free=false"], ["needs worker.actor.padding_free"]),
        (["worker.actor.loss_agg_mode=token-mean", "worker.actor.loss_avg_mode=seq"], ["loss_avg_mode is seq"]),
        (["algorithm.filter_low=0.9", "algorithm.filter_high=0.1"], ["filter_low 0.9"]),
        (
            ["worker.rollout.val_override_config.n=4", "worker.rollout.val_override_config.temperature=0"],
            ["temperature 0, which are all the same"],
        ),
        (["algorithm.adv_estimator=gae", "worker.critic.global_batch_size=48"], ["worker.critic.global_batch_size 48"]),
        (
            ["engine=easyr1", "worker.actor.micro_batch_size_per_device_for_experience=3"],
            ["1024 responses", "to 2 or 4"],
        ),
        (["engine=easyr1", "worker.rollout.max_num_batched_tokens=100"], ["100 is less than", "1024"]),
        (["engine=easyr1", "worker.actor.micro_batch_size_per_device_for_update=3"], ["128 responses", "2 or 4"]),
        (["engine=easyr1", "worker.actor.fsdp.enable_cpu_offload=true"], ["cannot accumulate"]),
    ],
)
def test_what_does_not_fit_is_named(resolve, arguments, words):
    with pytest.raises(RecipeError) as raised:
        check(resolve(*arguments))
    said = str(raised.value)
    for word in words:
        assert word in said
    assert arguments[-1].split("=")[0] in raised.value.where
    assert f"argument {arguments[-1]}" in raised.value.where
    assert raised.value.fix


def test_more_gpus_than_there_are(resolve):
    with pytest.raises(RecipeError, match="n_gpus_per_node is 8, but this machine has 1 GPU\n") as raised:
        check(resolve(), gpus=1)
    assert raised.value.fix == "set GPUS_PER_NODE=1"
    check(resolve(), gpus=8)
    check(resolve(), gpus=None)
    check(resolve(hardware="cpu", GPUS_PER_NODE="2"), gpus=0)


def test_ranks_without_gpus_are_not_gpus(resolve):
    check(resolve(hardware="cpu", GPUS_PER_NODE="4", ROLLOUT_BATCH_SIZE="8"), gpus=0)


@given(st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_suggested_numbers_fit_and_are_nearest(number, of):
    divisors = [candidate for candidate in range(1, of + 1) if of % candidate == 0]
    found = nearest_divisors(number, of)
    assert found
    assert set(found) <= set(divisors)
    assert min(abs(candidate - number) for candidate in divisors) in [abs(candidate - number) for candidate in found]
    for multiple in nearest_multiples(number, of):
        assert multiple > 0
        assert multiple % of == 0
        assert abs(multiple - number) <= of


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_what_passes_divides(step, update, n, gpus, micro, tensor):
    """No recipe passes whose batches leave a rest, and none is refused whose batches leave none."""
    values = {
        "data.rollout_batch_size": step,
        "worker.actor.global_batch_size": update,
        "worker.actor.micro_batch_size_per_device_for_update": micro,
        "worker.actor.micro_batch_size_per_device_for_experience": micro,
        "worker.actor.dynamic_batching": False,
        "worker.rollout.n": n + 1,
        "worker.rollout.tensor_parallel_size": tensor,
        "trainer.n_gpus_per_node": gpus,
    }
    responses = update * (n + 1)
    fits = step % update == gpus % tensor == responses % gpus == 0 and responses // gpus % micro == 0
    try:
        check(validated(values, {}))
    except RecipeError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_batch_that_follows_the_step_is_mended_by_the_step(estimator):
    """An update is the whole step there: another number for the update alone would not divide the step."""

    def checked(prompts):
        words = ["--train_batch_size", prompts, "--n_gpus", "3", f"algorithm.adv_estimator={estimator}"]
        check(load("custom", arguments=words, environ={}, hardware="gpu"))

    with pytest.raises(RecipeError) as raised:
        checked("256")
    assert raised.value.fix == "set data.rollout_batch_size to 255 or 258"
    checked("255")
    checked("258")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["algorithm.preset=dapo", "algorithm.kl_coef=0.5"], "there is no KL"),
        (["algorithm.disable_kl=true", "algorithm.kl_penalty=kl"], "there is no KL"),
        (
            ["algorithm.use_kl_loss=true", "algorithm.kl_loss_type=mse", "algorithm.kl_penalty=abs"],
            "an estimator of its own",
        ),
        (["algorithm.use_kl_loss=true", "algorithm.kl_target=0.2"], "KL is not in the reward"),
        (["algorithm.kl_horizon=20"], "the weight of KL is fixed"),
        (["algorithm.gamma=0.9"], "grpo discounts nothing"),
        (["algorithm.preset=reinforce_plus_plus", "algorithm.lam=0.9"], "not gae"),
        (["algorithm.filter_key=accuracy"], "no groups are dropped"),
        (["worker.actor.model.lora.alpha=16"], "worker.actor.model.lora.rank is 0"),
        (
            ["algorithm.preset=ppo", "worker.actor.padding_free=true", "worker.critic.model.lora.alpha=16"],
            "worker.critic.model.lora.rank is 0",
        ),
        (
            ["worker.actor.dynamic_batching=false", "worker.actor.max_token_len_per_device=9000"],
            "worker.actor.dynamic_batching is False",
        ),
        (["prepare=[scripts/x.py]", "data.max_pixels=900000"], "limit_images is 0"),
        (["worker.reward.overlong_buffer.len=9"], "no response is judged by its length"),
    ],
)
def test_what_nothing_reads_is_no_wish_granted_in_silence(resolve, arguments, why):
    with pytest.raises(RecipeError, match="has no effect") as raised:
        check(resolve(*arguments))
    assert why in raised.value.what
    assert raised.value.what.startswith(arguments[-1].partition("=")[0])
    assert f"argument {arguments[-1]}" in raised.value.where


def test_the_table_decides_for_keys_that_exist():
    names = [name for reading in READINGS for name in (reading.decided_by, *reading.keys)]
    for name in names:
        assert any(path == name or path.startswith(name.removesuffix("*")) for path in leaves(Recipe)), name


def test_only_the_user_is_asked_and_not_for_what_the_machine_decides(resolve, write):
    resting = "algorithm: {disable_kl: true, kl_coef: 0.5, gamma: 0.9}\nworker: {actor: {model: {lora: {alpha: 8}}}}\n"
    path = write(resting + "data: {rollout_batch_size: 256}\n", "resting.yaml")
    given = ["worker.actor.model.model_path=a/b", "worker.rollout.n=4"]
    check(load(str(path), arguments=given, environ={}, hardware="gpu"))
    check(resolve("worker.actor.max_token_len_per_device=9000", hardware="cpu"))
