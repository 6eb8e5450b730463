"""A run goes on from its own checkpoints, and touches nobody else's."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.preflight import checkpoints


def save(recipe, step):
    actor = checkpoints.folder(recipe) / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    (checkpoints.folder(recipe) / "latest_checkpointed_iteration.txt").write_text(str(step))
    return actor.parent


def test_an_empty_folder_is_fine(make):
    assert checkpoints.inspect(make()) == []


def test_the_same_recipe_resumes_and_says_where(make):
    recipe = make()
    checkpoints.record(recipe)
    save(recipe, 2)
    (remark,) = checkpoints.inspect(make("trainer.max_steps=8", "worker.actor.optim.lr=1e-5"))
    assert remark.startswith("resuming from step 2")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("worker.actor.model.model_path=Qwen/Qwen3-4B", "model "),
        ("worker.actor.model.lora.rank=8", "lora_rank 0 there, 8 here"),
        ("algorithm.preset=dapo", "algorithm None there, 'dapo' here"),
        ("algorithm.adv_estimator=rloo", "adv_estimator 'grpo' there, 'rloo' here"),
        ("trainer.n_gpus_per_node=2", "ranks 1 there, 2 here"),
        ("data.train_files=other.parquet", "train_files"),
        ("name=other_task", "recipe 'countdown' there, 'other_task' here"),
    ],
)
def test_another_recipes_checkpoints_are_refused(make, change, named):
    recipe = make()
    checkpoints.record(recipe)
    save(recipe, 2)
    with pytest.raises(RecipeError, match="checkpoints of another recipe") as caught:
        checkpoints.inspect(make(change))
    assert named in caught.value.what
    assert "EXPERIMENT_NAME" in caught.value.fix


def test_checkpoints_of_unknown_origin_are_refused(make):
    save(make(), 2)
    with pytest.raises(RecipeError, match="another program wrote"):
        checkpoints.inspect(make())


def test_a_damaged_record_is_refused(make):
    recipe = make()
    save(recipe, 2)
    (checkpoints.folder(recipe) / checkpoints.FINGERPRINT).write_text("{")
    with pytest.raises(RecipeError, match="cannot be read"):
        checkpoints.inspect(recipe)


def test_a_run_without_resume_does_not_write_over_checkpoints(make):
    recipe = make()
    checkpoints.record(recipe)
    save(recipe, 2)
    with pytest.raises(RecipeError, match="would write over them"):
        checkpoints.inspect(make("trainer.find_last_checkpoint=false"))


def test_a_start_from_a_named_checkpoint(make, tmp_path):
    recipe = make()
    checkpoints.record(recipe)
    start = save(recipe, 2)
    (remark,) = checkpoints.inspect(make(f"trainer.load_checkpoint_path={start}"))
    assert str(start) in remark
    with pytest.raises(RecipeError, match="is not a checkpoint"):
        checkpoints.inspect(make(f"trainer.load_checkpoint_path={tmp_path}"))


def test_the_record_of_a_folder_with_checkpoints_stays(make):
    recipe = make()
    checkpoints.record(recipe)
    save(recipe, 2)
    checkpoints.record(make("worker.actor.model.lora.rank=8"))
    assert json.loads((checkpoints.folder(recipe) / checkpoints.FINGERPRINT).read_text())["lora_rank"] == 0


def test_the_record_of_an_empty_folder_is_renewed(make):
    checkpoints.record(make())
    recipe = make("worker.actor.model.lora.rank=8")
    checkpoints.record(recipe)
    assert json.loads((checkpoints.folder(recipe) / checkpoints.FINGERPRINT).read_text())["lora_rank"] == 8
