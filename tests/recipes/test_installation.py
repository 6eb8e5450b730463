"""Questions of the set-up script: which pins hold, what is half installed; and how a script finds the environment."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from recipes import installation
from recipes.engines.versions import TESTED_RAY
from recipes.errors import reported_errors
from recipes.paths import ROOT


def test_the_constraints_agree_with_the_package():
    text = installation.CONSTRAINTS.read_text()
    pins = dict(pin.split("==") for extra in ("gpu", "cpu") for pin in installation.pins(extra, text))
    for name, version in re.findall(r'"([\w-]+)==([\d.]+)"', (ROOT / "pyproject.toml").read_text()):
        assert pins[name] == version
    assert pins["ray"] == TESTED_RAY


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ((), []),
        (("global.index-url='https://a/simple'", "global.timeout='5'"), ["--index-url=https://a/simple"]),
        ((":env:.find-links='/one /two'", "global.find-links='/three'"), ["--find-links=/one", "--find-links=/two"]),
        (("global.extra-index-url='file:///a\\nfile:///b'",), [f"--extra-index-url=file:///{each}" for each in "ab"]),
        (
            ("global.index-url='a'", "install.find-links='/w'", "install.no-index='true'"),
            ["--no-index", "--find-links=/w"],
        ),
    ],
)
def test_uv_is_given_the_places_that_pip_is_configured_with(lines, options):
    assert installation.sources("\n".join(lines)) == options


@pytest.fixture
def site(tmp_path):
    """The packages' folder of an environment with two small ones, installed as pip does."""
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("first_one", "second"):
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text("value = 1\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}.py,sha256=x,10\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda site: (site / "second-1.0.dist-info" / "RECORD").unlink(),
        lambda site: (site / "second.py").unlink(),
        lambda site: (site / "second.py").write_text("val"),
    ],
    ids=["no record", "file missing", "file cut short"],
)
def test_what_is_half_installed_is_forgotten(site, tmp_path, damage):
    pins = ["first-one==1.0", "second==1.0"]
    assert installation.repair(tmp_path) == installation.wrong(tmp_path, pins) == []
    damage(site)
    (site / "~econd").mkdir()
    assert installation.wrong(tmp_path, pins) == ["second==1.0 (found nothing whole)"]
    assert installation.repair(tmp_path) == ["second-1.0.dist-info"]
    assert installation.wrong(tmp_path, pins) == ["second==1.0 (found nothing whole)"]
    assert not (site / "~econd").exists(), "what pip was removing"


def test_what_debians_pip_has_built_is_whole_while_its_files_are_there(site, tmp_path):
    (site / "second-1.0.dist-info" / "RECORD").unlink()
    (site / "second-1.0.dist-info" / "METADATA").rename(site / "second-1.0.dist-info" / "PKG-INFO")
    legacy = (site / "second-1.0.dist-info").rename(site / "second-1.0.egg-info")
    (legacy / "installed-files.txt").write_text("../second.py\nPKG-INFO\n../__pycache__/second.cpython-311.pyc\n")
    assert installation.wrong(tmp_path, ["second==1.0"]) == []
    (site / "second.py").unlink()
    assert installation.wrong(tmp_path, ["second==1.0"]) == ["second==1.0 (found nothing whole)"]


SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
from recipes.installation import ensure
ensure()
import typer
print(typer.NAME, sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("environment", "is_whole", "has_typer"),
    [(".venv", True, True), (".venv.cpu", True, False), (".venv", False, False), (".venv", False, True)],
)
def test_a_script_goes_on_with_the_whole_environment_or_names_the_set_up(tmp_path, environment, is_whole, has_typer):
    """From a Python without the packages, and from one that has the first of them alone."""
    variables = {"PYTHONPATH": str(tmp_path / "other")} if has_typer else {}
    (tmp_path / "recipes").mkdir()
    for name in ("__init__.py", "installation.py", "paths.py", "errors.py", "torchvision_operators.py"):
        shutil.copy(ROOT / "recipes" / name, tmp_path / "recipes" / name)
    (tmp_path / "script.py").write_text(SCRIPT.format(root=str(tmp_path)))
    base = os.path.realpath(sys.executable)
    packages, other = tmp_path / environment / "packages", tmp_path / "other"
    for folder, names in ((packages, installation.NEEDED), (other, ["typer"])):
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(f"NAME = {environment!r}\n")
    python = tmp_path / environment / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {base} "$@"\n')
    python.chmod(0o755)
    if is_whole:
        (tmp_path / environment / ".complete").write_text("x")
    command = [base, "-S", str(tmp_path / "script.py"), "a b"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"], **variables})
    if is_whole:
        assert (done.returncode, done.stdout) == (0, f"{environment} ['a b']\n"), done.stderr
    else:
        assert done.returncode == 2
        assert "fix:   bash scripts/setup_env.sh" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("slow", "words"),
    [("slow", ["-m", "recipes.installation", "start", "slow"]), ("omegaconf", ["-c", "import recipes.commands"])],
)
def test_ctrl_c_ends_a_command_with_one_line_also_while_it_imports(tmp_path, slow, words):
    (tmp_path / f"{slow}.py").write_text("raise KeyboardInterrupt")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, *words], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "stopped\n")  # 130 in a shell
    with pytest.raises(SystemExit, match="130"), reported_errors():
        raise KeyboardInterrupt
