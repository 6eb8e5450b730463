"""verl's command line: Hydra reads back what was meant, and verl's own keys are kept apart from translations."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import Recipe, load
from recipes.config.layers import Source, validated
from recipes.engines.verl import translation as verl
from recipes.engines.verl.translation import override
from tests.mistakes import mistake

PARSER = OverridesParser.create()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
    st.text("a'\"\\,=[]{}():$ \n\t.-+", max_size=12),
)


@given(SCALARS | st.lists(SCALARS, max_size=4))
@settings(max_examples=40, deadline=None)
def test_hydra_reads_back_what_was_written(value):
    if "${" in str(value):
        return
    found = PARSER.parse_override(override("data.name", value, known=True)).value()
    assert found == value
    assert type(found) is type(value)


def gpu(*arguments: str):
    return load("countdown", arguments=arguments, environ={}, hardware="gpu")


def test_only_changes_of_verls_defaults_are_written_and_all_keys_of_the_user():
    plain = verl.overrides(gpu())
    assert "actor_rollout_ref.rollout.n=16" in plain
    assert not [item for item in plain if item.startswith(("actor_rollout_ref.rollout.top_k=", "critic."))]
    attention = "model.override_config.attn_implementation=sdpa"
    natives = ("actor_rollout_ref.rollout.over_sample_rate=0", "+ray_kwargs.ray_init.num_gpus=3")
    given = verl.overrides(gpu(*natives, "+trainer.use_v1=false", f"worker.actor.{attention}"))
    assert set(given) >= {*natives, "trainer.use_v1=false", f"+actor_rollout_ref.{attention}"}


@pytest.mark.parametrize(
    ("native_layer", "our_layer", "wins"),
    [
        ("argument", "environment", "float16"),
        ("environment", "argument", "bfloat16"),
        ("recipe", "embedded", "bfloat16"),
        ("embedded", "recipe", "float16"),
        ("argument", "argument", None),
    ],
)
def test_of_two_names_that_disagree_the_later_wins_and_one_layer_may_not_have_both(native_layer, our_layer, wins):
    """dtype is not the same word in both trees, so it cannot simply be taken for the recipe's own key."""
    name = "actor_rollout_ref.rollout.dtype"
    values = {"hardware": "gpu", "worker.rollout.dtype": "bf16", "verl": {name: "float16"}}
    sources = {
        "worker.rollout.dtype": Source(our_layer, "ours"),
        f"verl.{name}": Source(native_layer, "theirs"),
        "verl": Source(native_layer, "theirs"),
    }
    recipe = validated(Recipe, values, sources)
    if wins is None:
        assert mistake(lambda: verl.translate(recipe), "worker.rollout.dtype").where == "theirs; ours"
    else:
        assert verl.translate(recipe)[name] == wins
