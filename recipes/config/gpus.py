"""What GPUs decide: packing of responses, the tokens of a pass, recomputation, and what vLLM decodes at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from recipes.config.layers import Draft, Setting
from recipes.config.machine import has_packed_attention, lacks_flash_attention, lacks_liger
from recipes.config.schema import Source
from recipes.memory import budgets, gpus
from recipes.memory.shape import Shape, model_type, published_shape, shape
from recipes.model_files import local_model
from recipes.paths import ROOT

PACKED_ATTENTION = "torch_varlen_flash"
"""The name under which recipes/engines/packed_attention.py offers PyTorch's kernel to transformers."""
ATTENTION = "model.override_config.attn_implementation"
# verl fills dynamic micro-batches by the tokens that are there, then pads each to its longest response: with padding
# kept, their memory has no bound.
WITHOUT_PACKING = {"padding_free": False, "dynamic_batching": False, ATTENTION: "sdpa"}
"""What takes the place of packing in a network's group, below `worker.actor.` or `worker.critic.`."""
CAN_PACK = ("llama", "qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl")
"""Model types whose attention takes the bounds of packed sequences without flash-attn."""

RECOMPUTE = "worker.actor.model.enable_gradient_checkpointing"
SHARE = "worker.rollout.gpu_memory_utilization"
UPDATE, FORWARD = "worker.actor.max_token_len_per_device", "worker.actor.max_token_len_per_device_for_experience"
DECODING, GRAPHS = "worker.rollout.max_num_seqs", "worker.rollout.cudagraph_capture_sizes"
FUSED = "worker.actor.use_fused_kernels"
FUSED_WIDTH = 128
"""verl/utils/kernel/kernels.py:596."""


def fill_gpus(draft: Draft) -> None:
    """Replace nulls that depend on the sizes of model and GPU; the sources say why."""
    name = str(draft.get("worker.actor.model.model_path") or "")
    folder = local_model(name) or local_model(str(ROOT / name))
    _keep_padding(draft, model_type(folder))
    model = shape(folder) or published_shape(name)
    _fill_vllm(draft)
    _leave_room(draft)
    if draft.get(FUSED) is True and model and model.hidden % FUSED_WIDTH:
        why = f"verl's fused head takes hidden sizes that {FUSED_WIDTH} divides, and this is {model.hidden}"
        draft.put(FUSED, False, Source("hardware", why))
    packed = draft.get("worker.actor.dynamic_batching") and draft.get("worker.actor.padding_free")
    if packed and draft.get("engine") == "verl":
        _fill_token_budgets(draft, model)
    elif draft.get(RECOMPUTE) is None:
        draft.put(RECOMPUTE, True, Source("hardware", "memory is foreseen with verl and packed responses only"))


def _size(draft: Draft, key: str, unset: int = 1) -> int:
    """A positive size; `unset` for -1 and 0, and for what is no size, which the check of types names later."""
    value = draft.get(key)
    return value if type(value) is int and value > 0 else unset


def _gpus(draft: Draft) -> int:
    return _size(draft, "trainer.nnodes") * _size(draft, "trainer.n_gpus_per_node")


