"""What needs flash-attn on GPUs, and what a machine without it is told."""

from __future__ import annotations

import pytest

from recipes import preflight
from recipes.config import gpus, load, machine
from recipes.errors import RecipeError
from recipes.preflight import model


@pytest.fixture
def resolved(monkeypatch):
    """A recipe on eight GPUs whose torch cannot pack, with flash-attn or without it."""

    def build(*arguments: str, missing: bool = True, **environ: str):
        monkeypatch.setattr(machine, "visible_gpus", lambda *_: 8)
        monkeypatch.setattr(preflight, "visible_gpus", lambda: 8)
        for module in (gpus, model):
            monkeypatch.setattr(module, "has_packed_attention", lambda: False)
        found = None if missing else object()
        monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _name: found)
        return load("countdown", arguments=arguments, environ=environ, hardware="gpu")

    return build


def test_a_critic_needs_it(resolved):
    with pytest.raises(RecipeError, match="flash-attn is not installed here") as caught:
        preflight.check_before_data(resolved(ALGORITHM="ppo"))
    assert "configs/algorithms/ppo.yaml" in caught.value.where
    preflight.check_before_data(resolved(ALGORITHM="ppo", missing=False))
    preflight.check_before_data(resolved(ALGORITHM="rloo"))


def test_packing_that_the_user_asks_for_needs_it(resolved):
    with pytest.raises(RecipeError, match="cannot keep them apart here") as caught:
        preflight.check_before_data(resolved(PADDING_FREE="true"))
    assert "variable PADDING_FREE" in caught.value.where
    assert "docs/INSTALLATION.md" in caught.value.fix
    preflight.check_before_data(resolved(PADDING_FREE="true", missing=False))
    other = "worker.actor.model.override_config.attn_implementation=flash_attention_3"
    preflight.check_before_data(resolved(other, PADDING_FREE="true"))


def test_what_a_machine_without_it_is_told(resolved):
    (remark,) = model.check_attention(resolved())
    assert "padding is kept" in remark
    assert model.check_attention(resolved(PADDING_FREE="false")) == []
    assert model.check_attention(resolved(missing=False)) == []


def test_cpus_and_easyr1_are_left_alone(resolved, make):
    assert model.check_attention(make()) == []
    assert model.check_attention(resolved(ALGORITHM="ppo").model_copy(update={"engine": "easyr1"})) == []
