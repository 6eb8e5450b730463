"""The pages state the recipes' own values: keys, and the arithmetic of a step."""

from __future__ import annotations

import re

import pytest

from recipes.config import accounting, load
from recipes.config.schema import Recipe
from recipes.paths import ROOT

ROWS = {"countdown": 4096, "gsm8k": 7473}
VALUE = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)` (?:\*\*)?([\w.-]+)")


@pytest.mark.parametrize("task", ROWS)
def test_values_and_the_arithmetic_of_a_step_are_the_recipes(task):
    page = (ROOT / "docs" / f"OPTIMIZATION_{task.upper()}.md").read_text(encoding="utf-8")
    recipe = load(task, environ={"HARDWARE": "gpu"})
    cells = [line.split("|")[1] for line in page.splitlines() if line[:3] == "| `"]
    stated = [pair for cell in cells for pair in VALUE.findall(cell) if pair[0].split(".")[0] in Recipe.model_fields]
    assert len(stated) >= 9
    for key, value in stated:
        in_recipe = recipe.value(key)
        if key == "worker.rollout.val_override_config":
            in_recipe, value = (in_recipe.temperature, in_recipe.n), "(0.0, 1)"
        assert str(in_recipe).lower() == value or float(in_recipe) == float(value), key

    fixed = load(task, arguments=["worker.actor.dynamic_batching=false"], environ={}, hardware="gpu")
    counted = accounting(fixed, ROWS[task])
    lines = dict(re.findall(r"^\| ([a-z][^|]+) \| (.+) \|$", page, flags=re.M))
    assert int(lines["prompts a step"]) == counted.prompts
    for name, value in {
        "responses a step": counted.responses,
        "updates a step": counted.updates,
        "responses an update and GPU": counted.responses_per_gpu,
        "gradient-accumulation steps, in micro-batches of 4": counted.accumulation_steps,
        "steps an epoch": counted.steps_per_epoch,
    }.items():
        assert int(re.findall(r"= \**([\d,]+)", lines[name])[0].replace(",", "")) == value, name
