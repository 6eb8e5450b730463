"""Every key of the schema reaches verl, or says why it does not."""

import json
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from recipes.config import check, load
from recipes.config.schema import LAUNCHERS, Leaf, Recipe, leaves
from recipes.engines.easyr1 import translation as easyr1
from recipes.engines.verl import translation as verl
from recipes.engines.verl.translation import translate
from recipes.paths import ROOT
from recipes.settings import Source, validated
from tests.mistakes import mistake

TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"
FILE = Source("recipe", "toy.yaml")
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
IN_REWARD, IN_LOSS = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
LORA, IMAGES = "worker.actor.model.lora.rank", "worker.rollout.limit_images"
# A recipe in which every key takes part.
ALL_ON: dict[str, Any] = {
    "hardware": "gpu",
    "algorithm.use_kl_loss": True,
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_loss_coef": 0.5,
    "algorithm.kl_loss_type": "abs",
    "algorithm.online_filtering": True,
    "worker.actor.strategy": "fsdp2",
    "worker.actor.model.lora.rank": 4,
    "worker.rollout.limit_images": 1,
    "worker.reward.overlong_buffer.enable": True,
}
HALVED = {"data.max_prompt_length": 100, "data.max_response_length": 400, "worker.actor.ulysses_size": 2}
# Keys that one value translates: verl has no other.
ONE_VALUE = {"worker.actor.optim.strategy", "worker.rollout.tool_seconds"}  # the latter travels in a variable
OTHERS: dict[str, Any] = {
    "data.override_chat_template": __file__,
    "trainer.save_freq": 3,
    "trainer.val_freq": 3,
    "worker.rollout.cudagraph_capture_sizes": [4],
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
            return value / 2 + 0.13 if small else (value or 0) + 1 or 1
        if part is str:
            return f"{value or ''}other"
        if get_origin(part) is list:
            return ["wandb"] if leaf.path == "trainer.logger" else ["other"]
        if get_origin(part) is dict:
            return {"other": 1}
    raise AssertionError(f"no other value for {leaf.path}")


KEYS = [leaf for leaf in leaves(Recipe).values() if leaf.path not in LAUNCHERS]
CHANGEABLE = [leaf for leaf in KEYS if "verl" in leaf.info.engines and leaf.path not in ONE_VALUE]


@pytest.mark.parametrize("leaf", CHANGEABLE, ids=lambda leaf: leaf.path)
def test_another_value_shows_in_verls_keys(leaf):
    """Presence of a rule proves nothing: verl's keys have to change with the value."""
    before = recipe_of()
    value = another(leaf, before.value(leaf.path))
    old, new = translate(before), on({leaf.path: value})
    changed = {name for name in old.keys() | new.keys() if old.get(name, "absent") != new.get(name, "absent")}
    assert changed, f"{leaf.path}: {value!r} changes nothing"
    if leaf.info.verl and not leaf.is_open:
        assert any(name.startswith(leaf.info.verl) for name in changed), "the schema names another key of verl"


@pytest.mark.parametrize(
    ("engine", "key", "value"),
    [
        (verl, "algorithm.adv_estimator", "remax"),
        (verl, "worker.actor.fsdp.enable_cpu_offload", True),  # with FSDP 1
        (easyr1, "worker.actor.use_fused_kernels", True),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_its_key(engine, key, value):
    error = mistake(lambda: engine.translate(validated(Recipe, {"hardware": "gpu", key: value}, {key: FILE})))
    assert (key in error.what, error.where) == (True, "toy.yaml")


def test_adapters_are_spread_by_fsdp2_and_saved_alone_beside_a_whole_model():
    alone, variables = "actor_rollout_ref.actor.checkpoint.save_lora_only", {"LORA_RANK": "8"}
    recipe = load("custom", environ=variables, hardware="gpu")
    assert (recipe.worker.actor.strategy, translate(recipe).get(alone)) == ("fsdp2", True)
    without = load("custom", arguments=["trainer.save_hf_model=false"], environ=variables, hardware="gpu")
    assert alone not in translate(without), "verl's own tool merges whole shards alone"
    plain = load("custom", environ={}, hardware="gpu")
    assert (plain.worker.actor.strategy, alone in translate(plain)) == ("fsdp", False)
    other = load("custom", arguments=["worker.actor.strategy=fsdp"], environ=variables, hardware="gpu")
    assert "fsdp2" in mistake(lambda: check(other)).fix


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"algorithm.filter_key": "overall"}, {"algorithm.filter_groups.metric": "reward"}),
        ({"worker.rollout.val_override_config.temperature": 0.0}, {f"{ROLLOUT}.val_kwargs.do_sample": False}),
        ({LORA: 0, IMAGES: 0}, {f"{ROLLOUT}.load_format": "dummy"}),
        ({LORA: 8, IMAGES: 0}, {f"{ROLLOUT}.load_format": "safetensors"}),
        ({LORA: 0, IMAGES: 2}, {f"{ROLLOUT}.load_format": "safetensors"}),
        # A coefficient alone does nothing in verl: one of the switches has to be on.
        ({}, {IN_REWARD: True, IN_LOSS: True, f"{ACTOR}.kl_loss_coef": 0.5, f"{ACTOR}.kl_loss_type": "abs"}),
        ({"algorithm.use_kl_in_reward": None}, {IN_REWARD: False, IN_LOSS: True}),
        ({"algorithm.use_kl_in_reward": None, "algorithm.use_kl_loss": False}, {IN_REWARD: True, IN_LOSS: False}),
        ({"algorithm.disable_kl": True, "algorithm.use_kl_in_reward": None}, {IN_REWARD: False, IN_LOSS: False}),
        # verl takes the share of a warm-up where the steps are 0.
        (
            {"worker.actor.optim.lr_warmup_steps": 0, "worker.actor.optim.lr_warmup_ratio": 0.5},
            {f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0},
        ),
        # Without a budget of their own, dynamic batches have the tokens of full-length responses.
        (HALVED, {f"{ACTOR}.ppo_max_token_len_per_gpu": 1000, f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 4000}),
    ],
)
def test_translations_that_are_not_mere_renames(changes, expected):
    found = on(changes)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "skipped"),
    [
        ([], True),
        (["worker.actor.ppo_epochs=2"], False),
        (["worker.rollout.top_p=0.9"], False),  # vLLM's log-probabilities are not the policy's, and KL is in the reward
        (["algorithm.rollout_correction.rollout_is=token"], False),
    ],
)
def test_old_log_probs_are_left_out_where_one_update_makes_them_superfluous(arguments, skipped):
    keys = translate(load("countdown", arguments=arguments, environ={}, hardware="gpu"))
    assert bool(keys.get("algorithm.rollout_correction.bypass_mode")) == skipped
    loss = keys["actor_rollout_ref.actor.policy_loss.loss_mode"]
    assert loss == ("on_policy_vanilla" if skipped else "vanilla")


