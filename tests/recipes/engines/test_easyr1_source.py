"""EasyR1's source: where it is found, and the patched copy that the trainer reads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from recipes.engines.easyr1 import source
from recipes.errors import RecipeError

HOME = Path(os.environ.get("EASYR1_HOME", "/nowhere"))
needs_easyr1 = pytest.mark.skipif("EASYR1_HOME" not in os.environ, reason="EASYR1_HOME is not set")


@pytest.fixture(autouse=True)
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))


@pytest.fixture
def copy(tmp_path):
    """EasyR1's source, to be changed by a test."""
    shutil.copytree(HOME / "verl", tmp_path / "copy" / "verl", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "u+w", tmp_path / "copy"], check=True)
    return tmp_path / "copy"


@needs_easyr1
@pytest.mark.parametrize("on_cpu", [False, True])
def test_the_copy_is_patched_and_compiles_and_the_source_stays(on_cpu):
    home = source.patched(HOME, on_cpu)
    assert source.digest(HOME) == source.DIGEST
    changed = {
        file.relative_to(home)
        for file in home.rglob("*.py")
        if file.read_text() != (HOME / file.relative_to(home)).read_text()
    }
    assert Path("verl/trainer/ray_trainer.py") in changed
    for file in changed:
        compile((home / file).read_text(), str(file), "exec")
    assert (Path("verl/utils/seqlen_balancing.py") in changed) == on_cpu, "it names the device"
    assert source.patched(HOME, on_cpu) == home, "it is made once"
    assert source.check({"EASYR1_HOME": str(HOME)}, on_cpu) == []


@needs_easyr1
def test_a_patch_that_does_not_apply_names_the_file(copy, monkeypatch, tmp_path):
    file = copy / "verl/trainer/main.py"
    file.write_text(file.read_text().replace("ray.init(", "ray.init (", 1))
    with pytest.raises(RecipeError, match="verl/trainer/main.py") as raised:
        source.patched(copy, on_cpu=False)
    assert raised.value.where == str(copy)
    assert not list((tmp_path / "artifacts/easyr1").iterdir()), "half a copy is none"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecipeError, match="git"):
        source.patched(copy, on_cpu=False)


@pytest.mark.parametrize("owner", ["nobody", "verl", "the package"])
def test_a_home_that_is_not_easyr1_is_named_with_what_to_type(tmp_path, monkeypatch, owner):
    file = {"verl": "verl/trainer/main_ppo.py", "the package": "trainer/ray_trainer.py"}.get(owner, "README.md")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    monkeypatch.setattr(source, "DEFAULT", tmp_path / "none")
    for environ in ({"EASYR1_HOME": str(tmp_path)}, {"EASYR1_HOME": str(tmp_path / "nowhere")}, {}):
        with pytest.raises(RecipeError) as raised:
            source.find(environ)
        assert str(tmp_path) in raised.value.where + raised.value.what
        assert "setup_env.sh easyr1" in raised.value.fix


def test_a_clone_is_whole_or_not_there(tmp_path):
    with pytest.raises(RecipeError, match="git fetch"):
        source.fetch(tmp_path / "easyr1", str(tmp_path / "no-repository"))
    assert not (tmp_path / "easyr1").exists()
