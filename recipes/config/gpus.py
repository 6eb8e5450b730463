"""Settings that follow from the machine: its kind, the kernels that its GPUs have, and what fits their free memory."""

import importlib.util
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from recipes.config import objective
from recipes.config.names import native
from recipes.config.schema import Recipe, Setting, Source
from recipes.config.schema.worker import Fsdp
from recipes.memory import fit
from recipes.memory import gpus as nvidia
from recipes.memory.estimates import MemoryPlan, host_memory, number_bytes
from recipes.memory.gpus import visible_gpus
from recipes.memory.shape import Shape, published_shape, shape
from recipes.model_files import local_model, model_config, text_config
from recipes.settings import require_resolved


def lacks(package: str, environ: Mapping[str, str]) -> bool:
    """Return whether this machine has GPUs but not this package, such as flash_attn."""
    return importlib.util.find_spec(package) is None and visible_gpus(environ) > 0


ACTOR = "worker.actor"
PACKED_ATTENTION = "torch_varlen_flash"
"""The name under which recipes/engines/packed_attention.py offers PyTorch's kernel to transformers."""
PADDING_FREE, CONFIG = f"{ACTOR}.padding_free", f"{ACTOR}.model.override_config"
ATTENTION = f"{CONFIG}.attn_implementation"
# verl fills dynamic micro-batches by counting tokens without padding, then pads each to its longest response: with
# padding kept, their memory has no bound.
WITHOUT_PACKING = {PADDING_FREE: False, f"{ACTOR}.dynamic_batching": False, ATTENTION: "sdpa"}
CAN_PACK = ("llama", "qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl")
"""Model types whose attention takes the bounds of packed sequences without flash-attn."""


def _config(recipe: Recipe) -> dict[str, Any]:
    return model_config(local_model(recipe.worker.actor.model.model_path))


def packing_undone(recipe: Recipe) -> list[Setting]:
    """Undo packing where the machine's defaults chose it and the model cannot be packed without flash-attn."""
    kind = _config(recipe).get("model_type")
    if kind is None or kind in CAN_PACK:
        return []
    if recipe.hardware == "cpu":  # recipes/engines/cpu/settings.py names the attention
        source = Source("hardware", f"{kind} cannot be packed on CPUs")
        return [Setting(PADDING_FREE, False, source)] if recipe.source_of(PADDING_FREE).layer == "hardware" else []
    if recipe.value(CONFIG).get("attn_implementation") != PACKED_ATTENTION or recipe.source_of(CONFIG).by_user:
        return []
    source, changes = Source("hardware", f"{kind} cannot be packed without flash-attn"), dict(WITHOUT_PACKING)
    settings = [Setting(CONFIG, {"attn_implementation": changes.pop(ATTENTION)}, source)]
    return settings + [
        Setting(key, value, source) for key, value in changes.items() if not recipe.source_of(key).by_user
    ]


def adapters_spread(recipe: Recipe) -> list[Setting]:
    """Shard a model with adapters by FSDP2 on verl, unless the user chose. `checks.py` says why FSDP1 fails."""
    key = f"{ACTOR}.strategy"
    if recipe.engine != "verl" or not recipe.worker.actor.model.lora.rank or recipe.source_of(key).by_user:
        return []
    return [Setting(key, "fsdp2", Source("hardware", "with FSDP1 verl sends vLLM no adapters"))]


def without_libraries(environ: Mapping[str, str], chosen: Iterable[Setting]) -> list[Setting]:
    """Return the settings that replace flash-attn and liger-kernel on a machine with GPUs that lacks them.

    The engine is among the `chosen` settings. Unchanged verl has no packed attention without flash-attn; EasyR1 chooses
    its attention itself, and packs with the same kernel (patches/easyr1-b44b311.patch).
    """
    said = {setting.path: str(setting.value) for setting in chosen}
    packed = {ATTENTION: PACKED_ATTENTION} if said.get("engine", "verl") == "verl" else {}
    patches = said.get("trainer.patches", "true").lower() not in ("0", "false", "no", "off")
    instead = {
        "flash-attn": packed if patches else WITHOUT_PACKING,
        "liger-kernel": {f"{ACTOR}.model.use_liger": False},
    }
    return [
        Setting(key, value, Source("hardware", f"this machine has no {package}"))
        for package, changes in instead.items()
        if lacks(package.replace("-", "_"), environ)
        for key, value in changes.items()
    ]


