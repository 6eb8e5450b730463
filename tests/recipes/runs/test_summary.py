"""What to type after a run: the commands repeat what the user typed."""

import shlex

from recipes.config import load
from recipes.engines.checkpoints import Checkpoint
from recipes.paths import ROOT
from recipes.runs.summary import next_commands


def test_more_steps_repeat_a_recipe_by_path_its_variables_and_arguments(tmp_path, monkeypatch):
    own = tmp_path / "my recipe.yaml"
    own.write_text((ROOT / "configs" / "countdown.yaml").read_text())
    environ = {"ENGINE": "easyr1", "EASYR1_HOME": "/opt/my easyr1", "MAX_STEPS": "1", "HOME": "/root"}
    monkeypatch.delenv("RECIPES_LAUNCHER", raising=False)
    recipe, typed = (
        load(str(own), environ={}, hardware="cpu"),
        ["--lr", "1e-6", "trainer.max_steps=1", "worker.rollout.n=8"],
    )
    commands = next_commands(recipe, str(own), Checkpoint(100, ROOT, ROOT), 1, environ, typed)
    words = shlex.split(dict(commands)["more steps"])
    assert set(words[:3]) == {"ENGINE=easyr1", "EASYR1_HOME=/opt/my easyr1", "MAX_STEPS=200"}
    assert words[3:] == ["bash", words[4], str(own), "--lr", "1e-6", "worker.rollout.n=8"]
    assert words[4].endswith("scripts/launch.sh")
