"""verl's FSDP engine for language models with this repository's changes, registered under a vendor of its own.

verl imports this module in each process that holds a model, because `actor_rollout_ref.model.external_lib` names it,
and finds the engine by `VERL_ENGINE_VENDOR` (verl/workers/engine/base.py:407 (`VERL_ENGINE_VENDOR`)): another value
gives verl's own engine back.

**The reference's memory.** verl wraps the reference model as if it were trained, with its weights in CPU memory:
verl/workers/engine/fsdp/transformer_impl.py:433 (`CPUOffload(offload_params=True)`). Before the first pass FSDP pins
the weights, and then as much memory again for gradients: torch/distributed/fsdp/_flat_param.py:1263
(`flat_param._cpu_grad = torch.zeros_like(`). Here the weights are loaded in the compute dtype, pinned while vLLM
starts, and have no space for gradients. verl would round the module's buffers together with the weights
(verl/workers/engine/fsdp/transformer_impl.py:333 (`module.to(torch_dtype)`)); here they stay in float32, so that every
pass computes the numbers of verl's own engine.

**Adapters.** FSDP2 decides at the first pass in which dtype gradients are summed and stored, from the weights that are
trainable then: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:313 (`self._init_mp_dtypes()`). With adapters
verl's reference is the same model without them, and peft freezes adapters while they are switched off. Where the pass
for old log-probabilities is left out, the reference's pass is the first, so `disable_adapter` lets FSDP2 decide before
the adapters are switched off.
"""

import copy
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._flat_param import FlatParamHandle
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from recipes.engines import packed_attention
from recipes.engines.checkpoints import refuse_nan_weights, set_again, step_of
from recipes.engines.verl import on_policy, pictures, upstream
from recipes.engines.verl.translation import VENDOR


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor=VENDOR)
class RecipesEngine(FSDPEngineWithLMHead):
    """Actor and reference."""

    def _build_module(self) -> torch.nn.Module:
        """Compile Triton's head once; load weights that are never trained in their compute dtype.

        Saves 10 s of the first two passes; with `_build_fsdp_module`, 27 s of the first step of a 4B on an H200; below
        adapters half of the weights' memory. Buffers stay in float32. A vision tower is changed as `pictures.py` says.
        """
        options = self.model_config.fused_kernel_options or {}
        if self.model_config.use_fused_kernels and options.get("impl_backend") == "triton":
            from verl.utils.kernel import kernels  # asks for CUDA while it is imported

            compile_once(kernels)
        module = read_weights(self, super()._build_module)
        self._shows_once: bool = pictures.prepare_tower(module)
        return module

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Keep adapters in float32; verl rounds them to the dtype of the weights below, where they hardly learn."""
        adapted = super()._build_lora_module(module)
        trained = PrecisionType.to_dtype(self.engine_config.model_dtype or "fp32")
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(trained)
        return adapted

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Keep a reference without space for gradients, pinned while vLLM starts."""
        wrapped = super()._build_fsdp_module(module)
        if self.engine_config.forward_only and isinstance(wrapped, FullyShardedDataParallel):
            freeze(wrapped)
        return wrapped

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Save weights that are numbers."""
        refuse_nan_weights(self.module, step_of(local_path))
        super().save_checkpoint(local_path, *args, **kwargs)

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Resume with this run's learning rate, betas and weight decay; verl restores the checkpoint's.

        verl loads whole state dictionaries: verl/utils/checkpoint/fsdp_checkpoint_manager.py:237
        (`self.optimizer.load_state_dict`).
        """
        super().load_checkpoint(local_path, *args, **kwargs)
        if self.optimizer is not None and local_path:
            step = None if self.checkpoint_manager.should_load_extra else step_of(local_path)
            set_again(self.optimizer_config, self.optimizer, self.lr_scheduler, rank=self.rank, step=step)

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make patches of the pictures that `agent_loops.py` packed; each goes through the vision tower once a pass."""
        inputs, others = super().prepare_model_inputs(micro_batch)
        pictures.show(inputs, self.model_config.processor, once=self._shows_once)
        return inputs, others

    def disable_adapter(self) -> AbstractContextManager[None]:
        """Initialise FSDP2 before the adapters are switched off; otherwise the first backward pass fails."""
        if isinstance(self.module, FSDPModule):
            self.module._get_fsdp_state()._lazy_init()  # does nothing from the second time on
        return super().disable_adapter()


KERNELS = (
    "efficient_entropy_kernel_general_mainloop",
    "efficient_entropy_triton_kernel_epilogue",
    "efficient_entropy_backward_kernel_general_d_logits_split_N",
)
ANY_VALUE = ("num_tokens", "split_idx")
ANY_ADDRESS = ("labels_ptr", "maximum_ptr", "accu_ptr", "d_entropy_ptr", "d_logprobs_ptr", "entropy_b_ptr")
"""Triton does not specialise kernels on the value of `ANY_VALUE`, nor on the alignment of the pointers `ANY_ADDRESS`,
which are to tensors with one number a token."""


def compile_once(kernels: Any) -> None:
    """Tell Triton not to specialise verl's `kernels` on these arguments, before the first call of one.

    Triton compiles a variant of a kernel for numbers divisible by 16, for 1 and for all others, and likewise for
    pointers. Passes differ in their tokens, so a run's first update compiled nine variants of verl's backward kernel
    (verl/utils/kernel/kernels.py:1388 (`def efficient_entropy_backward_kernel_general_d_logits_split_N`)), 1.7 to 2.1 s
    each. These numbers only bound loops and masks: the kernel is as fast without the distinction.
    """
    for name in KERNELS:
        compiled = getattr(kernels, name)  # an autotuner around the compiled function
        for parameter in getattr(getattr(compiled, "fn", None), "params", ()):
            if parameter.name in ANY_VALUE:
                parameter.do_not_specialize = True
            elif parameter.name in ANY_ADDRESS:
                parameter.do_not_specialize_on_alignment = True


class FrozenHandle(FlatParamHandle):
    """FSDP's handle of one unit whose weights are never trained; `freeze` turns an ordinary handle into one."""

    pinned: Future[torch.Tensor]  # this rank's share of the weights

    @property
    def _uses_param_mixed_precision(self) -> bool:
        """True, so that FSDP copies the weights to the GPU as it copies weights of another dtype. Only that code path
        keeps the copy until its last use (`_free_low_precision_sharded_param` records the stream)."""
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


