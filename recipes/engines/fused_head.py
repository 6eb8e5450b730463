"""verl's fused kernels of the language-model head, compiled once.

Triton compiles a kernel anew for numbers that are divisible by 16, for the number 1 and for others, and for addresses
that are and are not. Of verl's backward kernel (verl/utils/kernel/kernels.py:1388
(`def efficient_entropy_backward_kernel_general_d_logits_split_N`)) the first update of a run so compiled nine variants
of 1.7 to 2.1 s each, because every pass has another number of tokens, and every part of the vocabulary another index.
These numbers only bound loops and masks; the kernel is as fast without the distinction (0.204 s for a pass of 13,312
tokens in both, six layers of the Qwen3-4B shape on an H200).
"""

from __future__ import annotations

import functools
from typing import Any

KERNELS = (
    "efficient_entropy_kernel_general_mainloop",
    "efficient_entropy_triton_kernel_epilogue",
    "efficient_entropy_backward_kernel_general_d_logits_split_N",
)
ANY_VALUE = ("num_tokens", "split_idx")
ANY_ADDRESS = ("labels_ptr", "maximum_ptr", "accu_ptr", "d_entropy_ptr", "d_logprobs_ptr", "entropy_b_ptr")
"""Arguments whose values, and arguments whose addresses, Triton shall not distinguish. The latter have one number for
each token."""


def compile_once(kernels: Any) -> None:
    """Tell Triton not to distinguish values of these arguments, before the first call of a kernel.

    Args:
        kernels: the module `verl.utils.kernel.kernels`. Without Triton there is nothing to tell.
    """
    for name in KERNELS:
        compiled = getattr(kernels, name)  # an autotuner around the compiled function
        for parameter in getattr(getattr(compiled, "fn", None), "params", ()):
            if parameter.name in ANY_VALUE:
                parameter.do_not_specialize = True
            elif parameter.name in ANY_ADDRESS:
                parameter.do_not_specialize_on_alignment = True


@functools.cache
def register() -> None:
    """Have the kernels compiled once, in each process that builds a model.

    The kernels are imported with the model: their import asks for CUDA.
    """
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    ordinary = FSDPEngine._build_module

    @functools.wraps(ordinary)
    def build(self: Any) -> Any:
        if self.model_config.use_fused_kernels:
            from verl.utils.kernel import kernels

            compile_once(kernels)
        return ordinary(self)

    FSDPEngine._build_module = build
