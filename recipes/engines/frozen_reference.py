"""The reference on GPUs without a buffer for gradients, and in the number format that it computes in.

verl wraps a model that is only read as it wraps one that is trained, with its weights in CPU memory:
verl/workers/engine/fsdp/transformer_impl.py:433 (`CPUOffload(offload_params=True)`). FSDP pins them before the first
pass, and then a buffer of the same size for gradients: torch/distributed/fsdp/_flat_param.py:1263
(`flat_param._cpu_grad = torch.zeros_like(`). With the Qwen3-4B shape in float32 the two took 27 s of the first step.

Here the weights are rounded once to the format that each pass would round them to, they are pinned while vLLM starts,
and there is no buffer for gradients. Every pass computes the same numbers as before.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._flat_param import FlatParamHandle


class FrozenHandle(FlatParamHandle):
    """FSDP's handle of one unit's weights, which nobody trains; `freeze` makes it of an ordinary one."""

    pinned: Future[torch.Tensor]
    """This rank's share of the weights, in pinned memory."""

    @property
    def _uses_param_mixed_precision(self) -> bool:
        """Copy to the GPU as weights of another format are copied: only that way keeps a copy until its last use
        (`_free_low_precision_sharded_param` records the stream)."""
        return True

    def init_flat_param_attributes(self) -> None:
        """Prepare the unit as one that rests on the GPU; then let it rest in pinned memory."""
        self._offload_params = False
        try:
            super().init_flat_param_attributes()
        finally:
            self._offload_params = True
        self.flat_param._local_shard = self.pinned.result()
        self.flat_param._cpu_grad = torch.empty(0)  # FSDP makes one before each pass where it is None

    def _check_on_compute_device(self, tensor: torch.Tensor) -> None:
        if self._offload_params:
            super()._check_on_compute_device(tensor)


def cast(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Round the weights to `dtype`, in place; buffers, such as the frequencies of positions, stay as they are."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return module


def freeze(module: FullyShardedDataParallel) -> None:
    """Pin the weights in a thread, and make no buffers for gradients; before the first pass."""
    handles = [each._handle for each in FullyShardedDataParallel.fsdp_modules(module) if each._handle is not None]
    for handle in handles:
        handle.__class__ = FrozenHandle
        handle.pinned = Future()
    pool = ThreadPoolExecutor(1, thread_name_prefix="pin")
    pool.submit(_pin, handles)
    pool.shutdown(wait=False)


def _pin(handles: Iterable[FrozenHandle]) -> None:
    """Give each handle its pinned weights. An error is the result, which the first pass raises."""
    begin, size = time.monotonic(), 0
    for handle in handles:
        try:
            if handle.device.type == "cuda":
                torch.cuda.set_device(handle.device)  # threads begin with the first GPU
            share = handle.flat_param.data.pin_memory()
        except RuntimeError as error:
            handle.pinned.set_exception(error)
        else:
            handle.pinned.set_result(share)
            size += share.nbytes
    seconds = time.monotonic() - begin
    print(f"pinned {size / 1e9:.1f} GB of the reference in {seconds:.1f} s", file=sys.stderr, flush=True)


@functools.cache
def register() -> None:
    """Build verl's references so."""
    from verl.utils.torch_dtypes import PrecisionType
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    original = FSDPEngine._build_fsdp_module

    @functools.wraps(original)
    def build(self: Any, module: torch.nn.Module) -> torch.nn.Module:
        if not self.engine_config.forward_only:
            return original(self, module)
        computes_in = (self.engine_config.mixed_precision or {}).get("param_dtype", "bf16")
        wrapped = original(self, cast(module, PrecisionType.to_dtype(computes_in)))
        if isinstance(wrapped, FullyShardedDataParallel):
            freeze(wrapped)
        return wrapped

    FSDPEngine._build_fsdp_module = build
