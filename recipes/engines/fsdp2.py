"""What verl's FSDP2 needs for adapters and for the fused head: when FSDP2 looks at the weights, and what it gathers.

**Adapters.** FSDP2 decides at the first pass in which format gradients are summed and stored, from the weights that are
trainable then: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:313 (`self._init_mp_dtypes()`). With adapters
verl's reference is the same model without them, and peft freezes adapters while they are switched off. Where the pass
for old log-probabilities is left out, the reference's pass is the first. FSDP2 then saw nothing to train, and the first
backward pass failed: gradients in bf16, weights in float32. Here FSDP2 looks before the adapters are switched off.

**The fused head.** verl's fused kernels read the weight of the head without calling the head:
verl/models/transformers/dense_common.py:191 (`self.lm_head.weight`). verl makes a head of its own weights, which larger
models have, a unit of its own (verl/utils/fsdp_utils.py:559 (`{"embed_tokens", "lm_head"}`)), which FSDP2 gathers only
for its own call: the kernels would get a sharded DTensor in float32. Here the head belongs to the root, which is
gathered for the whole pass as it is under FSDP1 (verl-project/verl#7427 proposes the same).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def with_adapters_seen(disable: Callable[[Any], AbstractContextManager[None]]) -> Callable[[Any], Any]:
    """Return verl's switch of adapters, which lets FSDP2 look at them first.

    Args:
        disable: `FSDPEngine.disable_adapter(engine)`, a context in which the adapters are off and frozen.
    """

    @functools.wraps(disable)
    def without_adapters(engine: Any) -> AbstractContextManager[None]:
        from torch.distributed.fsdp import FSDPModule

        if isinstance(engine.module, FSDPModule):
            engine.module._get_fsdp_state()._lazy_init()  # does nothing from the second time on
        return disable(engine)

    return without_adapters


def head_in_root(select: Callable[[Any, Any], list[Any]]) -> Callable[[Any, Any], list[Any]]:
    """Return verl's choice of FSDP2's units, without the head where fused kernels read its weight.

    Args:
        select: verl's `_select_fsdp2_wrap_targets(model, names of layer classes)`.
    """

    @functools.wraps(select)
    def targets(model: Any, layers: Any) -> list[Any]:
        units = select(model, layers)
        if not hasattr(model, "_verl_fused_kernels_backend"):  # verl sets it where it gives the model the fused head
            return units
        head = model.get_output_embeddings()
        return [unit for unit in units if unit is not head]

    return targets


@functools.cache
def register() -> None:
    """Put both in the place of verl's own, in each process that holds a model."""
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    fsdp_utils._select_fsdp2_wrap_targets = head_in_root(fsdp_utils._select_fsdp2_wrap_targets)
    FSDPEngine.disable_adapter = with_adapters_seen(FSDPEngine.disable_adapter)
