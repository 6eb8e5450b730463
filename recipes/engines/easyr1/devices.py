"""Replacements of `torch.cuda` and of vLLM's kernels on a machine without a GPU, for EasyR1's trainer."""

from __future__ import annotations

from typing import Any

RANKS = "RECIPES_EASYR1_RANKS"
"""Variable with the number of ranks on a machine without a GPU; it is set on no other."""


def stand_in() -> None:
    """Have the functions of `torch.cuda` that EasyR1 calls answer for the CPU. Memory figures are the machine's."""
    import psutil
    import torch

    def memory(device: Any = None) -> tuple[int, int]:
        found = psutil.virtual_memory()
        return found.available, found.total

    answers: dict[str, Any] = {
        "get_device_name": lambda device=None: "cpu",
        "mem_get_info": memory,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "manual_seed": torch.manual_seed,
        "empty_cache": lambda: None,
        "set_device": lambda device: None,
        "max_memory_allocated": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


def prepare_vllm() -> None:
    """Have vLLM's CPU build keep weights that can be replaced, and look at model classes without a new interpreter."""

    from recipes.engines.verl import upstream

    upstream.apply("cpu vllm")