def _fill_vllm(draft: Draft) -> None:
    """Responses that vLLM decodes at once, and the batch sizes with a CUDA graph."""
    if draft.is_null(DECODING):
        engines = max(1, _gpus(draft) // _size(draft, "worker.rollout.tensor_parallel_size"))
        responses = _size(draft, "data.rollout_batch_size") * _size(draft, "worker.rollout.n")
        source = Source("hardware", "a step's responses over vLLM's engines")
        draft.put(DECODING, budgets.max_num_seqs(-(-responses // engines)), source)
    sequences = draft.get(DECODING)
    if draft.get(GRAPHS) is None and draft.get("worker.rollout.enforce_eager") is False and type(sequences) is int:
        draft.put(GRAPHS, budgets.graph_sizes(sequences), Source("hardware", f"sizes up to {DECODING}"))


def _leave_room(draft: Draft) -> None:
    """Take what others hold of the GPUs out of the recipe's share for vLLM; a share that the user set stays."""
    total, used, share = gpus.gpu_memory(), gpus.in_use(_size(draft, "trainer.n_gpus_per_node")), draft.get(SHARE)
    if total and used > gpus.IDLE and type(share) is float and not draft.source(SHARE).by_user:
        left = math.floor(100 * (share - used / total)) / 100
        if left > 0:
            draft.put(
                SHARE, left, Source("hardware", f"{used / 1e9:.1f} GB of a GPU are in use, of {share:.0%} for vLLM")
            )


def _fill_token_budgets(draft: Draft, model: Shape | None) -> None:
    """Recomputation of activations, and the tokens of passes with and without gradients."""
    recompute, gpu_bytes = draft.get(RECOMPUTE), gpus.gpu_memory()
    free = gpu_bytes - gpus.in_use(_size(draft, "trainer.n_gpus_per_node")) if gpu_bytes else None
    prompt, response = _size(draft, "data.max_prompt_length"), _size(draft, "data.max_response_length")
    passes = budgets.token_budgets(
        model,
        free,
        ranks=_size(draft, "worker.actor.fsdp.fsdp_size", unset=_gpus(draft)),
        longest=-(-(prompt + response) // _size(draft, "worker.actor.ulysses_size")),
        image_share=prompt / (prompt + response) if _size(draft, "worker.rollout.limit_images", unset=0) else 0.0,
        networks=2 if draft.get("algorithm.adv_estimator") == "gae" else 1,
        adapters=_size(draft, "worker.actor.model.lora.rank", unset=0) > 0,
        recompute=recompute,
        liger=draft.get("worker.actor.model.use_liger") is not False,
    )
    known = model and gpu_bytes
    source = Source(
        "hardware", "what fits the free memory of a GPU" if known else "the model or its GPU is not known yet"
    )
    if recompute is None:
        draft.put(RECOMPUTE, passes.recompute, source)
    # A micro-batch size that the user set takes the place of a token budget.
    micro = "worker.actor.micro_batch_size_per_device_for_"
    if draft.get(UPDATE) is None and not draft.source(f"{micro}update").by_user:
        draft.put(UPDATE, passes.update, source)
    if draft.get(FORWARD) is None and not draft.source(f"{micro}experience").by_user:
        follows = draft.get(UPDATE) is not None and draft.source(UPDATE).by_user
        draft.put(FORWARD, draft.get(UPDATE) if follows else passes.forward, source)


def _keep_padding(draft: Draft, architecture: str | None) -> None:
    """Undo packing where the machine's defaults chose it and the model cannot be packed without flash-attn."""
    group = draft.get("worker.actor.model.override_config") or {}
    by_machine = draft.source("worker.actor.model.override_config").layer == "hardware"
    if architecture is None or architecture in CAN_PACK or not by_machine:
        return
    if group.get("attn_implementation") in (None, "sdpa"):
        return
    source = Source("hardware", f"{architecture} cannot be packed without flash-attn")
    for role in ("worker.actor", "worker.critic"):
        draft.put(f"{role}.model.override_config", {"attn_implementation": WITHOUT_PACKING[ATTENTION]}, source)
        for name in ("padding_free", "dynamic_batching"):
            if not draft.source(f"{role}.{name}").by_user:
                draft.put(f"{role}.{name}", WITHOUT_PACKING[name], source)


def without_libraries(environ: Mapping[str, str], engine: str) -> list[Setting]:
    """What takes the place of flash-attn and liger-kernel on a machine with GPUs that lacks them."""
    settings = []
    roles = ("worker.actor", "worker.critic")
    if lacks_flash_attention(environ):
        source = Source("hardware", "this machine has no flash-attn")
        # EasyR1 chooses its attention itself, and packs with the same kernel (recipes/engines/easyr1_compat).
        packed = {ATTENTION: PACKED_ATTENTION} if engine == "verl" else {}
        changes = packed if has_packed_attention() else WITHOUT_PACKING
        settings += [Setting(f"{role}.{name}", value, source) for role in roles for name, value in changes.items()]
    if lacks_liger(environ):
        source = Source("hardware", "this machine has no liger-kernel")
        settings += [Setting(f"{role}.model.use_liger", False, source) for role in roles]
    return settings
