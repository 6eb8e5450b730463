"""The files of a run: nothing is overwritten in silence, and only one launcher has them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from recipes.errors import RecipeError
from recipes.monitor import rundir
from recipes.monitor.metrics import read_history


@pytest.fixture(autouse=True)
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))


def test_a_second_launcher_is_refused_and_told_who_has_the_run():
    code = "from recipes.monitor import rundir\nwith rundir.opened('exp'): print('has it', flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
    try:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(RecipeError, match=f"going on already, in process {other.pid}"), rundir.opened("exp"):
            pass
        with rundir.opened("another"):
            pass
    finally:
        other.communicate("\n")
    with rundir.opened("exp"):
        pass


def test_a_differing_configuration_is_kept_under_a_number():
    with rundir.opened("exp") as files:
        for text in ("lr: 1\n", "lr: 1\n", "lr: 2\n", "lr: 3\n"):
            rundir.write(files, text, ["python"], {})
    assert files.config.read_text() == "lr: 3\n"
    assert [(files.folder / f"config.{number}.yaml").read_text() for number in (1, 2)] == ["lr: 1\n", "lr: 2\n"]


def test_the_log_is_appended_to_and_each_attempt_begins_at_its_offset():
    with rundir.opened("exp") as files:
        files.log.write_text("first attempt\n")
        offset = rundir.write(files, "", ["python"], {})
        with files.log.open("a") as log:
            log.write("second\n")
    assert files.log.read_text().startswith("first attempt\n==== attempt of ")
    assert files.log.read_bytes()[offset:] == b"second\n"


def test_metrics_of_a_killed_launcher_are_adopted():
    with rundir.opened("exp") as files:
        (files.folder / ".attempt-1.jsonl").write_text(json.dumps({"step": 1, "data": {}}) + "\n")
    with rundir.opened("exp") as files:
        assert [step.step for step in read_history(files.metrics)] == [1]
        files.attempt.write_text(json.dumps({"step": 2, "data": {}}) + "\n")
    assert [step.step for step in read_history(files.metrics)] == [1, 2]
    assert not list(files.folder.glob(".attempt-*"))


def test_the_script_runs_by_itself(tmp_path):
    arguments = ["a b", "it's", "$HOME", "x={y:[1,2]}"]
    code = "import os, sys; print(os.environ['VALUE'], sys.argv[1:])"
    path = tmp_path / "command.sh"
    path.write_text(rundir.script([sys.executable, "-c", code, *arguments], {"VALUE": "two words"}))
    said = subprocess.run(["bash", str(path)], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"two words {arguments}"
