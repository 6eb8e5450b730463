"""Every key of the schema reaches verl, or says why it does not."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from recipes.config import kl, load
from recipes.config.layers import Source, validated
from recipes.config.schema import Leaf, Recipe, leaves
from recipes.engines.support import OWN
from recipes.engines.verl import translate
from recipes.errors import RecipeError

FILE = Source("recipe", "toy.yaml")
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
LORA, IMAGES = "worker.actor.model.lora.rank", "worker.rollout.limit_images"
# A recipe in which every key takes part.
ALL_ON: dict[str, Any] = {
    "hardware": "gpu",
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_loss": True,
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_loss_coef": 0.5,
    "algorithm.kl_loss_type": "abs",
    "algorithm.online_filtering": True,
    "worker.actor.strategy": "fsdp2",
    "worker.critic.strategy": "fsdp2",
    "worker.actor.model.model_path": "org/model",
    "worker.actor.model.lora.rank": 4,
    "worker.critic.model.lora.rank": 4,
    "worker.rollout.limit_images": 1,
    "worker.rollout.tensor_parallel_size": 1,
    "worker.reward.reward_function": "/rewards/file.py",
    "worker.reward.overlong_buffer.enable": True,
    "worker.reward.overlong_buffer.len": 8,
    "trainer.experiment_name": "run",
}
# Where another value shows only in a recipe with other neighbours.
NEIGHBOURS: dict[str, dict[str, Any]] = {
    "algorithm.kl_penalty": {"algorithm.kl_loss_type": None},
    "worker.actor.loss_avg_mode": {"worker.actor.loss_agg_mode": None},
    "trainer.find_last_checkpoint": {"trainer.load_checkpoint_path": None},
}
# Keys that one value translates: verl has no other.
ONE_VALUE = {"worker.actor.optim.strategy", "worker.critic.optim.strategy"}
OTHERS: dict[str, Any] = {
    "data.override_chat_template": __file__,
    "worker.actor.model.lora.target_modules": "q_proj,k_proj",
    "worker.critic.model.lora.target_modules": "q_proj,k_proj",
    "worker.actor.optim.betas": [0.9, 0.95],
    "worker.critic.optim.betas": [0.9, 0.95],
    "trainer.save_limit": 3,
    "worker.rollout.cudagraph_capture_sizes": [4],
    "worker.actor.loss_agg_mode": "token-sum",
    "worker.rollout.val_override_config.temperature": 0.5,
    "worker.rollout.val_override_config.top_p": 0.5,
}


def recipe_of(**changes: Any) -> Recipe:
    values = {**ALL_ON, **changes}
    return validated(Recipe, values, dict.fromkeys(values, FILE))


def on(changes: dict[str, Any]) -> dict[str, Any]:
    return translate(recipe_of(**changes))


def another(leaf: Leaf, value: Any) -> Any:
    """A value that the key and verl allow, other than `value`."""
    if leaf.path in OTHERS:
        return OTHERS[leaf.path]
    allowed = leaf.info.values_on.get("verl")
    annotation = leaf.field.annotation
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for part in parts:
        if get_origin(part) is Literal:
            return next(item for item in get_args(part) if item != value and (allowed is None or item in allowed))
        if part is bool:
            return not value
        if part in (int, float):
            small = isinstance(value, float) and value <= 1
            return value / 2 + 0.13 if small else (value or 0) + 1
        if part is str:
            return f"{value or ''}other"
        if get_origin(part) is list:
            return ["wandb"] if leaf.path == "trainer.logger" else ["other"]
        if get_origin(part) is dict:
            return {"other": 1}
    raise AssertionError(f"no other value for {leaf.path}")


KEYS = [leaf for leaf in leaves(Recipe).values() if leaf.path not in OWN]
TRANSLATED = [leaf for leaf in KEYS if "verl" not in leaf.info.not_on]


@pytest.mark.parametrize(
    "leaf", [leaf for leaf in TRANSLATED if leaf.path not in ONE_VALUE], ids=lambda leaf: leaf.path
)
def test_another_value_shows_in_verls_keys(leaf):
    """Presence of a rule proves nothing: verl's keys have to change with the value."""
    around = NEIGHBOURS.get(leaf.path, {})
    before = recipe_of(**around)
    value = another(leaf, before.value(leaf.path))
    after = on({**around, leaf.path: value})
    changed = {name for name, item in after.items() if translate(before).get(name, "absent") != item}
    changed |= set(translate(before)) - set(after)
    assert changed, f"{leaf.path}: {value!r} changes nothing"
    if leaf.info.verl and not leaf.is_open:
        assert any(name.startswith(leaf.info.verl) for name in changed), "the schema names another key of verl"


