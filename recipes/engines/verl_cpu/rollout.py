"""verl's vLLM rollout on vLLM's CPU build."""

from __future__ import annotations


def register() -> None:
    """Answer to `rollout.name=vllm` with the CPU replica; the module that needs vLLM is imported when it is used."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", _load)


def _load() -> type:
    from recipes.engines.verl_cpu.vllm_server import CpuReplica

    return CpuReplica
