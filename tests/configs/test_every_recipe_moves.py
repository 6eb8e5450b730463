"""A run's folders follow its name: a second experiment must never touch the first one's checkpoints."""

from __future__ import annotations

import pytest

from recipes.config import load, tasks


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("task", tasks())
def test_another_name_means_other_folders(task, hardware):
    recipe = load(task, environ={"EXPERIMENT_NAME": "another_one"}, hardware=hardware)
    folders = (recipe.trainer.save_checkpoint_path, recipe.trainer.rollout_data_dir, recipe.trainer.validation_data_dir)
    assert all("another_one" in folder for folder in folders), folders
