"""Text becomes typed values, layers are merged, and every mistake names its place."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import layers
from recipes.config.layers import flatten, nest, parse_as, validated
from recipes.config.schema import Recipe, leaves
from recipes.paths import CONFIGS

Names = list[Literal["console", "file"]]
# Where a default differs from EasyR1's dataclasses.
OTHER_DEFAULTS = {
    "data.prompt_key",
    "worker.actor.model.trust_remote_code",
    "worker.ref.fsdp.enable_cpu_offload",
    "worker.rollout.enable_chunked_prefill",
    *(f"trainer.{name}" for name in ("project_name", "experiment_name", "logger")),
}


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("1e-6", float, 1e-6),
        ("None", str | None, None),
        ("Off", bool, False),
        ("console,file", Names, ["console", "file"]),
        ("[a.parquet, b.parquet]", str | list[str], ["a.parquet", "b.parquet"]),
        ("word", int, "word"),
        ("9" * 5000, int, "9" * 5000),
        ("${oops", int, "${oops"),
    ],
)
def test_text_is_read_as_the_type_asks(text, annotation, value):
    read = parse_as(text, annotation)
    assert read == value
    assert type(read) is type(value)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)


@given(st.dictionaries(st.text("abc", min_size=1), st.one_of(VALUES, st.lists(VALUES, max_size=3))))
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_again(tmp_path_factory, tree):
    if "${" in str(tree) or "???" in str(tree):
        return  # OmegaConf's own syntax
    path = tmp_path_factory.mktemp("yaml") / "tree.yaml"
    path.write_text(layers.dump(tree), encoding="utf-8")
    assert layers.read(path) == tree
    assert nest(flatten({"a": {"b": tree}})) == {"a": {"b": tree}}
    assert "\n" not in layers.flow(tree)
    for value in tree.values():
        if not isinstance(value, str):
            assert layers.parse(layers.flow(value)) == value


def test_easyr1s_keys_have_their_defaults_and_its_example_is_a_recipe():
    defaults, example = (
        layers.read(CONFIGS / f"official/easyr1_{name}.yaml")["values"] for name in ("defaults", "config")
    )
    for name, default in defaults.items():
        if leaf := leaves(Recipe).get(name):
            assert (leaf.default == default) == (name not in OTHER_DEFAULTS), name
    recipe = validated(Recipe, example, {})
    assert recipe.worker.rollout.val_override_config.temperature == 0.6
