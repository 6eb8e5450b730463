"""GPUs: those of this machine, its kernels for them, and the settings that both decide.

Decided are packing, the tokens of a pass, recomputation, and what vLLM decodes at once.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipes.config.layers import Setting
from recipes.config.schema import Changes, Recipe, Source
from recipes.errors import RecipeError, did_you_mean
from recipes.memory import budgets, gpus
from recipes.memory.gpus import nvidia_smi
from recipes.memory.shape import Shape, model_type, published_shape, shape
from recipes.model_files import local_model, model_config, text_config
from recipes.paths import ROOT

KINDS = ("cpu", "gpu")


def visible_gpus(environ: Mapping[str, str]) -> int:
    """NVIDIA GPUs that a process may use: those of the machine, cut down by CUDA_VISIBLE_DEVICES."""
    present = len([entry for entry in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name)])
    if not present:  # as on WSL, where the devices are not files under /dev
        present = sum(line.startswith("GPU ") for line in nvidia_smi("-L").splitlines())
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not present:
        return present
    listed = [part.strip() for part in chosen.split(",") if part.strip()]
    usable = listed[: listed.index("-1")] if "-1" in listed else listed
    return min(present, len(usable))


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


PACKING_TORCH = (2, 11)
"""The first torch whose `torch.nn.attention.varlen` has windows, and so causal attention as it is used here."""


ATOMIC_CACHE_TORCH = (2, 10)
"""The first torch that writes compiled artifacts atomically (pytorch/pytorch#162432)."""


def has_packed_attention() -> bool:
    """Return whether the installed torch brings a kernel for packed sequences (recipes/engines/packed_attention.py)."""
    return _torch_version() >= PACKING_TORCH


def has_atomic_compile_cache() -> bool:
    """Return whether several vLLM engines may share a folder for what they compile."""
    return _torch_version() >= ATOMIC_CACHE_TORCH


def _torch_version() -> tuple[int, ...]:
    """The first two numbers of the installed torch's version; nothing where there is none."""
    try:
        return tuple(int(number) for number in re.findall(r"\d+", version("torch"))[:2])
    except PackageNotFoundError:
        return ()


def lacks_liger(environ: Mapping[str, str]) -> bool:
    """Return whether this machine has GPUs but no liger-kernel."""
    return importlib.util.find_spec("liger_kernel") is None and visible_gpus(environ) > 0


PACKED_ATTENTION = "torch_varlen_flash"
"""The name under which recipes/engines/packed_attention.py offers PyTorch's kernel to transformers."""
ATTENTION = "model.override_config.attn_implementation"
# verl fills dynamic micro-batches by the tokens that are there, then pads each to its longest response: with padding
# kept, their memory has no bound.
WITHOUT_PACKING = {"padding_free": False, "dynamic_batching": False, ATTENTION: "sdpa"}
"""Keys that replace packing, below `worker.actor.`."""
CAN_PACK = ("llama", "qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl")
"""Model types whose attention takes the bounds of packed sequences without flash-attn."""

RECOMPUTE = "worker.actor.model.enable_gradient_checkpointing"
SHARE = "worker.rollout.gpu_memory_utilization"
UPDATE, FORWARD = "worker.actor.max_token_len_per_device", "worker.actor.max_token_len_per_device_for_experience"
STRATEGY = "worker.actor.strategy"
DECODING, GRAPHS = "worker.rollout.max_num_seqs", "worker.rollout.cudagraph_capture_sizes"
FUSED = "worker.actor.use_fused_kernels"
CHANGED_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Keys of a model's configuration by which it changes logits after the head; a fused head takes the weight alone."""
FUSED_WIDTH = 128
"""Hidden sizes of Triton's fused head: verl/utils/kernel/kernels.py:596 (`hidden_size % 128 == 0`)."""


def packing_undone(recipe: Recipe) -> Changes:
    """Undo packing where the machine's defaults chose it and the model cannot be packed without flash-attn."""
    architecture, key = model_type(_folder(recipe.worker.actor.model.model_path)), "worker.actor.model.override_config"
    if recipe.hardware == "cpu":  # recipes/engines/verl_cpu/settings.py names the attention
        chosen = recipe.source_of("worker.actor.padding_free").layer == "hardware"
        source = Source("hardware", f"{architecture} cannot be packed on CPUs")
        fits = architecture is None or architecture in CAN_PACK or not chosen
        return {} if fits else {"worker.actor.padding_free": (False, source)}
    attention = recipe.worker.actor.model.override_config.get("attn_implementation")
    by_machine = recipe.source_of(key).layer == "hardware"
    if architecture is None or architecture in CAN_PACK or not by_machine or attention in (None, "sdpa"):
        return {}
    source = Source("hardware", f"{architecture} cannot be packed without flash-attn")
    changes: dict[str, tuple[Any, Source]] = {key: ({"attn_implementation": WITHOUT_PACKING[ATTENTION]}, source)}
    for name in ("padding_free", "dynamic_batching"):
        if not recipe.source_of(f"worker.actor.{name}").by_user:
            changes[f"worker.actor.{name}"] = (WITHOUT_PACKING[name], source)
    return changes


def adapters_spread(recipe: Recipe) -> Changes:
    """Spread a model with adapters by FSDP2 on verl, unless the user chose. `checks.py` says why FSDP1 cannot."""
    adapters = recipe.engine == "verl" and recipe.worker.actor.model.lora.rank > 0
    if not adapters or recipe.source_of(STRATEGY).by_user:
        return {}
    return {STRATEGY: ("fsdp2", Source("hardware", "with FSDP1 verl sends vLLM no adapters"))}


def filled_sizes(recipe: Recipe) -> Changes:
    """Replace nulls that depend on the sizes of model and GPU, once it is settled whether responses are packed."""
    actor = recipe.worker.actor
    model = model_shape(actor.model.model_path)
    changes = {**_vllm(recipe), **_room(recipe)}
    if actor.use_fused_kernels and (name := _changes_logits(_folder(actor.model.model_path))):
        changes[FUSED] = (False, Source("hardware", f"the model changes logits after the head ({name})"))
    if actor.dynamic_batching and actor.padding_free and recipe.engine == "verl":
        return {**changes, **_token_budgets(recipe, model)}
    if actor.model.enable_gradient_checkpointing is None:
        source = Source("hardware", "memory is foreseen with verl and packed responses only")
        changes[RECOMPUTE] = (True, source)
    return changes


def _folder(name: str | None) -> Path | None:
    return local_model(name) or local_model(str(ROOT / (name or "")))


def _changes_logits(folder: Path | None) -> str | None:
    """The key of a model's `config.json` by which it changes logits after the head, if there is one."""
    config = text_config(model_config(folder)) if folder else {}
    return next((name for name in CHANGED_LOGITS if config.get(name) not in (None, 1)), None)


def model_shape(name: str | None) -> Shape | None:
    """The sizes of a model that is here, or of a published one by its name; None where they are not known."""
    return shape(_folder(name)) or published_shape(name or "")


def _vllm(recipe: Recipe) -> Changes:
    """Responses that vLLM decodes at once, and the batch sizes with a CUDA graph."""
    rollout = recipe.worker.rollout
    changes: dict[str, tuple[Any, Source]] = {}
    sequences = rollout.max_num_seqs
    if sequences is None:
        engines = max(1, recipe.n_gpus // rollout.tensor_parallel_size)
        sequences = budgets.max_num_seqs(-(-recipe.data.rollout_batch_size * rollout.n // engines))
        changes[DECODING] = (sequences, Source("hardware", "a step's responses over vLLM's engines"))
    if rollout.cudagraph_capture_sizes is None and not rollout.enforce_eager:
        changes[GRAPHS] = (budgets.graph_sizes(sequences), Source("hardware", f"sizes up to {DECODING}"))
    return changes


def _room(recipe: Recipe) -> Changes:
    """Take what others hold of the GPUs out of the recipe's share for vLLM; a share that the user set stays."""
    busy = [gpu for gpu in gpus.taken(recipe.trainer.n_gpus_per_node) if gpu.used > gpus.IDLE]
    if not busy or recipe.source_of(SHARE).by_user:
        return {}
    share, fullest = recipe.worker.rollout.gpu_memory_utilization, max(busy, key=lambda gpu: gpu.used / gpu.total)
    left = math.floor(100 * (share - fullest.used / fullest.total)) / 100
    source = Source("hardware", f"{fullest.used / 1e9:.1f} GB of a GPU are in use, of {share:.0%} for vLLM")
    return {SHARE: (left, source)} if left > 0 else {}


def _token_budgets(recipe: Recipe, model: Shape | None) -> Changes:
    """Recomputation of activations, and the tokens of passes with and without gradients."""
    actor, prompt = recipe.worker.actor, recipe.data.max_prompt_length
    free = min((gpu.free for gpu in gpus.taken(recipe.trainer.n_gpus_per_node)), default=None)
    passes = budgets.token_budgets(
        model,
        free,
        ranks=actor.fsdp.fsdp_size if actor.fsdp.fsdp_size > 0 else recipe.n_gpus,
        longest=-(-recipe.longest // actor.ulysses_size),
        image_share=prompt / recipe.longest if recipe.worker.rollout.limit_images else 0.0,
        adapters=actor.model.lora.rank > 0,
        recompute=actor.model.enable_gradient_checkpointing,
        liger=actor.model.use_liger,
    )
    known = model and free is not None
    source = Source(
        "hardware", "what fits the free memory of a GPU" if known else "the model or its GPU is not known yet"
    )
    changes: dict[str, tuple[Any, Source]] = {}
    if actor.model.enable_gradient_checkpointing is None:
        changes[RECOMPUTE] = (passes.recompute, source)
    # A micro-batch size that the user set takes the place of a token budget.
    micro = "worker.actor.micro_batch_size_per_device_for_"
    update = actor.max_token_len_per_device
    if update is None and not recipe.source_of(f"{micro}update").by_user:
        changes[UPDATE] = (passes.update, source)
    if actor.max_token_len_per_device_for_experience is None and not recipe.source_of(f"{micro}experience").by_user:
        follows = update is not None and recipe.source_of(UPDATE).by_user
        changes[FORWARD] = (update if follows else passes.forward, source)
    return changes


def without_libraries(environ: Mapping[str, str], engine: str) -> list[Setting]:
    """Return what takes the place of flash-attn and liger-kernel on a machine with GPUs that lacks them."""
    settings = []
    if lacks_flash_attention(environ):
        source = Source("hardware", "this machine has no flash-attn")
        # EasyR1 chooses its attention itself, and packs with the same kernel (recipes/engines/easyr1_compat).
        packed = {ATTENTION: PACKED_ATTENTION} if engine == "verl" else {}
        changes = packed if has_packed_attention() else WITHOUT_PACKING
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
