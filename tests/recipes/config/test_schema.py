"""The schema has every key of EasyR1, and says of every key what it does and who can do it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from recipes.config.merge import validated
from recipes.config.schema import Recipe, describe_type, leaves
from recipes.engines.verl import OWN
from recipes.errors import RecipeError

EASYR1 = json.loads(Path(__file__).with_name("easyr1_keys.json").read_text(encoding="utf-8"))
VALIDATION = "worker.rollout.val_override_config"
# Where a default differs from EasyR1's dataclasses, and why.
OTHER_DEFAULTS = {
    "data.prompt_key": "the row has a column for each engine",
    "worker.actor.model.trust_remote_code": "running downloaded code is a choice",
    "worker.critic.model.trust_remote_code": "running downloaded code is a choice",
    "worker.ref.fsdp.enable_cpu_offload": "EasyR1's example has it on, and verl knows nothing else",
    "worker.rollout.enable_chunked_prefill": "EasyR1's default is for vLLM's V0 engine",
    "trainer.project_name": "ours",
    "trainer.experiment_name": "the recipe's name",
    "trainer.logger": "W&B is nobody's default",
}


@pytest.mark.parametrize("key", EASYR1["defaults"])
def test_every_key_of_easyr1_is_known_with_its_default(key):
    if key == VALIDATION:
        assert any(path.startswith(VALIDATION) for path in leaves(Recipe))
        return
    assert (leaves(Recipe)[key].default == EASYR1["defaults"][key]) == (key not in OTHER_DEFAULTS)


def test_easyr1_has_as_many_keys_as_were_counted():
    assert len(EASYR1["defaults"]) == 176
    assert len(EASYR1["example"]) == 88


def test_easyr1s_example_is_valid_here():
    recipe = validated(dict(EASYR1["example"]), {})
    assert recipe.data.rollout_batch_size == 512
    assert recipe.worker.rollout.val_override_config.temperature == 0.6


@pytest.mark.parametrize("leaf", leaves(Recipe).values(), ids=lambda leaf: leaf.path)
def test_every_key_is_described(leaf):
    assert leaf.info.doc
    assert "\n" not in leaf.info.doc
    assert describe_type(leaf.field.annotation)
    for engine, reason in leaf.info.not_on.items():
        assert engine in ("verl", "easyr1")
        assert len(reason) > 10, "say why"
    assert leaf.path in OWN or leaf.info.verl or "verl" in leaf.info.not_on or leaf.info.via == "rule"


@pytest.mark.parametrize("leaf", leaves(Recipe).values(), ids=lambda leaf: leaf.path)
def test_every_default_has_its_type_and_is_allowed_everywhere(leaf):
    validated({leaf.path: leaf.default}, {})
    for values in leaf.info.values_on.values():
        assert leaf.default in values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.rollout_batch_size", "64"),
        ("data.rollout_batch_size", 64.0),
        ("data.rollout_batch_size", True),
        ("data.rollout_batch_size", 0),
        ("data.shuffle", 1),
        ("data.shuffle", "true"),
        ("worker.actor.optim.lr", "fast"),
        ("worker.actor.optim.betas", [0.9]),
        ("worker.rollout.temperature", 0.0),
        ("trainer.logger", "console"),
        ("trainer.logger", ["console", "paper"]),
        ("algorithm.adv_estimator", "gpro"),
        ("worker.actor.model.override_config", []),
    ],
)
def test_types_are_strict(key, value):
    with pytest.raises(RecipeError) as raised:
        validated({key: value}, {})
    assert key in str(raised.value)
    assert repr(value) in str(raised.value) or "paper" in str(raised.value)


def test_a_recipe_never_changes():
    recipe = validated({}, {})
    with pytest.raises(ValidationError):
        recipe.data.seed = 2


def test_the_reference_has_no_offload_of_its_own():
    assert leaves(Recipe)["worker.ref.fsdp.enable_cpu_offload"].info.not_on.get("verl")
    assert not leaves(Recipe)["worker.actor.fsdp.enable_cpu_offload"].info.not_on
