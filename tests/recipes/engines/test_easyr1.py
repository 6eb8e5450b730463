"""The recipe in EasyR1's words: every key is one of EasyR1's, and what only verl has must be neutral."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes.config import load
from recipes.config.layers import Source, flatten, validated
from recipes.config.schema import Recipe, leaves
from recipes.engines import easyr1
from recipes.errors import RecipeError
from recipes.paths import ROOT

EASYR1 = json.loads((Path(__file__).parent.parent / "config/easyr1_keys.json").read_text(encoding="utf-8"))


def countdown(*arguments: str, **environ: str) -> Recipe:
    return load("countdown", arguments=["engine=easyr1", *arguments], environ=environ, hardware="gpu")


def test_every_key_is_easyr1s_and_none_is_forgotten():
    assert set(easyr1.translate(countdown())) == set(EASYR1["defaults"])


def test_values_arrive_and_the_weight_of_kl_in_the_loss_becomes_the_one_weight():
    keys = easyr1.translate(countdown())
    assert (keys["data.rollout_batch_size"], keys["worker.rollout.n"], keys["algorithm.kl_coef"]) == (64, 16, 0.01)
    assert keys["worker.rollout.val_override_config"] == {"temperature": 0.0, "top_p": 1.0, "n": 1}
    assert keys["worker.reward.reward_function"] == f"{ROOT}/reward_functions/countdown.py:compute_score_batch"
    assert (keys["data.prompt_key"], keys["worker.critic.model.model_path"]) == ("problem", "Qwen/Qwen3-4B")
    named = "worker.reward.reward_function=reward_functions/countdown.py:other"
    keys = easyr1.translate(countdown(named, USE_KL_LOSS="1", KL_LOSS_COEF="0.5", KL_LOSS_TYPE="abs"))
    assert keys["worker.reward.reward_function"].endswith("countdown.py:other")
    assert (keys["algorithm.kl_coef"], keys["algorithm.kl_penalty"]) == (0.5, "abs")


def test_omegaconf_reads_back_the_command_line():
    """EasyR1 reads its arguments with OmegaConf."""
    recipe = countdown("trainer.project_name=a: b # c")
    assert easyr1.command(recipe)[:3] == [sys.executable, "-m", "verl.trainer.main"]
    read = OmegaConf.to_container(OmegaConf.from_dotlist(easyr1.overrides(recipe)))
    assert flatten(read) == flatten(easyr1.translate(recipe))


CANDIDATES = (7, 0.5, "other", "token-mean", "safetensors", {"a": 1}, [7], True, False)


@pytest.mark.parametrize("path", [path for path, leaf in leaves(Recipe).items() if "easyr1" in leaf.info.not_on])
def test_what_only_verl_has_is_refused(path):
    default = leaves(Recipe)[path].default
    value = next(item for item in CANDIDATES if item != default and _fits(path, item))
    values = {"hardware": "gpu", "algorithm.adv_estimator": "gae", path: value}
    recipe = validated(Recipe, values, {path: _source()})
    with pytest.raises(RecipeError, match=rf"EasyR1 cannot do {path}: ") as raised:
        easyr1.translate(recipe)
    assert raised.value.where == "here"


def _source() -> Source:
    return Source("argument", "here")


def _fits(path: str, value: object) -> bool:
    try:
        validated(Recipe, {path: value}, {})
    except RecipeError:
        return False
    return True


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("worker.actor.strategy=fsdp2", "worker.actor.strategy: 'fsdp2'"),
        ("worker.actor.loss_type=gpg", "worker.actor.loss_type: 'gpg'"),
        ("algorithm.adv_estimator=opo", "algorithm.adv_estimator: 'opo'"),
        ("worker.rollout.name=sglang", "worker.rollout.name: 'sglang'"),
        (
            "actor_rollout_ref.rollout.over_sample_rate=0.1",
            "actor_rollout_ref.rollout.over_sample_rate is a key of verl",
        ),
        ("data.train_files=[a.parquet,b.parquet]", "EasyR1 reads one file as data.train_files"),
    ],
)
def test_what_easyr1_cannot_do_is_named(argument, words):
    with pytest.raises(RecipeError) as raised:
        easyr1.translate(countdown(argument))
    assert words in str(raised.value)
    assert argument in raised.value.where


def test_easyr1_needs_a_gpu():
    with pytest.raises(RecipeError, match="EasyR1 needs a GPU"):
        easyr1.translate(load("countdown", environ={"ENGINE": "easyr1"}, hardware="cpu"))