def read_weights(engine: Any, build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Build verl's module, with weights that are never trained in their compute dtype, and buffers in float32.

    A reference, or a base below adapters, is never trained. Where the user asked for weights in another dtype than
    float32, they have that dtype.
    """
    configured, patch = engine.engine_config, transformer_impl.apply_monkey_patch
    chosen = configured.model_dtype or "fp32"
    if PrecisionType.to_dtype(chosen) == torch.float32 and (configured.forward_only or engine._is_lora):
        chosen = (configured.mixed_precision or {}).get("param_dtype", "bf16")
    dtype = PrecisionType.to_dtype(chosen)
    if dtype == torch.float32:
        return build()
    buffers: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def keep_buffers(model: torch.nn.Module, **options: Any) -> None:
        """Do verl's last step before it rounds the module, and remember the module's buffers."""
        patch(model=model, **options)
        for each in model.modules():
            buffers.extend((each, name, buffer) for name, buffer in each._buffers.items() if buffer is not None)

    def build_in(name: str) -> torch.nn.Module:
        engine.engine_config = copy.copy(configured)
        object.__setattr__(engine.engine_config, "model_dtype", name)  # verl freezes the field
        try:
            return build()
        finally:
            engine.engine_config = configured

    transformer_impl.apply_monkey_patch = keep_buffers
    try:
        module = build_in(chosen)
    finally:
        transformer_impl.apply_monkey_patch = patch
    if any(buffer.dtype in (torch.bfloat16, torch.float16) for _, _, buffer in buffers):
        # This architecture computes buffers in the dtype of its weights: build it in float32, and round the weights.
        module = build_in("fp32")
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        return module
    for each, name, buffer in buffers:
        each._buffers[name] = buffer
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


on_policy.register()
if importlib.util.find_spec("flash_attn") is None:
    packed_attention.register()
upstream.apply("model")
if upstream.SERVER in sys.modules:  # it is not imported for its changes: that takes seconds
    upstream.apply("server")