CHANGED_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Keys of a model's configuration that change the logits after the head; a fused head uses the head's weight alone."""
FUSED_WIDTH = 128
"""Triton's fused head needs a hidden size that is a multiple of this: verl/utils/kernel/kernels.py:596
(`hidden_size % 128 == 0`)."""


def model_shape(name: str | None) -> Shape | None:
    """The sizes of a local model, or of a published one by its name; None where they are not known."""
    return shape(local_model(name)) or published_shape(name or "")


def gpus_of(recipe: Recipe) -> list[nvidia.Gpu]:
    """The GPUs that a run takes: those that it is planned for, else the first ones visible on this machine."""
    planned = recipe.resolution.planned_gpus
    return list(nvidia.chosen_gpus()[: recipe.trainer.n_gpus_per_node] if planned is None else planned)


def plan_of(recipe: Recipe) -> MemoryPlan | None:
    """The memory plan of a recipe, null settings chosen by `fit`; None where model or GPU is unknown.

    Of several GPUs, the plan is that of the one with the least free memory, with a `utilization` that fits all.
    """
    if recipe.hardware == "cpu":
        return _plan_on(recipe, None)
    every = [each for gpu in gpus_of(recipe) if (each := _plan_on(recipe, gpu))]
    tightest = min(every, key=lambda each: each.free, default=None)
    # vLLM takes the same share of each GPU, so a larger GPU may decide if other processes hold much of its memory.
    return replace(tightest, utilization=min(each.utilization for each in every)) if tightest else None


def _plan_on(recipe: Recipe, gpu: nvidia.Gpu | None) -> MemoryPlan | None:
    """The memory plan on one GPU; None: on CPUs."""
    actor, rollout, model = recipe.worker.actor, recipe.worker.rollout, recipe.worker.actor.model
    sizes = model_shape(model.model_path)
    if sizes is None:
        return None
    longest = math.ceil(recipe.longest / actor.ulysses_size)
    shards = recipe.easyr1.get(
        f"{ACTOR}.fsdp.fsdp_size", native(recipe).get("actor_rollout_ref.actor.fsdp_config.fsdp_size")
    )
    plan = MemoryPlan(
        shape=sizes,
        gpu=gpu.total if gpu else None,
        in_use=gpu.used if gpu else 0,
        host=host_memory() if recipe.resolution.planned_gpus is None else None,
        ranks=shards if isinstance(shards, int) and 0 < shards < recipe.n_gpus else recipe.n_gpus,
        ranks_here=recipe.n_gpus // recipe.trainer.nnodes,
        longest=longest,
        prompt=recipe.data.max_prompt_length if actor.ulysses_size == 1 else longest,
        tokens=require_resolved(actor.global_batch_size) * rollout.n * recipe.longest // max(1, recipe.n_gpus),
        image_share=recipe.data.max_prompt_length / recipe.longest if rollout.limit_images else 0.0,
        show_once=rollout.n if _shows_once(recipe) else 1,
        liger=model.use_liger,
        fused=actor.use_fused_kernels,
        weight_bytes=number_bytes(actor.fsdp.torch_dtype),
        frozen_bytes=frozen_bytes(recipe, actor.fsdp),
        compute_bytes=number_bytes(actor.fsdp.mp_param_dtype),
        lora=model.lora.rank,
        keeps_weights_asleep=recipe.engine == "easyr1" or bool(model.lora.rank),
        reference=objective.kl_in_reward(recipe) is not None or objective.kl_in_loss(recipe) is not None,
        reference_bytes=frozen_bytes(recipe, recipe.worker.ref.fsdp),
        saves=recipe.trainer.save_freq > 0 and recipe.trainer.save_hf_model,
        tensor=rollout.tensor_parallel_size,
        responses=_responses_of_an_engine(recipe),
        least_batched=_least_batched(recipe),
        eager=rollout.enforce_eager,
    )
    given = {name: recipe.value(key) for name, key in fit.KEYS.items()}
    return fit.choose_settings(plan, given | fixed_settings(recipe, plan))


def _shows_once(recipe: Recipe) -> bool:
    """Return whether the vision tower sees a picture once for the responses of a prompt
    (recipes/engines/verl/pictures.py); every published model that reads pictures has such a tower."""
    kind = _config(recipe).get("model_type", "qwen2_5_vl")
    return recipe.engine == "verl" and recipe.trainer.patches and kind in ("qwen2_vl", "qwen2_5_vl")


def explicit_settings(recipe: Recipe, plan: MemoryPlan) -> fit.Explicit:
    """Return the memory settings (`fit.KEYS`) that `fit` must keep: those that the hardware layer did not set, and
    those that `fixed_settings` returns."""
    decided = {name: recipe.value(key) for name, key in fit.KEYS.items() if recipe.source_of(key).layer != "hardware"}
    return decided | fixed_settings(recipe, plan)


def fixed_settings(recipe: Recipe, plan: MemoryPlan) -> dict[str, Any]:
    """Return the settings that `fit` must not choose.

    Tokens and recomputation where a pass has a fixed number of responses, `fused_adam` where EasyR1 or a key below
    `verl` decides the optimiser, and `offload_all` where FSDP2 does not shard the model.
    """
    actor = recipe.worker.actor
    fixed: dict[str, Any] = {}
    if recipe.hardware == "cpu" or not _filled_by_tokens(recipe):
        for name, use in (("update_tokens", "update"), ("forward_tokens", "experience")):
            responses = require_resolved(recipe.value(f"{ACTOR}.micro_batch_size_per_device_for_{use}"))
            tokens = recipe.value(fit.KEYS[name]) if actor.dynamic_batching else None
            fixed[name] = tokens or responses * plan.longest
        fixed["recompute"] = actor.model.enable_gradient_checkpointing is not False
    if recipe.engine != "verl" or any("optim.optimizer" in name for name in recipe.verl):
        fixed["fused_adam"] = False
    if recipe.engine != "verl" or actor.strategy != "fsdp2":
        fixed["offload_all"] = bool(actor.fsdp.enable_cpu_offload)
    return fixed


def _filled_by_tokens(recipe: Recipe) -> bool:
    actor = recipe.worker.actor
    return actor.dynamic_batching and actor.padding_free and recipe.engine == "verl"


def frozen_bytes(recipe: Recipe, fsdp: Fsdp) -> int:
    """Bytes of a weight that is not trained, of a reference or below adapters.

    Our engine for verl (recipes/engines/verl/engine.py) keeps float32 weights in the compute dtype, unchanged verl in
    the configured one, as EasyR1, where that is bf16 on GPUs if none is configured.
    """
    if recipe.engine == "easyr1":
        return number_bytes(fsdp.torch_dtype or ("bf16" if recipe.hardware == "gpu" else None))
    kept = number_bytes(fsdp.torch_dtype)
    return min(kept, number_bytes(fsdp.mp_param_dtype)) if recipe.trainer.patches else kept


def _responses_of_an_engine(recipe: Recipe) -> int:
    """A step's responses over vLLM's engines."""
    rollout = recipe.worker.rollout
    engines = max(1, recipe.n_gpus // rollout.tensor_parallel_size)
    return math.ceil(recipe.data.rollout_batch_size * rollout.n / engines)


def _least_batched(recipe: Recipe) -> int:
    """Tokens that vLLM must take in one pass: EasyR1 asks for a whole response, and an image or a prompt that is not
    split is taken at once."""
    rollout = recipe.worker.rollout
    if recipe.engine == "easyr1" or not rollout.enable_chunked_prefill:
        return recipe.longest
    return recipe.data.max_prompt_length if rollout.limit_images else 0


def plain_head(recipe: Recipe) -> list[Setting]:
    """Turn the fused head off where a model changes the logits after it."""
    config = text_config(_config(recipe))
    scaled = next((name for name in CHANGED_LOGITS if config.get(name) not in (None, 1)), None)
    if not (recipe.worker.actor.use_fused_kernels and scaled):
        return []
    source = Source("hardware", f"the model changes logits after the head ({scaled})")
    return [Setting(f"{ACTOR}.use_fused_kernels", False, source)]


def memory_filled(recipe: Recipe) -> list[Setting]:
    """Replace null values by the fastest settings that fit the GPU with the least free memory."""
    plan, rollout = plan_of(recipe), recipe.worker.rollout
    longest = math.ceil(recipe.longest / recipe.worker.actor.ulysses_size)
    tokens = recipe.value(fit.KEYS["update_tokens"]) or fit.UNKNOWN["forward_tokens"]
    unknown = {"forward_tokens": tokens, "sequences": fit.max_num_seqs(_responses_of_an_engine(recipe))}
    chosen = vars(plan) if plan else fit.UNKNOWN | unknown
    source = Source("hardware", "what fits the free memory of a GPU" if plan else "model or GPU is not known yet")
    settings: list[Setting] = []
    for name, key in fit.KEYS.items():
        value, is_pass = chosen[name], name in ("update_tokens", "forward_tokens")
        if recipe.value(key) is None and (not is_pass or _filled_by_tokens(recipe)):
            settings.append(Setting(key, max(value, longest) if is_pass else value, source))
    if rollout.cudagraph_capture_sizes is None and not rollout.enforce_eager:
        sizes = fit.graph_sizes(rollout.max_num_seqs or chosen["sequences"])
        source = Source("hardware", f"sizes up to {fit.KEYS['sequences']}")
        settings.append(Setting("worker.rollout.cudagraph_capture_sizes", sizes, source))
    return settings
