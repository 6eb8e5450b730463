"""verl's command line: Hydra reads back what was meant, and verl's own keys are kept apart from translations."""

from __future__ import annotations

import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import Recipe, load
from recipes.config.layers import Source, validated
from recipes.engines import verl
from recipes.engines.verl import override
from recipes.errors import RecipeError

PARSER = OverridesParser.create()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
    st.text("a'\"\\,=[]{}():$ \n\t.-+", max_size=12),
)
KEY = "worker.actor.model.override_config"


@given(SCALARS | st.lists(SCALARS, max_size=4))
@settings(max_examples=400, deadline=None)
def test_hydra_reads_back_what_was_written(value):
    if "${" in str(value):
        return
    found = PARSER.parse_override(override("data.name", value, known=True)).value()
    assert found == value
    assert type(found) is type(value)


def test_a_plus_where_verl_lacks_the_key():
    assert override("a.b", "it's", known=False) == "+a.b='it\\'s'"
    assert override("a.b", "${data.seed}", known=True) == "a.b='${data.seed}'"
    with pytest.raises(RecipeError, match="cannot be written as a key"):
        override("a b", 1, known=True)


def gpu(*arguments: str, **environ: str):
    return load("countdown", arguments=arguments, environ=environ, hardware="gpu")


def test_only_changes_of_verls_defaults_are_written_and_all_keys_of_the_user():
    plain = verl.overrides(gpu())
    assert "actor_rollout_ref.rollout.n=16" in plain
    assert not [item for item in plain if item.startswith(("actor_rollout_ref.rollout.top_k=", "critic."))]
    assert len(plain) < 60
    given = verl.overrides(
        gpu(
            "actor_rollout_ref.rollout.over_sample_rate=0",
            "+ray_kwargs.ray_init.num_gpus=3",
            "+trainer.use_v1=false",
            f"{KEY}.attn_implementation=sdpa",
            "worker.reward.reward_function_kwargs.a.b=1",
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        )
    )
    assert set(given) >= {
        "actor_rollout_ref.rollout.over_sample_rate=0",
        "+ray_kwargs.ray_init.num_gpus=3",
        "trainer.use_v1=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "+reward.custom_reward_function.reward_kwargs.a.b=1",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
    }


@pytest.mark.parametrize(
    ("native_layer", "our_layer", "clash"),
    [
        ("argument", "recipe", False),
        ("argument", "hardware", False),
        ("argument", "environment", True),
        ("argument", "argument", True),
        ("recipe", "recipe", True),
        ("recipe", "environment", True),
        ("recipe", "embedded", True),
        ("embedded", "recipe", False),
    ],
)
def test_two_names_that_disagree(native_layer, our_layer, clash):
    """dtype is not the same word in both trees, so it cannot simply be taken for the recipe's own key."""
    name = "actor_rollout_ref.rollout.dtype"
    values = {"hardware": "gpu", "worker.rollout.dtype": "bf16", "verl": {name: "float16"}}
    sources = {
        "worker.rollout.dtype": Source(our_layer, "ours"),
        f"verl.{name}": Source(native_layer, "theirs"),
        "verl": Source(native_layer, "theirs"),
    }
    recipe = validated(Recipe, values, sources)
    if clash:
        with pytest.raises(
            RecipeError, match=r"is 'float16', but worker\.rollout\.dtype makes it 'bfloat16'"
        ) as raised:
            verl.translate(recipe)
        assert raised.value.where == "theirs; ours"
    else:
        assert verl.translate(recipe)[name] == "float16"


def test_two_names_that_agree():
    values = {"hardware": "gpu", "worker.rollout.dtype": "fp16", "verl": {"actor_rollout_ref.rollout.dtype": "float16"}}
    sources = {path: Source("argument", "here") for path in (*values, "verl.actor_rollout_ref.rollout.dtype")}
    assert verl.translate(validated(Recipe, values, sources))["actor_rollout_ref.rollout.dtype"] == "float16"


def test_without_verl_the_message_names_it(monkeypatch):
    recipe = gpu()
    monkeypatch.setattr(verl, "verl_defaults", dict)
    with pytest.raises(RecipeError, match="verl is not installed"):
        verl.overrides(recipe)


def test_the_command_and_its_environment():
    command = verl.command(gpu())
    assert command[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    assert "hydra.output_subdir=null" in command
    assert "trainer.device" not in verl.translate(gpu())
    environment = verl.environment(gpu(), {"XDG_CACHE_HOME": "/kept"})
    assert environment["HYDRA_FULL_ERROR"] == "1"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/kept/torch/inductor"
    assert verl.environment(gpu(), {"TORCHINDUCTOR_CACHE_DIR": "/mine"})["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    on_cpu = load("countdown", environ={}, hardware="cpu", arguments=["+ray_kwargs.ray_init.num_gpus=7"])
    assert verl.command(on_cpu)[2] == "recipes.engines.verl_cpu.main"
    assert verl.environment(on_cpu, {})["VERL_PLATFORM"] == "cpu"
    keys = verl.translate(on_cpu)
    assert (keys["trainer.device"], keys["ray_kwargs.ray_init.num_gpus"]) == ("cpu", 7)