@pytest.mark.parametrize("leaf", [leaf for leaf in KEYS if "verl" in leaf.info.not_on], ids=lambda leaf: leaf.path)
def test_what_verl_cannot_do_is_refused(leaf):
    value = another(leaf, leaf.default)
    with pytest.raises(RecipeError) as raised:
        on({leaf.path: value})
    assert leaf.path in str(raised.value)
    assert "verl cannot" in str(raised.value)
    assert raised.value.where == "toy.yaml"
    assert leaf.path not in on({leaf.path: leaf.default})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.adv_estimator", "remax"),
        ("algorithm.kl_penalty", "full"),
        ("algorithm.kl_loss_type", "full"),
        ("worker.actor.optim.strategy", "adamw_bf16"),
    ],
)
def test_values_that_verl_cannot_do_are_refused(key, value):
    with pytest.raises(RecipeError, match=f"verl cannot do {key}: '{value}'"):
        on({key: value})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data.rollout_batch_size": 64}, {"data.train_batch_size": 64}),
        ({"worker.actor.global_batch_size": 32}, {f"{ACTOR}.ppo_mini_batch_size": 32}),
        ({"data.train_files": "a.parquet"}, {"data.train_files": ["a.parquet"]}),
        ({"data.val_batch_size": -1}, {"data.val_batch_size": None}),
        ({"data.prompt_key": None}, {"data.prompt_key": "prompt"}),
        ({"worker.actor.loss_avg_mode": "seq"}, {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"}),
        (
            {"worker.actor.loss_agg_mode": "seq-mean-token-sum-norm"},
            {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"},
        ),
        ({"worker.actor.loss_type": "default"}, {f"{ACTOR}.policy_loss.loss_mode": "vanilla"}),
        ({"worker.actor.loss_type": "gspo_token"}, {f"{ACTOR}.policy_loss.loss_mode": "gspo"}),
        ({"worker.actor.optim.lr_warmup_steps": None}, {f"{ACTOR}.optim.lr_warmup_steps": -1}),
        ({"worker.actor.max_grad_norm": 0.5}, {f"{ACTOR}.optim.clip_grad": 0.5, f"{ACTOR}.grad_clip": 0.5}),
        ({"worker.rollout.dtype": "fp32"}, {f"{ROLLOUT}.dtype": "float32"}),
        ({"algorithm.filter_key": "overall"}, {"algorithm.filter_groups.metric": "reward"}),
        ({"algorithm.filter_key": "accuracy"}, {"algorithm.filter_groups.metric": "accuracy"}),
        ({"trainer.save_limit": -1}, {"trainer.max_actor_ckpt_to_keep": None}),
        ({"trainer.find_last_checkpoint": False}, {"trainer.resume_mode": "disable"}),
        (
            {"trainer.load_checkpoint_path": "/c/global_step_3"},
            {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/c/global_step_3"},
        ),
        ({"trainer.max_steps": 100}, {"trainer.total_training_steps": 100, "trainer.total_epochs": 100}),
        ({"trainer.max_steps": None}, {"trainer.total_training_steps": None, "trainer.total_epochs": 15}),
        ({"trainer.save_model_only": True}, {f"{ACTOR}.checkpoint.save_contents": ["model", "hf_model"]}),
        (
            {"trainer.save_hf_model": False},
            {f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra"]},
        ),
        (
            {"worker.reward.reward_function": "/r/file.py:score"},
            {"reward.custom_reward_function.path": "/r/file.py", "reward.custom_reward_function.name": "score"},
        ),
        (
            {"worker.reward.reward_function": "/r/file.py"},
            {"reward.custom_reward_function.name": "compute_score"},
        ),
        (
            {"worker.reward.overlong_buffer.len": 16, "data.max_response_length": 64},
            {
                "reward.reward_manager.name": "dapo",
                "reward.reward_kwargs.overlong_buffer_cfg.len": 16,
                "reward.reward_kwargs.max_resp_len": 64,
            },
        ),
        (
            {"worker.rollout.val_override_config.temperature": 0.0},
            {f"{ROLLOUT}.val_kwargs.do_sample": False, f"{ROLLOUT}.val_kwargs.temperature": 0.0},
        ),
        (
            {"worker.rollout.temperature": 0.7, "worker.rollout.top_p": 0.9},
            {
                f"{ROLLOUT}.val_kwargs.do_sample": True,
                f"{ROLLOUT}.val_kwargs.temperature": 0.7,
                f"{ROLLOUT}.val_kwargs.top_p": 0.9,
            },
        ),
        ({LORA: 0, IMAGES: 0}, {f"{ROLLOUT}.load_format": "dummy"}),
        ({LORA: 8, IMAGES: 0}, {f"{ROLLOUT}.load_format": "safetensors"}),
        ({LORA: 0, IMAGES: 2}, {f"{ROLLOUT}.load_format": "safetensors"}),
        (
            {"worker.actor.model.lora.target_modules": "q_proj, v_proj"},
            {"actor_rollout_ref.model.target_modules": ["q_proj", "v_proj"]},
        ),
        ({"worker.critic.model.model_path": None}, {"critic.model.path": "org/model"}),
    ],
)  # fmt: skip
def test_translations_that_are_not_mere_renames(changes, expected):
    found = on(changes)
    assert {name: found[name] for name in expected} == expected


def test_tokens_of_dynamic_batches_are_full_length_responses():
    found = on(
        {
            "data.max_prompt_length": 100,
            "data.max_response_length": 400,
            "worker.actor.micro_batch_size_per_device_for_update": 4,
            "worker.actor.micro_batch_size_per_device_for_experience": 16,
            "worker.actor.ulysses_size": 2,
        }
    )
    assert found[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 4 * 500 / 2
    assert found[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] == 16 * 500 / 2


@pytest.mark.parametrize(
    ("disable", "in_loss", "in_reward", "places"),
    [
        (False, False, None, (True, False)),
        (False, True, None, (False, True)),
        (False, True, True, (True, True)),
        (False, True, False, (False, True)),
        (True, False, None, (False, False)),
    ],
)
def test_kl_acts_where_the_recipe_says(disable, in_loss, in_reward, places):
    """A coefficient alone does nothing in verl: one of the switches has to be on."""
    changes = {
        "algorithm.disable_kl": disable,
        "algorithm.use_kl_loss": in_loss,
        "algorithm.use_kl_in_reward": in_reward,
        "algorithm.kl_coef": 0.01,
        "algorithm.kl_penalty": "low_var_kl",
        "algorithm.kl_loss_coef": None,
        "algorithm.kl_loss_type": None,
    }
    found = on(changes)
    assert (kl.in_reward(recipe_of(**changes)) is not None, kl.in_loss(recipe_of(**changes)) is not None) == places
    assert (found["algorithm.use_kl_in_reward"], found[f"{ACTOR}.use_kl_loss"]) == places
    assert found.get("algorithm.kl_ctrl.kl_coef") == (0.01 if places[0] else None)
    assert found.get(f"{ACTOR}.kl_loss_coef") == (0.01 if places[1] else None)
    assert found.get(f"{ACTOR}.kl_loss_type") == ("low_var_kl" if places[1] else None)


def test_critic_and_adapter_are_left_out_where_there_is_none():
    found = on({"algorithm.adv_estimator": "grpo", "worker.actor.model.lora.rank": 0})
    assert not [
        name for name in found if name.startswith("critic.") or ("critic" in name.split(".")[-1] and "ckpt" in name)
    ]
    assert "actor_rollout_ref.model.lora_alpha" not in found


def test_offload_by_fsdp_needs_fsdp2():
    changes = {"worker.actor.fsdp.enable_cpu_offload": True}
    assert on(changes)[f"{ACTOR}.fsdp_config.offload_policy"] is True
    with pytest.raises(RecipeError, match=r"enable_cpu_offload with worker\.actor\.strategy fsdp"):
        on({**changes, "worker.actor.strategy": "fsdp"})


def test_a_missing_chat_template_is_named(tmp_path):
    with pytest.raises(RecipeError, match="cannot read the chat template"):
        on({"data.override_chat_template": str(tmp_path / "none.jinja")})


@pytest.mark.parametrize(
    ("arguments", "skipped"),
    [
        ([], True),
        (["worker.actor.ppo_epochs=2"], False),
        (["data.rollout_batch_size=128"], False),
        (["worker.rollout.top_p=0.9"], False),  # vLLM's log-probabilities are not the policy's, and KL is in the reward
        (["worker.rollout.top_p=0.9", "algorithm.disable_kl=true"], True),
        (["worker.rollout.calculate_log_probs=false"], False),
        (["worker.actor.recompute_old_log_probs=true"], False),
        (["algorithm.rollout_correction.rollout_is=token"], False),
    ],
)
def test_old_log_probs_are_left_out_where_one_update_makes_them_superfluous(arguments, skipped):
    keys = translate(load("countdown", arguments=arguments, environ={}, hardware="gpu"))
    assert bool(keys.get("algorithm.rollout_correction.bypass_mode")) == skipped
    loss = keys["actor_rollout_ref.actor.policy_loss.loss_mode"]
    assert loss == ("on_policy_vanilla" if skipped else "vanilla")
