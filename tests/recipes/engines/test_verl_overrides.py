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
from recipes.engines.verl import override, quoted
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


def read(name: str, value: object) -> object:
    return PARSER.parse_override(override(name, value, known=True)).value()


@given(SCALARS)
@settings(max_examples=300, deadline=None)
def test_hydra_reads_back_what_was_written(value):
    if isinstance(value, str) and "${" in value:
        return
    found = read("data.name", value)
    assert found == value
    assert type(found) is type(value)


@given(st.lists(SCALARS, max_size=4))
@settings(max_examples=100, deadline=None)
def test_lists_come_back(values):
    assert read("data.names", values) == values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "null"),
        (1e-6, "1e-06"),
        ("/a/b-c_d.parquet", "/a/b-c_d.parquet"),
        ("a,b", "'a,b'"),
        ("it's", "'it\\'s'"),
        ("true", "'true'"),
        ("12", "'12'"),
        ("", "''"),
        ("${data.seed}", "'${data.seed}'"),
        ([1, "b c"], "[1,'b c']"),
    ],
)
def test_how_values_are_written(value, text):
    assert quoted(value) == text


def test_a_plus_where_verl_lacks_the_key():
    assert override("a.b", 1, known=False) == "+a.b=1"
    with pytest.raises(RecipeError, match="cannot be written as a key"):
        override("a b", 1, known=True)


def gpu(*arguments: str, **environ: str):
    return load("countdown", arguments=arguments, environ=environ, hardware="gpu")


def test_only_what_differs_from_verls_default_is_said():
    found = verl.overrides(gpu())
    assert "actor_rollout_ref.rollout.n=16" in found
    assert "algorithm.use_kl_in_reward=true" in found
    assert not [item for item in found if item.startswith(("actor_rollout_ref.rollout.top_k=", "critic."))]
    assert len(found) < 60


def test_what_was_asked_for_by_verls_name_is_always_said():
    assert "actor_rollout_ref.rollout.over_sample_rate=0" in verl.overrides(
        gpu("actor_rollout_ref.rollout.over_sample_rate=0")
    )
    assert "+ray_kwargs.ray_init.num_gpus=3" in verl.overrides(gpu("+ray_kwargs.ray_init.num_gpus=3"))
    assert "trainer.use_v1=false" in verl.overrides(gpu("+trainer.use_v1=false"))


def test_mappings_become_single_keys():
    found = verl.overrides(gpu(f"{KEY}.attn_implementation=sdpa", "worker.reward.reward_function_kwargs.a.b=1"))
    assert "+actor_rollout_ref.model.override_config.attn_implementation=sdpa" in found
    assert "+reward.custom_reward_function.reward_kwargs.a.b=1" in found


def test_verls_own_key_wins_over_an_earlier_layer():
    argument = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    assert verl.translate(gpu(argument))["actor_rollout_ref.actor.policy_loss.loss_mode"] == "gspo"


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


def test_without_verl_the_message_says_so(monkeypatch):
    recipe = gpu()
    monkeypatch.setattr(verl, "verl_defaults", dict)
    with pytest.raises(RecipeError, match="verl is not installed"):
        verl.overrides(recipe)


def test_the_command_and_its_environment():
    command = verl.command(gpu())
    assert command[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    assert "hydra.output_subdir=null" in command
    environment = verl.environment(gpu(), {})
    assert environment["HYDRA_FULL_ERROR"] == "1"
    on_cpu = load("countdown", environ={}, hardware="cpu")
    assert verl.command(on_cpu)[2] == "recipes.engines.verl_cpu.main"
    assert verl.environment(on_cpu, {})["VERL_PLATFORM"] == "cpu"
    assert verl.translate(on_cpu)["trainer.device"] == "cpu"
    assert "trainer.device" not in verl.translate(gpu())


def test_what_a_cpu_needs_gives_way_to_verls_own_keys():
    on_cpu = load("countdown", environ={}, hardware="cpu", arguments=["+ray_kwargs.ray_init.num_gpus=7"])
    assert verl.translate(on_cpu)["ray_kwargs.ray_init.num_gpus"] == 7
