"""Rows, statuses and reasons; a difference without a reason is found."""

from __future__ import annotations

import pytest

from recipes.config.official import ABSENT, Official, canonical, comments, compare
from recipes.errors import RecipeError

RECIPE = """
data:
  train_files: artifacts/data/toy/train.parquet  # data.train_files; ours
  val_files: artifacts/data/toy/test.parquet  # data.val_files; ours
  rollout_batch_size: 64  # data.train_batch_size; small
  seed: 1  # data.seed
algorithm:
  norm_adv_by_std: false  # algorithm.norm_adv_by_std_in_grpo; Dr.GRPO
worker:
  actor:
    global_batch_size: 64  # one update a step
    model: {model_path: org/model}
  rollout: {n: 16, tensor_parallel_size: 1}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


def official(**values):
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return Official("easyr1", "toy", "Toy", "here", keys, frozenset(key for key in keys if key != "data.shuffle"))


def rows(recipe, *examples):
    return {row.key: row for row in compare(recipe, examples).rows}


def test_statuses(recipe):
    found = rows(recipe, official(data__rollout_batch_size=64.0, data__seed=2, data__shuffle=True))
    assert found["data.rollout_batch_size"].status == "aligned"
    assert found["data.seed"].status == "adjusted"
    assert found["algorithm.norm_adv_by_std"].status == "only ours"
    assert found["algorithm.norm_adv_by_std"].official == (ABSENT,)
    assert "data.shuffle" not in found, "nobody chose it, and it is the same"


def test_all_examples_have_to_agree(recipe):
    one, other = official(data__rollout_batch_size=64), official(data__rollout_batch_size=512)
    assert rows(recipe, one, other)["data.rollout_batch_size"].status == "adjusted"
    assert rows(recipe, one, official())["data.rollout_batch_size"].status == "aligned"


def test_true_is_not_one(recipe):
    assert rows(recipe, official(worker__rollout__n=True))["worker.rollout.n"].status == "adjusted"


def test_a_hidden_default_that_differs_is_shown_with_its_reason(recipe):
    found = rows(recipe, official(worker__rollout__enable_chunked_prefill=False))
    assert found["worker.rollout.enable_chunked_prefill"].status == "adjusted"
    assert not found["worker.rollout.enable_chunked_prefill"].lacks_reason


def test_what_our_engine_cannot_do_says_so(recipe):
    row = rows(recipe, official(data__format_prompt="a.jinja"))["data.format_prompt"]
    assert row.ours is ABSENT
    assert "finished chat messages" in row.reason


def test_reasons_stand_behind_the_keys(recipe):
    found = rows(recipe, official(data__rollout_batch_size=512, worker__actor__global_batch_size=128))
    assert found["data.rollout_batch_size"].reason == "small"
    assert found["worker.actor.global_batch_size"].reason == "one update a step"


def test_a_difference_without_a_reason_is_found(recipe):
    with pytest.raises(RecipeError, match=r"no reason is given for .*data\.seed") as raised:
        compare(recipe, [official(data__seed=2)]).require_reasons()
    assert "toy.yaml" in str(raised.value)
    assert "# verl's name; reason" in str(raised.value)


def test_verls_own_keys_have_rows(recipe, tmp_path):
    text = RECIPE + "verl:\n  data.truncation: left  # keeps the question\n"
    path = tmp_path / "native.yaml"
    path.write_text(text, encoding="utf-8")
    row = rows(str(path), official())["verl.data.truncation"]
    assert (row.ours, row.status, row.reason) == ("left", "only ours", "keeps the question")


def test_comments(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "data:\n"
        "  seed: 1  # data.seed\n"
        "  shuffle: true  # data.shuffle; every epoch; anew\n"
        "  image_key: 'a # b'  # the column\n"
        "  train_files: [a, b]  # data.train_files: two\n"
        "  val_files: c\n"
        "worker:\n"
        "  rollout: {n: 4}  # a group\n"
        "  # alone\n"
        "trainer:\n"
        "  logger: [console]  # scripts/launch.sh; reads it\n",
        encoding="utf-8",
    )
    assert comments(path) == {
        "data.shuffle": "every epoch; anew",
        "data.image_key": "the column",
        "worker.rollout": "a group",
        "trainer.logger": "scripts/launch.sh; reads it",
    }


def test_kl_is_compared_where_it_acts():
    loss = {"algorithm.use_kl_loss": True, "algorithm.kl_coef": 0.1, "algorithm.kl_loss_coef": 0.3}
    assert canonical(loss)["algorithm.kl_coef"] == 0.3
    assert "algorithm.use_kl_in_reward" not in canonical({**loss, "algorithm.use_kl_in_reward": False})
    both = canonical({**loss, "algorithm.use_kl_in_reward": True})
    assert both["algorithm.use_kl_in_reward"] is True
    assert both["algorithm.kl_coef"] == 0.1
