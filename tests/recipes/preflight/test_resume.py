"""A run goes on from its own checkpoints, and touches nobody else's."""

from __future__ import annotations

import json

import pytest

from recipes.config import to_yaml
from recipes.errors import RecipeError
from recipes.paths import run_dir
from recipes.preflight import resume


def save(recipe, step):
    actor = resume.folder(recipe) / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    (resume.folder(recipe) / "latest_checkpointed_iteration.txt").write_text(str(step))
    return actor.parent


def test_an_empty_folder_is_fine(make):
    assert resume.check_resume(make()) == []


def test_the_same_recipe_resumes_and_says_where(make):
    recipe = make()
    resume.record(recipe)
    save(recipe, 2)
    (remark,) = resume.check_resume(make("trainer.max_steps=8"))
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
    resume.record(recipe)
    save(recipe, 2)
    with pytest.raises(RecipeError, match="checkpoints of another recipe") as caught:
        resume.check_resume(make(change))
    assert named in caught.value.what
    assert "EXPERIMENT_NAME" in caught.value.fix


def test_checkpoints_of_unknown_origin_are_refused(make):
    save(make(), 2)
    with pytest.raises(RecipeError, match="another program wrote"):
        resume.check_resume(make())


def test_a_damaged_record_is_refused(make):
    recipe = make()
    save(recipe, 2)
    (resume.folder(recipe) / resume.FINGERPRINT).write_text("{")
    with pytest.raises(RecipeError, match="cannot be read"):
        resume.check_resume(recipe)


def test_a_run_without_resume_does_not_write_over_checkpoints(make):
    recipe = make()
    resume.record(recipe)
    save(recipe, 2)
    with pytest.raises(RecipeError, match="would write over them"):
        resume.check_resume(make("trainer.find_last_checkpoint=false"))


def test_a_start_from_a_named_checkpoint(make, tmp_path):
    recipe = make()
    resume.record(recipe)
    start = save(recipe, 2)
    (remark,) = resume.check_resume(make(f"trainer.load_checkpoint_path={start}"))
    assert str(start) in remark
    with pytest.raises(RecipeError, match="is not a checkpoint"):
        resume.check_resume(make(f"trainer.load_checkpoint_path={tmp_path}"))


def test_the_record_of_a_folder_with_checkpoints_stays(make):
    recipe = make()
    resume.record(recipe)
    save(recipe, 2)
    resume.record(make("worker.actor.model.lora.rank=8"))
    assert json.loads((resume.folder(recipe) / resume.FINGERPRINT).read_text())["lora_rank"] == 0


def test_the_record_of_an_empty_folder_is_renewed(make):
    resume.record(make())
    recipe = make("worker.actor.model.lora.rank=8")
    resume.record(recipe)
    assert json.loads((resume.folder(recipe) / resume.FINGERPRINT).read_text())["lora_rank"] == 8


def attempt(recipe, step=2):
    """What an attempt leaves: its resolved settings and a checkpoint."""
    resume.record(recipe)
    run = run_dir(recipe.trainer.experiment_name)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(recipe))
    return save(recipe, step)


def test_settings_that_take_effect_are_listed_old_and_new(make):
    attempt(make())
    first, *changes = resume.check_resume(make("trainer.max_steps=8", "algorithm.kl_coef=0.5", "worker.rollout.n=4"))
    assert first.startswith("resuming from step 2")
    assert changes == [
        "changed since the last attempt: algorithm.kl_coef: 0.01 -> 0.5",
        "changed since the last attempt: worker.rollout.n: 8 -> 4",
        "changed since the last attempt: trainer.max_steps: 4 -> 8",
    ]


@pytest.mark.parametrize("change", ["worker.actor.optim.lr=1e-6", "worker.actor.optim.weight_decay=0.1", "data.seed=7"])
def test_settings_that_the_checkpoint_decides_are_refused_with_the_way_out(make, change):
    attempt(make())
    with pytest.raises(RecipeError, match="a resumed run cannot change this: ") as caught:
        resume.check_resume(make(change))
    assert change.partition("=")[0] in caught.value.what
    assert "EXPERIMENT_NAME=another MODEL_PATH=" in caught.value.fix
    resume.check_resume(make(change, "trainer.experiment_name=another"))


def test_a_checkpoint_of_another_run_brings_its_settings_along(make):
    start = attempt(make())
    other = ("trainer.experiment_name=another", f"trainer.load_checkpoint_path={start}")
    assert resume.check_resume(make(*other))[0] == f"going on from {start}"
    with pytest.raises(RecipeError, match="worker.actor.optim.lr was 0.0001, now 1e-06"):
        resume.check_resume(make(*other, "worker.actor.optim.lr=1e-6"))
    with pytest.raises(RecipeError, match="is not a checkpoint") as caught:
        resume.check_resume(make(f"trainer.load_checkpoint_path={start.with_name('global_step_9')}"))
    assert "global_step_2" in caught.value.fix


def test_a_run_unlike_the_last_one_gets_a_name_of_its_own_unless_the_user_gave_one(make):
    said = []
    first = resume.with_own_name(make(), said.append)
    assert not said
    resume.record(first)
    save(first, 2)
    other = resume.with_own_name(make("algorithm.preset=dapo", "worker.actor.model.model_path=org/Big-7B"), said.append)
    assert other.trainer.experiment_name == "countdown-Big-7B-dapo"
    assert resume.folder(other).name == "countdown-Big-7B-dapo"
    assert other.trainer.rollout_data_dir == str(run_dir("countdown-Big-7B-dapo") / "rollouts")
    assert resume.check_resume(other) == []
    assert "countdown-Big-7B-dapo" in said[0]
    for changes in (["trainer.n_gpus_per_node=2"], ["algorithm.preset=dapo", "trainer.experiment_name=countdown"]):
        kept = resume.with_own_name(make(*changes), said.append)
        assert kept.trainer.experiment_name == "countdown"
        with pytest.raises(RecipeError, match="checkpoints of another recipe"):
            resume.check_resume(kept)
