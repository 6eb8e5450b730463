"""What GPUs decide: packing of responses, the tokens of a pass, recomputation, and what vLLM decodes at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipes.config import machine, memory
from recipes.config.layers import Setting
from recipes.config.machine import has_packed_attention, lacks_flash_attention, lacks_liger
from recipes.config.schema import Recipe, Source, leaves
from recipes.model_files import local_model
from recipes.paths import ROOT

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
NON_POSITIVE_ALLOWED = ("worker.actor.fsdp.fsdp_size", "worker.rollout.limit_images", "worker.actor.model.lora.rank")
SIZE_KEYS = {
    "nodes": "trainer.nnodes",
    "gpus_per_node": "trainer.n_gpus_per_node",
    "tensor_parallel": "worker.rollout.tensor_parallel_size",
    "prompts": "data.rollout_batch_size",
    "n": "worker.rollout.n",
    "prompt_tokens": "data.max_prompt_length",
    "response_tokens": "data.max_response_length",
    "ulysses": "worker.actor.ulysses_size",
    "fsdp_size": "worker.actor.fsdp.fsdp_size",
    "images": "worker.rollout.limit_images",
    "lora_rank": "worker.actor.model.lora.rank",
}
"""Field of `Sizes` -> the key that it comes from."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that decide memory; all 1, and `valid` false, where one of the values is not usable as a size."""

    valid: bool = False
    nodes: int = 1
    gpus_per_node: int = 1
    tensor_parallel: int = 1
    prompts: int = 1
    n: int = 1
    prompt_tokens: int = 1
    response_tokens: int = 1
    ulysses: int = 1
    fsdp_size: int = 1
    images: int = 1
    lora_rank: int = 1

    @property
    def ranks(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and response."""
        return self.prompt_tokens + self.response_tokens


class _Values:
    """The values and sources of a recipe in the making; `put` changes both in place."""

    def __init__(self, values: dict[str, Any], sources: dict[str, Source]) -> None:
        self.values, self.sources = values, sources

    def get(self, key: str) -> Any:
        return self.values.get(key, leaves(Recipe)[key].default)

    def put(self, key: str, value: Any, why: str) -> None:
        self.values[key], self.sources[key] = value, Source("hardware", why)

    def is_by_user(self, key: str) -> bool:
        return key in self.sources and self.sources[key].by_user

    def sizes(self) -> Sizes:
        numbers = {field: self.get(key) for field, key in SIZE_KEYS.items()}
        valid = all(
            type(number) is int and (number > 0 or SIZE_KEYS[field] in NON_POSITIVE_ALLOWED)
            for field, number in numbers.items()
        )
        return Sizes(valid=True, **numbers) if valid else Sizes()


def fill_gpus(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Replaces nulls that depend on the sizes of model and GPU; changes `values`, and `sources`, which say why."""
    recipe = _Values(values, sources)
    name = str(recipe.get("worker.actor.model.model_path") or "")
    folder = local_model(name) or local_model(str(ROOT / name))
    _keep_padding(values, sources, memory.model_type(folder))
    sizes = recipe.sizes()
    model = memory.shape(folder) or memory.published_shape(name)
    _fill_vllm(recipe, sizes)
    _fill_kernels(recipe, model)
    _fill_token_budgets(recipe, sizes, model)


def _fill_vllm(recipe: _Values, sizes: Sizes) -> None:
    """Responses that vLLM decodes at once, and the batch sizes with a CUDA graph."""
    if DECODING in recipe.values and recipe.values[DECODING] is None:
        responses = -(-sizes.prompts * sizes.n // max(1, sizes.ranks // sizes.tensor_parallel))
        recipe.put(DECODING, memory.max_num_seqs(responses), "a step's responses over vLLM's engines")
    sequences = recipe.get(DECODING)
    if recipe.get(GRAPHS) is None and recipe.get("worker.rollout.enforce_eager") is False and type(sequences) is int:
        recipe.put(GRAPHS, memory.graph_sizes(sequences), f"sizes up to {DECODING}")


def _fill_kernels(recipe: _Values, model: memory.Shape | None) -> None:
    """No fused head for hidden sizes that verl's kernel does not take."""
    if recipe.get(FUSED) is True and model and model.hidden % FUSED_WIDTH:
        why = f"verl's fused head takes hidden sizes that {FUSED_WIDTH} divides, and this is {model.hidden}"
        recipe.put(FUSED, False, why)


def _fill_token_budgets(recipe: _Values, sizes: Sizes, model: memory.Shape | None) -> None:
    """Recomputation of activations, and the tokens of passes with and without gradients."""
    recompute = recipe.get(RECOMPUTE)
    packed = recipe.get("worker.actor.dynamic_batching") and recipe.get("worker.actor.padding_free")
    if not (sizes.valid and packed and recipe.get("engine") == "verl"):
        if recompute is None:
            recipe.put(RECOMPUTE, True, "memory is foreseen with verl and packed responses only")
        return
    gpu_bytes = machine.gpu_memory()
    budgets = memory.token_budgets(
        model,
        gpu_bytes,
        ranks=sizes.fsdp_size if sizes.fsdp_size > 0 else sizes.ranks,
        longest=-(-sizes.longest // sizes.ulysses),
        image_share=sizes.prompt_tokens / sizes.longest if sizes.images else 0.0,
        networks=2 if recipe.get("algorithm.adv_estimator") == "gae" else 1,
        adapters=sizes.lora_rank > 0,
        recompute=recompute,
        liger=recipe.get(LIGER) is not False,
    )
    why = "what fits a GPU's memory" if model and gpu_bytes else "the model or the GPU's memory is not known yet"
    if recompute is None:
        recipe.put(RECOMPUTE, budgets.recompute, why)
    # A micro-batch size that the user set takes the place of a token budget.
    update, forward = (f"worker.actor.micro_batch_size_per_device_for_{use}" for use in ("update", "experience"))
    for key, tokens, micro in ((UPDATE, budgets.update, update), (FORWARD, budgets.forward, forward)):
        if recipe.get(key) is None and not recipe.is_by_user(micro):
            follows = key == FORWARD and recipe.get(UPDATE) is not None and recipe.sources[UPDATE].by_user
            recipe.put(key, recipe.get(UPDATE) if follows else tokens, why)


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
