"""Every recipe resolves, with and without its tiny model."""

import pytest

from recipes.config import check, load
from recipes.config.resolve import tasks
from recipes.engines.verl import translation as verl


@pytest.mark.parametrize("task", tasks())
def test_a_recipe_resolves_passes_its_checks_and_translates(task):
    for hardware, embedded in (("cpu", "0"), ("cpu", "1"), ("gpu", "0"), ("gpu", "1")):
        few = {"GPUS_PER_NODE": "1"} if embedded == "1" else {}
        recipe = load(task, environ={"EMBEDDED": embedded, **few}, hardware=hardware)
        check(recipe)
        assert recipe.name == task
        assert verl.translate(recipe)["trainer.experiment_name"] == recipe.trainer.experiment_name
