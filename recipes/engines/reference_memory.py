"""The memory of the reference model on GPUs: no space for gradients, and weights in the format of the computation.

verl wraps the reference model as if it were trained, with its weights in CPU memory:
verl/workers/engine/fsdp/transformer_impl.py:433 (`CPUOffload(offload_params=True)`). Before the first pass FSDP pins
the weights, and then as much memory again for gradients: torch/distributed/fsdp/_flat_param.py:1263
(`flat_param._cpu_grad = torch.zeros_like(`). With the Qwen3-4B shape in float32 both took 27 s of the first step.

This module reads the weights in the format to which each pass would round them, pins them while vLLM starts, and makes
no space for gradients. verl would round the module's buffers together with the weights
(verl/workers/engine/fsdp/transformer_impl.py:333 (`module.to(torch_dtype)`)); here they stay in float32. So every pass
computes the same numbers as without this module.
"""

from __future__ import annotations

import copy
import functools
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._flat_param import FlatParamHandle
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine


class FrozenHandle(FlatParamHandle):
    """FSDP's handle of one unit whose weights are never trained; `freeze` turns an ordinary handle into one."""

    pinned: Future[torch.Tensor]
    """This rank's share of the weights, in pinned memory."""

    @property
    def _uses_param_mixed_precision(self) -> bool:
        """True, so that FSDP copies the weights to the GPU as it copies weights of another format. Only that way keeps
        the copy until its last use (`_free_low_precision_sharded_param` records the stream)."""
        return True

    def init_flat_param_attributes(self) -> None:
        """Prepare the unit as if its weights stayed on the GPU, then put them in pinned CPU memory.

        FSDP's own preparation for CPU memory would also make space for gradients.
        """
        self._offload_params = False
        try:
            super().init_flat_param_attributes()
        finally:
            self._offload_params = True
        self.flat_param._local_shard = self.pinned.result()
        self.flat_param._cpu_grad = torch.empty(0)  # not None, or FSDP would make space before each pass

    def _check_on_compute_device(self, tensor: torch.Tensor) -> None:
        if self._offload_params:
            super()._check_on_compute_device(tensor)


def read(engine: Any, build: Callable[[Any], torch.nn.Module]) -> torch.nn.Module:
    """Build verl's module of a reference, with its weights in the format that it computes in.

    Args:
        engine: verl's `FSDPEngine`.
        build: its `_build_module`.

    Returns:
        The module. If the user asked for weights in another format than float32, they keep that format.
    """
    asked, patch = engine.engine_config, transformer_impl.apply_monkey_patch
    if asked.model_dtype is None or PrecisionType.to_dtype(asked.model_dtype) != torch.float32:
        return build(engine)
    buffers: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def keep_buffers(model: torch.nn.Module, **options: Any) -> None:
        """Do verl's last step before it rounds the module, and remember the module's buffers."""
        patch(model=model, **options)
        for each in model.modules():
            buffers.extend((each, name, buffer) for name, buffer in each._buffers.items() if buffer is not None)

    engine.engine_config = copy.copy(asked)
    computes_in = (asked.mixed_precision or {}).get("param_dtype", "bf16")
    object.__setattr__(engine.engine_config, "model_dtype", computes_in)  # verl freezes the field
    transformer_impl.apply_monkey_patch = keep_buffers
    try:
        module = build(engine)
    finally:
        engine.engine_config, transformer_impl.apply_monkey_patch = asked, patch
    if any(buffer.dtype in (torch.bfloat16, torch.float16) for _, _, buffer in buffers):
        # This architecture computes buffers in the format of its weights: build it in float32, and round the weights.
        return cast(build(engine), PrecisionType.to_dtype(computes_in))
    for each, name, buffer in buffers:
        each._buffers[name] = buffer
    return module


def cast(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Round the weights to `dtype`, in place. Buffers keep their format."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return module


def freeze(module: FullyShardedDataParallel) -> None:
    """Pin the weights in a thread, and have FSDP make no space for gradients. Call this before the first pass."""
    handles = [each._handle for each in FullyShardedDataParallel.fsdp_modules(module) if each._handle is not None]
    for handle in handles:
        handle.__class__ = FrozenHandle
        handle.pinned = Future()
    pool = ThreadPoolExecutor(1, thread_name_prefix="pin")
    pool.submit(_pin, handles)
    pool.shutdown(wait=False)


def _pin(handles: Iterable[FrozenHandle]) -> None:
    """Give each handle its pinned weights. If that fails, the first pass raises the error."""
    begin, size = time.monotonic(), 0
    for handle in handles:
        try:
            if handle.device.type == "cuda":
                torch.cuda.set_device(handle.device)  # a new thread would use the first GPU
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
    """Patch verl so that it builds every reference in this way."""
    read_module, wrap = FSDPEngine._build_module, FSDPEngine._build_fsdp_module

    @functools.wraps(read_module)
    def build(self: Any) -> torch.nn.Module:
        return read(self, read_module) if self.engine_config.forward_only else read_module(self)

    @functools.wraps(wrap)
    def build_fsdp(self: Any, module: torch.nn.Module) -> torch.nn.Module:
        wrapped = wrap(self, module)
        if self.engine_config.forward_only and isinstance(wrapped, FullyShardedDataParallel):
            freeze(wrapped)
        return wrapped

    FSDPEngine._build_module, FSDPEngine._build_fsdp_module = build, build_fsdp
