"""What the set-up script asks: which pins hold, and what is half installed."""

from __future__ import annotations

import re

import pytest

from recipes import installation
from recipes.paths import ROOT

TEXT = """\
# a comment
torch==2.13.0        # cpu
verl==0.9.1
triton==3.9.0        # unused: 1 GB

"""


def test_pins_by_extra():
    assert installation.pins("cpu", TEXT) == ["torch==2.13.0", "verl==0.9.1"]
    assert installation.pins("gpu", TEXT) == ["verl==0.9.1"]


def test_every_line_of_the_constraints_file_is_a_pin_with_a_known_mark():
    lines = [line for line in installation.CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 150
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.]+(\s+# (cpu|gpu|unused: .+))?", line), line


def test_the_extras_agree_with_the_pins():
    text = installation.CONSTRAINTS.read_text()
    pins = dict(pin.split("==") for extra in ("gpu", "cpu") for pin in installation.pins(extra, text))
    for name, version in re.findall(r'"([\w-]+)==([\d.]+)"', (ROOT / "setup.py").read_text()):
        assert pins[name] == version


@pytest.fixture
def venv(tmp_path):
    """An environment with two small packages, installed as pip does."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("first_one", "second"):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text("value = 1\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}.py,sha256=x,10\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    return tmp_path, site


def test_a_whole_environment_is_left_alone(venv):
    folder, _ = venv
    assert installation.repair(folder) == []
    assert installation.wrong(folder, ["first-one==1.0", "second==1.0"]) == []


@pytest.mark.parametrize("damage", ["no record", "file missing", "file cut short"])
def test_what_is_half_installed_is_forgotten(venv, damage):
    folder, site = venv
    if damage == "no record":
        (site / "second-1.0.dist-info" / "RECORD").unlink()
    elif damage == "file missing":
        (site / "second.py").unlink()
    else:
        (site / "second.py").write_text("val")
    assert installation.wrong(folder, ["second==1.0"]) == ["second==1.0 (found 1.0)"]
    assert installation.repair(folder) == ["second-1.0.dist-info"]
    assert installation.wrong(folder, ["first_one==1.0", "second==1.0"]) == ["second==1.0 (found nothing)"]


def test_what_pip_was_removing_is_cleared_away(venv):
    folder, site = venv
    (site / "~econd").mkdir()
    installation.repair(folder)
    assert not (site / "~econd").exists()


def test_another_version_is_wrong_and_a_build_tag_is_not(venv):
    folder, site = venv
    assert installation.wrong(folder, ["second==2.0"]) == ["second==2.0 (found 1.0)"]
    metadata = site / "second-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0\n", "1.0+cpu\n"))
    assert installation.wrong(folder, ["second==1.0"]) == []
