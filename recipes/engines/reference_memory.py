"""The reference on GPUs without a buffer for gradients, and in the number format that it computes in.

verl wraps a model that is only read as it wraps one that is trained, with its weights in CPU memory:
verl/workers/engine/fsdp/transformer_impl.py:433 (`CPUOffload(offload_params=True)`). FSDP pins them before the first
pass, and then a buffer of the same size for gradients: torch/distributed/fsdp/_flat_param.py:1263
(`flat_param._cpu_grad = torch.zeros_like(`). With the Qwen3-4B shape in float32 the two took 27 s of the first step.

Here the weights are read in the format that each pass would round them to, they are pinned while vLLM starts, and there
is no buffer for gradients. Buffers, which verl would round with the weights, stay in float32:
verl/workers/engine/fsdp/transformer_impl.py:333 (`module.to(torch_dtype)`). Every pass computes the same numbers.
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


def read(engine: Any, build: Callable[[Any], torch.nn.Module]) -> torch.nn.Module:
    """Have verl read the weights of a reference in the format that it computes in.

    Args:
        engine: verl's `FSDPEngine`.
        build: its `_build_module`.

    Returns:
        The module; with its weights as they are where they were asked for in another format than float32.
    """
    asked, patch = engine.engine_config, transformer_impl.apply_monkey_patch
    if asked.model_dtype is None or PrecisionType.to_dtype(asked.model_dtype) != torch.float32:
        return build(engine)
    buffers: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def keep_buffers(model: torch.nn.Module, **options: Any) -> None:
        """verl's last step before it rounds the whole module."""
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
        return cast(build(engine), PrecisionType.to_dtype(computes_in))  # this architecture computes them as it is read
    for each, name, buffer in buffers:
        each._buffers[name] = buffer
    return module


def cast(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Round the weights to `dtype`, in place, and no buffers."""
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
