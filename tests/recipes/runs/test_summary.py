"""What to type after a run: the commands repeat what the user typed."""

import errno
import io
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from recipes.config import load, to_yaml
from recipes.engines.checkpoints import Checkpoint
from recipes.errors import RecipeError
from recipes.evaluation.cache import ResponseFile
from recipes.files import whole_folder, write_json
from recipes.paths import ROOT
from recipes.runs import summary
from recipes.runs.folder import RunFiles
from recipes.runs.summary import failure, next_commands
from recipes.runs.supervise import Outcome
from tests.mistakes import mistake


def test_a_full_disk_is_named_where_the_log_could_not_take_the_error(tmp_path, monkeypatch):
    assert "error: the trainer ended with exit code 1" in failure(Outcome(1), tmp_path / "train.log", None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    lines = failure(Outcome(1), tmp_path / "train.log", None)
    assert any(line.startswith("error: the disk of ") for line in lines)
    assert any(line.startswith("  fix: ") and "make room" in line for line in lines)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_that_a_full_disk_cannot_take_leaves_nothing_behind(tmp_path, monkeypatch, number):
    def full(*_):
        raise OSError(number, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert "make room" in mistake(lambda: write_json(tmp_path / "report.json", {"a": "b"})).fix
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (Path("/proc/report.html"), tmp_path, tmp_path / "file" / "report.html"):
        fix = mistake(lambda place=place: write_json(place, {}), "cannot be written").fix
        assert fix == "make that a folder that you may write to"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    with (
        pytest.raises(RecipeError, match="or set --out to another"),
        whole_folder(tmp_path / "file" / "report", "--out"),
    ):
        pass
    answers = ResponseFile(tmp_path / "file" / "answers.jsonl")
    with pytest.raises(RecipeError, match="or set ARTIFACTS_DIR to another"), answers.for_writing():
        pass


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


def test_where_nothing_is_left_the_steps_are_those_of_this_start(tmp_path, monkeypatch):
    """The run was begun with 100 steps and stopped at 20, which are all that this start asks for."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    begun, now = (
        load("countdown", arguments=[f"trainer.max_steps={steps}"], environ={}, hardware="cpu") for steps in (100, 20)
    )
    files, shown = RunFiles(tmp_path / "runs" / "countdown"), io.StringIO()
    files.folder.mkdir(parents=True)
    files.config.write_text(to_yaml(begun))
    files.metrics.write_text('{"step": 20, "data": {"critic/score/mean": 0.5}}\n')
    monkeypatch.setattr(summary, "last_checkpoint", lambda place: Checkpoint(20, tmp_path, None))
    assert summary.close(now, files, 20, None, Console(file=shown, width=300), "countdown", []) == 0
    assert "20 of 20" in shown.getvalue()
    assert "MAX_STEPS=40 " in shown.getvalue()
