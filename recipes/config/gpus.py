"""What GPUs decide: packing of responses, the tokens of a pass, recomputation, and what vLLM decodes at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.config import machine, memory
from recipes.config.layers import Setting
from recipes.config.machine import has_packed_attention, lacks_flash_attention, lacks_liger
from recipes.config.schema import Recipe, leaves
from recipes.config.schema.field import Source
from recipes.paths import ROOT, local_model

PACKED_ATTENTION = "torch_varlen_flash"
"""The name under which recipes/engines/packed_attention.py offers PyTorch's kernel to transformers."""
_UNSET = Source("default", "")

ATTENTION = "model.override_config.attn_implementation"
# verl fills dynamic micro-batches by the tokens that are there, then pads each to its longest response: with padding
# kept, their memory has no bound.
WITHOUT_PACKING = {"padding_free": False, "dynamic_batching": False, ATTENTION: "sdpa"}
"""What takes the place of packing in a network's group, below `worker.actor.` or `worker.critic.`."""
CAN_PACK = ("llama", "qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl")
"""Model types whose attention takes the bounds of packed sequences without flash-attn."""

RECOMPUTE = "worker.actor.model.enable_gradient_checkpointing"
UPDATE, FORWARD = "worker.actor.max_token_len_per_device", "worker.actor.max_token_len_per_device_for_experience"
DECODING, GRAPHS = "worker.rollout.max_num_seqs", "worker.rollout.cudagraph_capture_sizes"
FUSED = "worker.actor.use_fused_kernels"
LIGER = "worker.actor.model.use_liger"
FUSED_WIDTH = 128
"""verl/utils/kernel/kernels.py:596."""
_MAY_BE_LESS = ("worker.actor.fsdp.fsdp_size", "worker.rollout.limit_images", "worker.actor.model.lora.rank")
_SIZES = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "worker.rollout.tensor_parallel_size",
    "data.rollout_batch_size",
    "worker.rollout.n",
    "data.max_prompt_length",
    "data.max_response_length",
    "worker.actor.ulysses_size",
    *_MAY_BE_LESS,
)


def fill_gpus(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Fill in what the size of model and GPU decides: tokens of a pass, recomputation, what vLLM decodes at once."""

    def value_of(key: str) -> Any:
        return values.get(key, leaves(Recipe)[key].default)

    def put(key: str, value: Any, why: str) -> None:
        values[key], sources[key] = value, Source("hardware", why)

    name = str(value_of("worker.actor.model.model_path") or "")
    folder = local_model(name) or local_model(str(ROOT / name))
    _keep_padding(values, sources, memory.model_type(folder))
    numbers = [value_of(key) for key in _SIZES]
    whole = all(
        type(number) is int and (number > 0 or key in _MAY_BE_LESS) for key, number in zip(_SIZES, numbers, strict=True)
    )
    nodes, gpus, tensor, prompts, n, prompt, response, ulysses, sharing, images, rank = (
        numbers if whole else [1] * len(_SIZES)
    )
    ranks = nodes * gpus
    if DECODING in values and values[DECODING] is None:
        responses = -(-prompts * n // max(1, ranks // tensor))
        put(DECODING, memory.max_num_seqs(responses), "a step's responses over vLLM's engines")
    if (
        value_of(GRAPHS) is None
        and value_of("worker.rollout.enforce_eager") is False
        and type(value_of(DECODING)) is int
    ):
        put(GRAPHS, memory.graph_sizes(value_of(DECODING)), f"sizes up to {DECODING}")
    model = memory.shape(folder) or memory.published_shape(name)
    if value_of(FUSED) is True and model and model.hidden % FUSED_WIDTH:
        put(
            FUSED, False, f"verl's fused head takes hidden sizes that {FUSED_WIDTH} divides, and this is {model.hidden}"
        )
    asked = value_of(RECOMPUTE)
    packed = value_of("worker.actor.dynamic_batching") and value_of("worker.actor.padding_free")
    if not (whole and packed and value_of("engine") == "verl"):
        if asked is None:
            put(RECOMPUTE, True, "memory is foreseen with verl and packed responses only")
        return
    size = machine.gpu_memory()
    fits = memory.token_budgets(
        model,
        size,
        ranks=sharing if sharing > 0 else ranks,
        longest=-(-(prompt + response) // ulysses),
        image_share=prompt / (prompt + response) if images else 0.0,
        networks=2 if value_of("algorithm.adv_estimator") == "gae" else 1,
        adapters=rank > 0,
        recompute=asked,
        liger=value_of(LIGER) is not False,
    )
    known = "what fits a GPU's memory" if model and size else "the model or the GPU's memory is not known yet"
    if asked is None:
        put(RECOMPUTE, fits.recompute, known)
    # Who states the number of responses of a pass means it.
    update, forward = (f"worker.actor.micro_batch_size_per_device_for_{use}" for use in ("update", "experience"))
    for key, tokens, micro in ((UPDATE, fits.update, update), (FORWARD, fits.forward, forward)):
        if value_of(key) is None and not (micro in sources and sources[micro].by_user):
            given = key == FORWARD and value_of(UPDATE) is not None and sources[UPDATE].by_user
            put(key, value_of(UPDATE) if given else tokens, known)


def _keep_padding(values: dict[str, Any], sources: dict[str, Source], model_type: str | None) -> None:
    """Undo packing where the machine's defaults chose it and the model cannot be packed without flash-attn."""
    group = "worker.actor.model.override_config"
    if model_type is None or model_type in CAN_PACK or sources.get(group, _UNSET).layer != "hardware":
        return
    if (values.get(group) or {}).get("attn_implementation") in (None, "sdpa"):
        return
    source = Source("hardware", f"{model_type} cannot be packed without flash-attn")
    for role in ("worker.actor", "worker.critic"):
        for name, value in WITHOUT_PACKING.items():
            if name == ATTENTION:
                values[f"{role}.model.override_config"] = {"attn_implementation": value}
                sources[f"{role}.model.override_config"] = source
            elif not sources.get(f"{role}.{name}", _UNSET).by_user:
                values[f"{role}.{name}"], sources[f"{role}.{name}"] = value, source


_UNSET = Source("default", "")


def without_libraries(environ: Mapping[str, str], engine: str) -> list[Setting]:
    """What takes the place of flash-attn and liger-kernel on a machine with GPUs that lacks them."""
    settings = []
    roles = ("worker.actor", "worker.critic")
    if lacks_flash_attention(environ):
        source = Source("hardware", "this machine has no flash-attn")
        packs = engine == "verl" and has_packed_attention()
        changes = {ATTENTION: PACKED_ATTENTION} if packs else WITHOUT_PACKING
        settings += [Setting(f"{role}.{name}", value, source) for role in roles for name, value in changes.items()]
    if lacks_liger(environ):
        source = Source("hardware", "this machine has no liger-kernel")
        settings += [Setting(f"{role}.model.use_liger", False, source) for role in roles]
    return settings
