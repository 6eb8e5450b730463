"""The kind of machine, the kernels that its GPUs have, and the settings that follow: packing, attention, adapters."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from recipes.config.fit import model_folder
from recipes.config.schema import Recipe, Setting, Source
from recipes.errors import RecipeError, did_you_mean
from recipes.memory.gpus import visible_gpus
from recipes.memory.shape import model_type

KINDS = ("cpu", "gpu")


def kind_of_machine(asked: str | None, where: str, environ: Mapping[str, str]) -> str:
    """`cpu` or `gpu`: what was asked for, else what the machine has."""
    if asked is None or asked == "auto":
        return "gpu" if visible_gpus(environ) else "cpu"
    if asked not in KINDS:
        raise RecipeError(
            f"unknown hardware {asked!r}",
            where=where,
            fix=did_you_mean(asked, KINDS) or f"use one of {', '.join(KINDS)}",
        )
    return asked


def lacks_flash_attention(environ: Mapping[str, str]) -> bool:
    """Return whether this machine has GPUs but no flash-attn, which verl would otherwise ask transformers for."""
    return importlib.util.find_spec("flash_attn") is None and visible_gpus(environ) > 0


def lacks_liger(environ: Mapping[str, str]) -> bool:
    """Return whether this machine has GPUs but no liger-kernel."""
    return importlib.util.find_spec("liger_kernel") is None and visible_gpus(environ) > 0


PACKED_ATTENTION = "torch_varlen_flash"
"""The name under which recipes/engines/packed_attention.py offers PyTorch's kernel to transformers."""
ATTENTION = "model.override_config.attn_implementation"
# verl fills dynamic micro-batches by the tokens that are there, then pads each to its longest response: with padding
# kept, their memory has no bound.
PACKING = ("padding_free", "dynamic_batching")
WITHOUT_PACKING = {"padding_free": False, "dynamic_batching": False, ATTENTION: "sdpa"}
"""Keys that replace packing, below `worker.actor.`."""
CAN_PACK = ("llama", "qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl")
"""Model types whose attention takes the bounds of packed sequences without flash-attn."""

STRATEGY = "worker.actor.strategy"


def packing_undone(recipe: Recipe) -> list[Setting]:
    """Undo packing where the machine's defaults chose it and the model cannot be packed without flash-attn."""
    key = "worker.actor.model.override_config"
    architecture = model_type(model_folder(recipe.worker.actor.model.model_path))
    if recipe.hardware == "cpu":  # recipes/engines/cpu/settings.py names the attention
        chosen = recipe.source_of("worker.actor.padding_free").layer == "hardware"
        source = Source("hardware", f"{architecture} cannot be packed on CPUs")
        fits = architecture is None or architecture in CAN_PACK or not chosen
        return [] if fits else [Setting("worker.actor.padding_free", False, source)]
    attention = recipe.worker.actor.model.override_config.get("attn_implementation")
    by_machine = recipe.source_of(key).layer == "hardware"
    if architecture is None or architecture in CAN_PACK or not by_machine or attention in (None, "sdpa"):
        return []
    source = Source("hardware", f"{architecture} cannot be packed without flash-attn")
    unpacked = [Setting(f"worker.actor.{name}", WITHOUT_PACKING[name], source) for name in PACKING]
    return [
        Setting(key, {"attn_implementation": WITHOUT_PACKING[ATTENTION]}, source),
        *(setting for setting in unpacked if not recipe.source_of(setting.path).by_user),
    ]


def adapters_spread(recipe: Recipe) -> list[Setting]:
    """Spread a model with adapters by FSDP2 on verl, unless the user chose. `checks.py` says why FSDP1 cannot."""
    adapters = recipe.engine == "verl" and recipe.worker.actor.model.lora.rank > 0
    if not adapters or recipe.source_of(STRATEGY).by_user:
        return []
    return [Setting(STRATEGY, "fsdp2", Source("hardware", "with FSDP1 verl sends vLLM no adapters"))]


def without_libraries(environ: Mapping[str, str], engine: str, changed: bool = True) -> list[Setting]:
    """Return what takes the place of flash-attn and liger-kernel on a machine with GPUs that lacks them.

    Args:
        engine: verl or easyr1.
        changed: whether verl is changed; as it is it has no packed attention without flash-attn.
    """
    settings = []
    if lacks_flash_attention(environ):
        source = Source("hardware", "this machine has no flash-attn")
        # EasyR1 chooses its attention itself, and packs with the same kernel (patches/easyr1-b44b311.patch).
        packed = {ATTENTION: PACKED_ATTENTION} if engine == "verl" else {}
        changes = packed if changed else WITHOUT_PACKING
        settings += [Setting(f"worker.actor.{name}", value, source) for name, value in changes.items()]
    if lacks_liger(environ):
        source = Source("hardware", "this machine has no liger-kernel")
        settings.append(Setting("worker.actor.model.use_liger", False, source))
    return settings


SECTION = "docs/INSTALLATION.md, section flash-attn"
CANNOT_PACK = (None, "eager", "sdpa", "flash_attention_2")
"""Attention that without flash-attn cannot tell packed responses apart, or is not there; None is verl's own choice."""


def check_attention(recipe: Recipe) -> list[str]:
    """Raise where verl would ask for flash-attn, or let packed responses see each other; remark on what is without it.

    Raises:
        RecipeError: names the key that asks for it.
    """
    if recipe.hardware != "gpu" or recipe.engine != "verl" or not lacks_flash_attention(os.environ):
        return []
    actor, packing = recipe.worker.actor, recipe.source_of("worker.actor.padding_free")
    attention = actor.model.override_config.get("attn_implementation")
    if actor.padding_free and attention in CANNOT_PACK:
        raise recipe.error(
            f"worker.actor.padding_free packs responses, and the attention {attention or 'flash_attention_2'} "
            "cannot keep them apart here",
            f"leave worker.actor.padding_free and PADDING_FREE away, or install flash-attn ({SECTION})",
            "worker.actor.padding_free",
        )
    if actor.padding_free or packing.by_user:
        return []
    return [f"{packing}: padding is kept, and micro-batches have a fixed number of responses; see {SECTION}"]
