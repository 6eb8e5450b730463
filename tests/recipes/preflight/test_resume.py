"""A run goes on from its own checkpoints, and leaves others alone."""

from __future__ import annotations

import pytest

from recipes.config import to_yaml
from recipes.errors import RecipeError
from recipes.paths import run_dir
from recipes.preflight import resume


def save(recipe, step=2):
    actor = resume.folder(recipe) / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    (resume.folder(recipe) / "latest_checkpointed_iteration.txt").write_text(str(step))
    return actor.parent


def attempt(recipe):
    """What an attempt leaves: the record of its checkpoints, its resolved settings, and a checkpoint."""
    resume.record(recipe)
    run = run_dir(recipe.trainer.experiment_name)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(recipe))
    return save(recipe)


def test_the_same_recipe_resumes_and_settings_that_take_effect_are_listed(make):
    assert resume.check_resume(make()) == []
    attempt(make())
    first, *changes = resume.check_resume(make("trainer.max_steps=8", "algorithm.kl_coef=0.5", "worker.rollout.n=4"))
    assert first.startswith("resuming from step 2")
    assert changes == [
        "changed since the last attempt: algorithm.kl_coef: 0.01 -> 0.5",
        "changed since the last attempt: worker.rollout.n: 8 -> 4",
        "changed since the last attempt: trainer.max_steps: 4 -> 8",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("worker.actor.model.model_path=Qwen/Qwen3-4B", "another recipe: model "),
        ("trainer.n_gpus_per_node=2", "another recipe: ranks 1 there, 2 here"),
        ("name=other_task", "another recipe: recipe 'countdown' there, 'other_task' here"),
        ("trainer.find_last_checkpoint=false", "would write over them"),
    ],
)
def test_checkpoints_that_this_run_must_not_touch(make, change, message):
    attempt(make())
    with pytest.raises(RecipeError, match=message) as caught:
        resume.check_resume(make(change))
    assert "EXPERIMENT_NAME" in caught.value.fix


@pytest.mark.parametrize("change", ["worker.actor.optim.lr=1e-6", "data.seed=7"])
def test_settings_that_the_checkpoint_decides_are_refused_with_the_way_out(make, change):
    attempt(make())
    with pytest.raises(RecipeError, match="a resumed run cannot change this: ") as caught:
        resume.check_resume(make(change))
    assert change.partition("=")[0] in caught.value.what
    assert "EXPERIMENT_NAME=another MODEL_PATH=" in caught.value.fix
    resume.check_resume(make(change, "trainer.experiment_name=another"))


def test_a_run_unlike_the_last_one_gets_a_name_of_its_own_unless_the_user_gave_one(make):
    log = []
    first = resume.with_own_name(make(), log.append)
    assert not log
    resume.record(first)
    save(first)
    other = resume.with_own_name(make("algorithm.preset=dapo", "worker.actor.model.model_path=org/Big-7B"), log.append)
    name = "countdown-Big-7B-dapo"
    assert other.trainer.experiment_name == resume.folder(other).name == name
    assert other.trainer.rollout_data_dir == str(run_dir(name) / "rollouts")
    assert resume.check_resume(other) == []
    assert name in log[0]
    for changes in (["trainer.n_gpus_per_node=2"], ["algorithm.preset=dapo", "trainer.experiment_name=countdown"]):
        kept = resume.with_own_name(make(*changes), log.append)
        assert kept.trainer.experiment_name == "countdown"
        with pytest.raises(RecipeError, match="checkpoints of another recipe"):
            resume.check_resume(kept)
