"""verl's own tree: which keys it has, and what is said of one that it has not."""

from __future__ import annotations

import pytest

from recipes.config import verl_names
from recipes.config.layers import Source, flatten, nest
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError

HERE = Source("argument", "here")


def test_the_tree_is_read():
    assert verl_names.defaults()["trainer.use_v1"] is True
    assert "actor_rollout_ref.actor.optim" in verl_names.groups()
    assert len(verl_names.defaults()) > 500


@pytest.mark.parametrize(
    "name",
    [
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.anything.deep",
        "actor_rollout_ref.model.override_config.attn_implementation",
        "trainer.v1.sampler.sampler_kwargs.mine",
        "+anything.at.all",
    ],
)
def test_keys_that_verl_takes(name):
    verl_names.check(name, 1 if name.endswith(".n") else "x", HERE)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("actor_rollout_ref.rollout.nn", 1, "did you mean actor_rollout_ref.rollout.n?"),
        ("trainer.no_such_thing_at_all", 1, "verl has no key"),
        ("actor_rollout_ref.rollout.n", "many", "another type"),
        ("actor_rollout_ref.rollout.enforce_eager", 1, "give a true or false"),
        ("actor_rollout_ref.rollout", 1, "a group of verl's keys"),
    ],
)
def test_keys_that_verl_does_not_take(name, value, words):
    with pytest.raises(RecipeError) as raised:
        verl_names.check(name, value, HERE)
    assert words in str(raised.value)
    assert raised.value.where == "here"


def test_arguments_that_speak_to_verl():
    assert verl_names.is_native("actor_rollout_ref.model.lora_rank")
    assert verl_names.is_native("trainer.test_freq")
    assert verl_names.is_native("+trainer.mine")
    assert not verl_names.is_native("trainer.val_freq")
    assert not verl_names.is_native("data.seed"), "a name of both trees is the recipe's"


def test_names_for_one_key_lead_to_one_key():
    same = verl_names.same_in_schema()
    assert same["data.train_batch_size"] == "data.rollout_batch_size"
    assert same["actor_rollout_ref.actor.loss_agg_mode"] == "worker.actor.loss_agg_mode"
    assert same["actor_rollout_ref.model.path"] == "worker.actor.model.model_path"
    assert "actor_rollout_ref.rollout.dtype" not in same, "bf16 is bfloat16 there"
    assert len(set(same.values())) == len(same)
    assert set(same.values()) <= set(leaves(Recipe))


def test_without_verl_nothing_is_checked(monkeypatch):
    monkeypatch.setattr(verl_names, "defaults", dict)
    verl_names.check("actor_rollout_ref.no_such_key", 1, HERE)


def test_easyr1s_package_of_the_same_name_is_not_verl(monkeypatch, tmp_path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert verl_names.package() is None


def test_flat_and_nested_are_inverse():
    tree = {"a": {"b": {"c": 1}, "d": {}}, "e": [1]}
    assert flatten(tree) == {"a.b.c": 1, "a.d": {}, "e": [1]}
    assert nest(flatten(tree)) == tree
    assert flatten(tree, stops=["a.b"])["a.b"] == {"c": 1}
