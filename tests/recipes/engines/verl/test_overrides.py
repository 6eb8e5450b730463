"""verl's command line: Hydra reads back what was meant, and verl's own keys are kept apart from translations."""

from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import load
from recipes.engines.verl import translation as verl
from recipes.engines.verl.translation import override

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
    natives = ("actor_rollout_ref.rollout.ignore_eos=false", "+ray_kwargs.ray_init.num_gpus=3")
    given = verl.overrides(gpu(*natives, "+trainer.use_v1=false", f"worker.actor.{attention}"))
    assert set(given) >= {*natives, "trainer.use_v1=false", f"+actor_rollout_ref.{attention}"}
