"""The time to go is estimated at the start where a run of the same sizes has measured its steps."""

from __future__ import annotations

import json

import pytest

from recipes.config import to_yaml
from recipes.paths import run_dir
from recipes.preflight import duration, resume


@pytest.mark.parametrize(("change", "known"), [("worker.actor.optim.lr=1e-6", True), ("worker.rollout.n=4", False)])
def test_an_earlier_run_of_the_same_sizes_tells_the_time(make, change, known):
    recipe = make()
    assert "known after the first step" in duration.estimate(recipe, 20)
    folder = run_dir("earlier")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(make(change)))
    steps = [{"step": 0, "data": {"timing_s/testing": 50}}, {"step": 1, "data": {"timing_s/step": 30.0}}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    expected = "time: about 10 min for 20 steps, at 30 s a step as measured in the run earlier"
    assert (duration.estimate(recipe, 20) == expected) is known


def test_the_run_itself_comes_first_and_its_saved_steps_are_done(make):
    recipe = make()
    (resume.folder(recipe) / "global_step_2" / "actor").mkdir(parents=True)
    (resume.folder(recipe) / "latest_checkpointed_iteration.txt").write_text("2")
    for name, seconds in (("countdown", 2.0), ("later", 9.0)):
        folder = run_dir(name)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(to_yaml(recipe))
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"timing_s/step": seconds}}) + "\n")
    assert duration.estimate(recipe, 6) == "time: about 8 s for 4 steps, at 2 s a step as measured in the run countdown"
