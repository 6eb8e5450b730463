"""Register the engine and the rollout for CPUs with verl.

verl imports this module where it builds a model configuration, because `actor_rollout_ref.model.external_lib` names it.
With `RECIPES_PATCHES=0` the engine is verl's own, with what a machine without a GPU needs.
"""

import copy
import os
from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.rollout.replica import RolloutReplicaRegistry

from recipes.engines import packed_attention
from recipes.engines.verl import upstream

Base: Any = FSDPEngineWithLMHead
if upstream.are_on():
    from recipes.engines.verl.engine import RecipesEngine as Base


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngine(Base):
    """Actor and reference, sharded with FSDP2, which accepts modules on CPUs.

    FSDP1 refuses modules on CPUs under `sync_module_states`. CPU offloading, which verl sets for the reference model,
    needs pinned memory and thereby an accelerator, so it is off here.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # This rank's whole share of the cores: vLLM waits while the rank computes.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // torch.distributed.get_world_size()))

    def _build_fsdp_module(self, module: Any) -> Any:
        configured = self.engine_config
        self.engine_config: Any = copy.copy(configured)
        for name, value in {"strategy": "fsdp2", "forward_only": False, "offload_policy": False}.items():
            object.__setattr__(self.engine_config, name, value)  # verl freezes these fields
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = configured


def load_replica() -> type:
    """The CPU's replica of vLLM, whose import takes seconds that only its own process needs."""
    from recipes.engines.cpu.rollout import CpuReplica

    return CpuReplica


RolloutReplicaRegistry.register("vllm", load_replica)
packed_attention.register()
