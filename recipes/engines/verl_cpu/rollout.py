"""verl's vLLM rollout on vLLM's CPU build: its two registries, filled with names that are imported when used."""

from __future__ import annotations

from recipes.engines.verl_cpu.settings import PACKAGE


def register() -> None:
    """Answer to `rollout.name=vllm` with the CPU replica (in the driver) and its client (in the trainer's ranks)."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", _load)
    base._ROLLOUT_REGISTRY[("vllm", "async")] = f"{PACKAGE}.weight_sync.WatchfulServerAdapter"


def _load() -> type:
    from recipes.engines.verl_cpu.vllm_server import CpuReplica

    return CpuReplica
