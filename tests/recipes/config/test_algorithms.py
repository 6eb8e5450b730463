"""Algorithms by name: what each file must say, which layer wins, and what is refused or remarked on."""

from __future__ import annotations

import re

import pytest

from recipes.config import check, load, remarks, resolve, tasks, to_yaml
from recipes.config.resolve import names
from recipes.engines import easyr1, verl
from recipes.errors import RecipeError

HIGH = "worker.actor.clip_ratio_high"
# Where KL acts not, its estimator is left to the recipe; only DAPO filters, only PPO has a critic.
OPTIONAL = {
    "algorithm.kl_penalty",
    "algorithm.kl_loss_type",
    "algorithm.filter_key",
    "worker.critic.optim.lr",
    "worker.reward.overlong_buffer.len",
    "worker.reward.overlong_buffer.penalty_factor",
}


@pytest.mark.parametrize("name", resolve.names())
def test_a_file_says_what_the_algorithm_is_and_leaves_nothing_of_another(name):
    found = resolve.read(name)
    assert found.title
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", found.paper)
    assert found.changes.endswith(".")
    assert found.use.endswith(".")
    assert set(found.values) - OPTIONAL == set(resolve.read("grpo").values) - OPTIONAL


def test_no_two_are_the_same():
    values = [tuple(sorted(map(str, resolve.read(name).values.items()))) for name in resolve.names()]
    assert len(set(values)) == len(values) == 9


@pytest.mark.parametrize(
    ("arguments", "environ", "high", "layer"),
    [
        ([], {"ALGORITHM": "dapo"}, 0.28, "algorithm"),
        (["algorithm.preset=dapo"], {}, 0.28, "algorithm"),
        ([], {"ALGORITHM": "dapo", "CLIP_RATIO_HIGH": "0.4"}, 0.4, "environment"),
        (["algorithm.preset=dapo"], {"CLIP_RATIO_HIGH": "0.4"}, 0.4, "environment"),
        ([f"{HIGH}=0.5"], {"ALGORITHM": "dapo", "CLIP_RATIO_HIGH": "0.4"}, 0.5, "argument"),
        (["actor_rollout_ref.actor.clip_ratio_high=0.5"], {"ALGORITHM": "dapo"}, 0.5, "argument"),
        (["algorithm.preset=cispo"], {"ALGORITHM": "dapo"}, 4.0, "algorithm"),
        (["algorithm.preset=null"], {"ALGORITHM": "dapo"}, 0.3, "default"),
    ],
)
def test_it_wins_over_files_and_loses_to_the_user(resolve, arguments, environ, high, layer):
    recipe = resolve(*arguments, **environ)
    assert recipe.value(HIGH) == high
    assert recipe.source_of(HIGH).layer == layer


def test_named_in_a_file_it_loses_to_the_files_keys(write):
    path = write("algorithm: {preset: gspo}\nworker: {actor: {clip_ratio_high: 0.001}}")
    recipe = load(str(path), environ={}, hardware="cpu")
    assert (recipe.value(HIGH), recipe.worker.actor.clip_ratio_low) == (0.001, 3e-4)
    assert recipe.source_of("worker.actor.loss_type").where == "configs/algorithms/gspo.yaml"
    other = load(str(path), environ={"ALGORITHM": "dapo"}, hardware="cpu")
    assert (other.value(HIGH), other.worker.actor.loss_type) == (0.28, "default"), "nothing of GSPO is left"


def test_the_written_recipe_holds_its_keys_and_can_be_run_again_under_another(write):
    first = load("countdown", environ={"ALGORITHM": "dr_grpo", "LOSS_AGG_MODE": "token-mean"}, hardware="gpu")
    text = to_yaml(first)
    assert "  preset: dr_grpo\n" in text
    assert "    loss_agg_mode: token-mean\n" in text
    assert "  norm_adv_by_std: false\n" in text
    path = str(write(text))
    assert load(path, environ={}).model_dump() == first.model_dump()
    again = load(path, environ={"ALGORITHM": "rloo"})
    assert (again.algorithm.adv_estimator, again.algorithm.norm_adv_by_std) == ("rloo", True)
    assert again.worker.actor.loss_agg_mode is None


@pytest.mark.parametrize("name", resolve.names())
@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("task", tasks())
def test_every_recipe_takes_every_algorithm(task, hardware, name):
    recipe = load(task, environ={"ALGORITHM": name}, hardware=hardware)
    check(recipe)
    assert verl.translate(recipe)["algorithm.adv_estimator"] == resolve.read(name).values["algorithm.adv_estimator"]


