"""Official examples are what upstream's launchers say, and each difference of a recipe has its kind and its reason."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from recipes.config import load
from recipes.config.layers import dump, nest
from recipes.config.official import ABSENT, Official, compare, examples, html, names, page, terminal
from recipes.engines import verl
from recipes.errors import RecipeError


def test_examples_of_easyr1_are_its_defaults_its_config_and_the_launcher():
    three, seven, gui = examples(["easyr1", "easyr1:7b,easyr1:qwen2_5_vl_3b_android_gui"])
    assert (three.title, seven.title) == ("EasyR1, Qwen2.5-VL-3B, geo3k", "EasyR1, Qwen2.5-VL-7B, geo3k")
    shared = {"trainer.val_freq": 5, "data.rollout_batch_size": 512, "worker.rollout.tensor_parallel_size": 2}
    assert {key: three.values[key] for key in shared} == {key: seven.values[key] for key in shared} == shared
    assert (three.values["trainer.n_gpus_per_node"], seven.values["trainer.n_gpus_per_node"]) == (2, 8)
    assert gui.values["algorithm.kl_coef"] == 0.04
    assert three.values["worker.actor.clip_ratio_high"] == 0.3
    assert "worker.actor.clip_ratio_high" not in three.chosen, "a default of the engine"


# What examples/grpo_trainer/run_qwen3-8b.sh sets, in verl's own keys.
RUN_QWEN3_8B = {
    "algorithm.use_kl_in_reward": False,
    "data.train_batch_size": 1024,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 32,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    "trainer.test_freq": 5,
}


def test_an_example_of_verl_as_a_recipe_is_translated_to_what_its_launcher_sets(tmp_path):
    (example,) = examples(["verl:qwen3_8b_gsm8k"])
    path = tmp_path / "official.yaml"
    path.write_text(dump(nest({key: example.values[key] for key in example.chosen})), encoding="utf-8")
    keys = verl.translate(load(str(path), environ={"WANDB_API_KEY": "x"}, hardware="gpu"))
    assert {name: keys[name] for name in RUN_QWEN3_8B} == RUN_QWEN3_8B
    assert example.outside["data.truncation"][0] == "error"


def test_countdown_has_a_reason_for_every_difference_from_every_example():
    for name in names():
        compare("countdown", examples([name])).require_reasons()
    for wrong in ("trl:toy", "easyr1:qwen3_4b_maths"):
        with pytest.raises(RecipeError, match="unknown official example") as raised:
            examples([wrong])
        assert "easyr1:qwen3_4b_math" in raised.value.fix


RECIPE = """
data:
  train_files: artifacts/data/toy/train.parquet  # data.train_files; ours
  val_files: artifacts/data/toy/test.parquet  # data.val_files; ours
  rollout_batch_size: 64  # data.train_batch_size; small
  seed: 1  # data.seed
  image_key: 'a # b'  # the column
algorithm:
  norm_adv_by_std: false  # algorithm.norm_adv_by_std_in_grpo; Dr.GRPO; as published
worker:
  actor:
    global_batch_size: 64  # one update a step
    model: {model_path: org/model}
  rollout: {n: 16, tensor_parallel_size: 1}
  # alone
trainer:
  logger: [console]  # scripts/launch.sh; reads it
verl:
  data.truncation: left  # keeps the question
"""


@pytest.fixture
def toy(tmp_path):
    """`toy(values, ...)`: a small recipe beside examples of these values, all but data.shuffle chosen."""
    path = tmp_path / "toy.yaml"
    path.write_text(RECIPE, encoding="utf-8")

    def build(*sides):
        every = [Official("Toy <1>", "here", side, frozenset(side) - {"data.shuffle"}) for side in sides]
        return compare(str(path), every)

    return build


def test_rows_have_a_kind_and_the_reason_behind_the_key(toy):
    def rows(*sides):
        return {row.key: row for row in toy(*sides).rows}

    found = rows({
        "data.rollout_batch_size": 64.0, "data.seed": 2, "data.shuffle": True, "worker.rollout.n": True,
        "worker.actor.global_batch_size": 128, "worker.rollout.tensor_parallel_size": 2,
        "worker.rollout.enable_chunked_prefill": False, "data.format_prompt": "a.jinja", "trainer.logger": ["file"],
    })  # fmt: skip
    assert found["data.rollout_batch_size"].status == "aligned"
    assert found["worker.rollout.n"].status == found["data.seed"].status == "task", "true is not 1"
    assert found["worker.rollout.tensor_parallel_size"].status == "hardware"
    assert "data.shuffle" not in found, "no side chose it, and it is the same"
    assert found["algorithm.norm_adv_by_std"].official == (ABSENT,)
    assert found["worker.actor.global_batch_size"].reason == "one update a step"
    assert found["algorithm.norm_adv_by_std"].reason == "Dr.GRPO; as published"
    assert found["trainer.logger"].reason == "scripts/launch.sh; reads it"
    assert found["worker.rollout.enable_chunked_prefill"].reason, "of a default"
    assert found["data.format_prompt"].ours is ABSENT
    assert "finished chat messages" in found["data.format_prompt"].reason
    native = found["verl.data.truncation"]
    assert (native.ours, native.status, native.reason) == ("left", "task", "keeps the question")
    one, other = {"data.rollout_batch_size": 64}, {"data.rollout_batch_size": 512}
    assert rows(one, other)["data.rollout_batch_size"].status == "task"
    assert rows(one, {})["data.rollout_batch_size"].status == "aligned"
    with pytest.raises(RecipeError, match=r"no reason is given for .*data\.seed") as raised:
        toy({"data.seed": 2}).require_reasons()
    assert "toy.yaml" in raised.value.where


def test_three_views_show_every_row(toy):
    table = toy({"data.seed": 2, "data.val_files": "a|b", "data.shuffle": True, "data.image_key": "a # b"})
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal(table))
    views = (page(table), html(table), console.export_text())
    assert "| `data.val_files` | `artifacts/data/toy/test.parquet` | `a\\|b` | ours |" in views[0]
    assert "Toy <1>" not in views[1]
    assert all(row.key in view for row in table.rows for view in views)
