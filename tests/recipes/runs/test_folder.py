"""The files of a run: nothing is overwritten in silence, and only one launcher has them."""

import subprocess
import sys

import pytest

from recipes.errors import RecipeError
from recipes.runs import folder as runs
from recipes.runs.metrics import read_history

LINES = ['{"step": 1, "data": {}}\n', '{"step": 2, "data": {}}\n', '{"step": 3']


@pytest.fixture(autouse=True)
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))


def test_a_second_launcher_is_refused_and_told_who_has_the_run_or_the_checkpoints(tmp_path):
    code = "from recipes.runs import folder as runs\nfrom pathlib import Path\n"
    code += f"with runs.lock_run('exp', Path({str(tmp_path)!r})): print('has it', flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
    try:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(RecipeError) as error, runs.lock_run("exp"):
            pass
        assert str(other.pid) in error.value.what
        with runs.lock_run("another"):
            pass
        with pytest.raises(RecipeError, match="another CHECKPOINT_DIR"), runs.lock_run("another", tmp_path):
            pass
    finally:
        other.communicate("\n")
    with runs.lock_run("exp"):
        pass


def test_attempts_keep_differing_configurations_append_to_the_log_and_adopt_what_a_killed_launcher_left():
    with runs.lock_run("exp") as files:
        files.log.write_text("first attempt\n")
        for text in ("lr: 1\n", "lr: 1\n", "lr: 2\n", "lr: 3\n"):
            offset = runs.begin_attempt(files, text, ["python"], {})
        with files.log.open("a") as log:
            log.write("second\n")
        (files.folder / ".attempt-1.jsonl").write_text(LINES[0])
    assert files.config.read_text() == "lr: 3\n"
    assert [(files.folder / f"config.{number}.yaml").read_text() for number in (1, 2)] == ["lr: 1\n", "lr: 2\n"]
    assert files.log.read_text().startswith("first attempt\n==== attempt of ")
    assert files.log.read_bytes()[offset:] == b"second\n"
    with runs.lock_run("exp") as files:
        (files.folder / "config.1.yaml").unlink()
        runs.begin_attempt(files, "lr: 4\n", ["python"], {})
        assert (files.folder / "config.2.yaml").read_text() == "lr: 2\n", "kept, though another was removed"
        assert (files.folder / "config.3.yaml").read_text() == "lr: 3\n"
        assert [step.step for step in read_history(files.metrics)] == [1]
        files.attempt.write_text("".join(LINES))
    assert files.metrics.read_text() == "".join(LINES[:2]), "each whole line once"
    assert not files.attempts
