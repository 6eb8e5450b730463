"""Text becomes typed values, layers are merged, and every mistake names its place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes import yaml_text
from recipes.config.schema import Recipe
from recipes.paths import CONFIGS
from recipes.settings import flatten, nest, validated


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("worker.actor.optim.lr", "1e-6", 1e-6),
        ("trainer.max_steps", "None", None),
        ("trainer.val_before_train", "Off", False),
        ("trainer.logger", "console,file", ["console", "file"]),
        ("trainer.experiment_name", "7", "7"),
        ("algorithm.filter_key", " two words", " two words"),
        ("worker.rollout.cudagraph_capture_sizes", "[1, 2]", [1, 2]),
        ("worker.reward.reward_function_kwargs", "{a: 1e-3}", {"a": 1e-3}),
    ],
)
def test_text_is_read_as_the_type_asks(resolve, key, text, value):
    read = resolve(f"{key}={text}").value(key)
    assert read == value
    assert type(read) is type(value)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)


@given(st.dictionaries(st.text("abc", min_size=1), st.one_of(VALUES, st.lists(VALUES, max_size=3))))
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read_again(tmp_path_factory, tree):
    if "${" in str(tree) or "???" in str(tree):
        return  # OmegaConf's own syntax
    path = tmp_path_factory.mktemp("yaml") / "tree.yaml"
    path.write_text(yaml_text.dump(tree), encoding="utf-8")
    assert yaml_text.read(path) == tree
    assert nest(flatten({"a": {"b": tree}})) == {"a": {"b": tree}}
    assert "\n" not in yaml_text.flow(tree)
    for value in tree.values():
        if not isinstance(value, str):
            assert yaml_text.parse(yaml_text.flow(value)) == value


def test_easyr1s_example_is_a_recipe():
    example = yaml_text.read(CONFIGS / "official/easyr1_config.yaml")["values"]
    recipe = validated(Recipe, example, {})
    assert recipe.worker.rollout.val_override_config.temperature == 0.6


@pytest.mark.parametrize(
    "text", ["!!timestamp x", "!!bool x", '!!int ""', "&a *a", "1" * 5000, "&a [*a]", "[" * 500 + "]" * 500]
)
def test_text_that_is_no_value_of_yamls_stays_text(text):
    assert yaml_text.parse(text) == text