def test_what_the_plug_in_sets_too_is_kept_where_it_is_typed_and_named_where_a_file_has_it(tmp_path):
    (tmp_path / "own.yaml").write_text("worker: {rollout: {engine_kwargs: {kv_cache_memory_bytes: 5}}}")
    typed = ["worker.rollout.engine_kwargs.kv_cache_memory_bytes=7", "actor_rollout_ref.model.external_lib=json"]
    own = load(str(tmp_path / "own.yaml"), environ={}, hardware="cpu")
    cache, library = f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes", "actor_rollout_ref.model.external_lib"
    keys = translate(load("countdown", arguments=typed, environ={}, hardware="cpu"))
    assert (keys[cache], keys[library]) == (7, ["recipes.engines.cpu.engine", "json"])
    (note,) = verl.notes(own)
    assert f"{cache} 5 ({tmp_path}/own.yaml) by {translate(own)[cache]}" in note


@pytest.mark.parametrize(
    ("sizes", "kernel"),
    [({"hidden_size": 640}, "triton"), ({"hidden_size": 576}, "torch"), ({"final_logit_softcapping": 30.0}, None)],
)
def test_the_fused_head_is_one_that_the_model_has(tmp_path, sizes, kernel):
    config = json.loads((TINY / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **sizes}))
    keys = translate(load("countdown", environ={"MODEL_PATH": str(tmp_path)}, hardware="gpu"))
    assert keys["actor_rollout_ref.model.use_fused_kernels"] == (kernel is not None)
    assert keys.get("actor_rollout_ref.model.fused_kernel_options.impl_backend") == kernel


def test_another_trainer_of_verls_is_said_with_what_it_does_not_do():
    other = load("gsm8k", arguments=["trainer.v1.trainer_mode=colocate_async"], environ={}, hardware="gpu")
    (note,) = verl.notes(other)
    assert {"trainer.v1.trainer_mode=colocate_async", "(trainer.stop_on_nan)"} <= set(note.split())