def test_an_unknown_name_is_answered_with_the_nearest(resolve):
    with pytest.raises(RecipeError, match="unknown algorithm 'drgrpo'") as raised:
        resolve(ALGORITHM="drgrpo")
    assert raised.value.where == "variable ALGORITHM=drgrpo"
    assert "dr_grpo" in raised.value.fix


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "reinforce_plus_plus", "rloo", "ppo"])
def test_easyr1_runs_what_it_has(name):
    keys = easyr1.translate(load("countdown", environ={"ALGORITHM": name, "ENGINE": "easyr1"}, hardware="gpu"))
    assert keys["worker.actor.loss_type"] == resolve.read(name).values["worker.actor.loss_type"]
    assert "algorithm.preset" not in keys


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dr_grpo", "algorithm.norm_adv_by_std: False"),
        ("dapo", "worker.reward.overlong_buffer.enable: True"),
        ("reinforce_plus_plus_baseline", "algorithm.adv_estimator: 'reinforce_plus_plus_baseline'"),
    ],
)
def test_what_easyr1_lacks_is_named_with_its_key(name, key):
    recipe = load("countdown", environ={"ALGORITHM": name, "ENGINE": "easyr1"}, hardware="gpu")
    with pytest.raises(RecipeError, match=re.escape(f"EasyR1 cannot do {key}")) as raised:
        easyr1.translate(recipe)
    assert raised.value.where == f"configs/algorithms/{name}.yaml"


def test_easyr1_runs_dapo_without_its_penalty():
    environ = {"ALGORITHM": "dapo", "ENGINE": "easyr1"}
    arguments = ["worker.reward.overlong_buffer.enable=false"]
    keys = easyr1.translate(load("countdown", environ=environ, arguments=arguments, hardware="gpu"))
    assert (keys["algorithm.online_filtering"], keys["algorithm.filter_key"]) == (True, "accuracy")
    assert (keys["worker.actor.clip_ratio_high"], keys["worker.actor.loss_avg_mode"]) == (0.28, "token")


def test_the_critic_follows_the_actor_until_it_is_told_otherwise(resolve):
    def critics(*arguments, **environ):
        critic = resolve(*arguments, ALGORITHM="ppo", **environ).worker.critic
        return critic.global_batch_size, critic.padding_free, critic.fsdp.mp_param_dtype, critic.optim.lr

    assert critics(PADDING_FREE="1") == (64, True, "bf16", 1e-5)
    assert critics(PADDING_FREE="0", GLOBAL_BATCH_SIZE="32") == (32, False, "bf16", 1e-5)
    assert critics("worker.critic.global_batch_size=16", hardware="cpu") == (16, False, "fp32", 1e-5)
    recipe = resolve(ALGORITHM="ppo")
    assert recipe.source_of("worker.critic.global_batch_size").where.startswith(
        "follows worker.actor.global_batch_size"
    )
    assert resolve().worker.critic.global_batch_size == 256, "without one, its keys say nothing"


def test_kl_can_be_put_elsewhere(resolve):
    def places(**environ):
        keys = verl.translate(resolve(**environ))
        return keys["algorithm.use_kl_in_reward"], keys["actor_rollout_ref.actor.use_kl_loss"]

    assert places(ALGORITHM="rloo") == (True, False)
    assert places(ALGORITHM="rloo", USE_KL_LOSS="1") == (False, True)
    assert places(ALGORITHM="rloo", DISABLE_KL="1") == (False, False)
    assert places(ALGORITHM="dapo", DISABLE_KL="0", USE_KL_LOSS="1") == (False, True)
    with pytest.raises(RecipeError, match=r"algorithm.disable_kl and algorithm.use_kl_loss are both true"):
        check(resolve(ALGORITHM="dapo", USE_KL_LOSS="1"))


def test_an_average_given_later_wins_over_the_algorithms(resolve):
    check(recipe := resolve(ALGORITHM="grpo", LOSS_AGG_MODE="token-mean"))
    assert verl.translate(recipe)["actor_rollout_ref.actor.loss_agg_mode"] == "token-mean"
    with pytest.raises(RecipeError, match="loss_avg_mode is seq, but worker.actor.loss_agg_mode is seq-mean-token-sum"):
        check(resolve("worker.actor.loss_avg_mode=seq", ALGORITHM="dr_grpo"))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"ALGORITHM": "gspo", "LOSS_AGG_MODE": "token-mean"}, "averaged by token-mean"),
        ({"ALGORITHM": "gspo", "CLIP_RATIO_HIGH": "0.2"}, "nothing will be clipped"),
        ({"ALGORITHM": "dapo"}, "one update a step"),
        ({"ALGORITHM": "cispo"}, "one update a step"),
    ],
)
def test_what_hardly_acts_is_remarked_on(resolve, environ, words):
    assert any(words in remark for remark in remarks(resolve(**environ)))


def test_there_is_nothing_to_remark_on_what_the_papers_do(resolve):
    for name in names():
        assert remarks(resolve(ALGORITHM=name, GLOBAL_BATCH_SIZE="16")) == []
    assert remarks(resolve(ALGORITHM="grpo")) == []
