"""Values that follow from other keys."""

from __future__ import annotations

from typing import Any

from recipes.config import machine, memory
from recipes.config.layers import Source
from recipes.config.paths import local_model
from recipes.config.schema import Recipe, leaves
from recipes.paths import ROOT

EXPERIMENT = "{experiment_name}"
"""Stands for the experiment's name in trainer.save_checkpoint_path."""

NO_KL = "algorithm.disable_kl"
MINI, WHOLE = "worker.actor.global_batch_size", "data.rollout_batch_size"
MICRO = {
    "worker.actor.micro_batch_size_per_device_for_update": (MINI, 4),
    "worker.actor.micro_batch_size_per_device_for_experience": (WHOLE, 8),
}
"""Micro-batch -> (the prompts that it divides, the most responses that null stands for)."""


def fill(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Put values where a recipe's file has null, or a name's place; changes both mappings."""

    def found(key: str) -> Any:
        return values.get(key, leaves(Recipe)[key].default)

    def follow(key: str, value: Any, leaders: str) -> None:
        null = sources[key]
        values[key], sources[key] = value, Source(null.layer, f"{null}, where null follows {leaders}", leaders)

    _without_kl(values, sources)
    if MINI in values and values[MINI] is None:
        follow(MINI, found(WHOLE), WHOLE)
    # verl fills its passes by tokens there, so that nothing has to divide; EasyR1 divides all the same.
    undivided = found("engine") == "verl" and found("worker.actor.dynamic_batching") is True
    for key, (batch, most) in MICRO.items():
        if key in values and values[key] is None:
            numbers = [found(name) for name in (batch, "worker.rollout.n", *_RANKS)]
            share = _share(*numbers) if all(type(number) is int for number in numbers) else 1
            divisor = max(size for size in range(1, most + 1) if share % size == 0)
            follow(key, most if undivided else divisor, batch)
    if values.get("hardware") == "gpu":
        _for_gpus(values, sources)
    path = values.get("trainer.save_checkpoint_path")
    if isinstance(path, str):
        name = values.get("trainer.experiment_name") or values["name"]
        values["trainer.save_checkpoint_path"] = path.replace(EXPERIMENT, str(name))


def _without_kl(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Who asks for no KL in this run means it, wherever a file has it; what else the user asks for, the checks see."""
    if values.get(NO_KL) is not True or not sources[NO_KL].by_user:
        return
    for key, none in (("algorithm.use_kl_loss", False), ("algorithm.use_kl_in_reward", None)):
        if values.get(key) is True and not sources[key].by_user:
            values[key] = none
            sources[key] = Source(sources[NO_KL].layer, f"{sources[NO_KL]}, which wins over {sources[key]}")


_RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node", "worker.actor.ulysses_size")


def _share(prompts: int, n: int, nodes: int, gpus: int, ulysses: int) -> int:
    """Responses of one GPU; 1 where they do not divide, which the checks then explain."""
    ranks = max(1, nodes * gpus // max(1, ulysses))
    return prompts * n // ranks if prompts * n % ranks == 0 else 1


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
FUSED_WIDTH = 128
"""verl/utils/kernel/kernels.py:596."""
_MAY_BE_LESS = ("worker.actor.fsdp.fsdp_size", "worker.rollout.limit_images", "worker.actor.model.lora.rank")
_SIZES = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "worker.rollout.tensor_parallel_size",
    WHOLE,
    "worker.rollout.n",
    "data.max_prompt_length",
    "data.max_response_length",
    "worker.actor.ulysses_size",
    *_MAY_BE_LESS,
)


def _for_gpus(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Fill in what the size of model and GPU decides: tokens of a pass, recomputation, what vLLM decodes at once."""

    def found(key: str) -> Any:
        return values.get(key, leaves(Recipe)[key].default)

    def put(key: str, value: Any, why: str) -> None:
        values[key], sources[key] = value, Source("hardware", why)

    name = str(found("worker.actor.model.model_path") or "")
    folder = local_model(name) or local_model(str(ROOT / name))
    _keep_padding(values, sources, memory.model_type(folder))
    numbers = [found(key) for key in _SIZES]
    whole = all(
        type(number) is int and (number > 0 or key in _MAY_BE_LESS) for key, number in zip(_SIZES, numbers, strict=True)
    )
    nodes, gpus, tensor, prompts, n, prompt, response, ulysses, sharing, images, rank = (
        numbers if whole else [1] * len(_SIZES)
    )
    ranks = nodes * gpus
    if DECODING in values and values[DECODING] is None:
        responses = -(-prompts * n // max(1, ranks // tensor))
        put(DECODING, memory.decoding(responses), "a step's responses over vLLM's engines")
    if found(GRAPHS) is None and found("worker.rollout.enforce_eager") is False and type(found(DECODING)) is int:
        put(GRAPHS, memory.graph_sizes(found(DECODING)), f"sizes up to {DECODING}")
    model = memory.shape(folder)
    if found(FUSED) is True and model and model.hidden % FUSED_WIDTH:
        put(
            FUSED, False, f"verl's fused head takes hidden sizes that {FUSED_WIDTH} divides, and this is {model.hidden}"
        )
    asked = found(RECOMPUTE)
    packed = found("worker.actor.dynamic_batching") and found("worker.actor.padding_free")
    if not (whole and packed and found("engine") == "verl"):
        if asked is None:
            put(RECOMPUTE, True, "memory is foreseen with verl and packed responses only")
        return
    size = machine.gpu_memory()
    fits = memory.passes(
        model,
        size,
        ranks=sharing if sharing > 0 else ranks,
        longest=-(-(prompt + response) // ulysses),
        image_share=prompt / (prompt + response) if images else 0.0,
        networks=2 if found("algorithm.adv_estimator") == "gae" else 1,
        adapters=rank > 0,
        recompute=asked,
    )
    known = "what fits a GPU's memory" if model and size else "the model or the GPU's memory is not known yet"
    if asked is None:
        put(RECOMPUTE, fits.recompute, known)
    # Who states the number of responses of a pass means it.
    update, forward = MICRO
    for key, tokens, micro in ((UPDATE, fits.update, update), (FORWARD, fits.forward, forward)):
        if found(key) is None and not (micro in sources and sources[micro].by_user):
            given = key == FORWARD and found(UPDATE) is not None and sources[UPDATE].by_user
            put(key, found(UPDATE) if given else tokens, known)


def _keep_padding(values: dict[str, Any], sources: dict[str, Source], model_type: str | None) -> None:
    """Undo packing where the machine's defaults chose it and the model cannot be packed without flash-attn."""
    group = "worker.actor.model.override_config"
    if model_type is None or model_type in CAN_PACK or sources.get(group, _NOBODY).layer != "hardware":
        return
    if (values.get(group) or {}).get("attn_implementation") in (None, "sdpa"):
        return
    source = Source("hardware", f"{model_type} cannot be packed without flash-attn")
    for role in ("worker.actor", "worker.critic"):
        for name, value in WITHOUT_PACKING.items():
            if name == ATTENTION:
                values[f"{role}.model.override_config"] = {"attn_implementation": value}
                sources[f"{role}.model.override_config"] = source
            elif not sources.get(f"{role}.{name}", _NOBODY).by_user:
                values[f"{role}.{name}"], sources[f"{role}.{name}"] = value, source


_NOBODY = Source("default", "")

ACTOR, CRITIC = "worker.actor.", "worker.critic."
OF_ITS_OWN = ("optim.", "model.lora.", "model.model_path", "loss_avg_mode")
"""What a value network has for itself; its `model_path` is the actor's where none is given."""


def follow(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Fill in, with GAE, the keys of the critic that no layer set: batch sizes, sharding, precision, offloading."""
    if values.get("algorithm.adv_estimator") != "gae":
        return
    for path in leaves(Recipe):
        name = path.removeprefix(CRITIC)
        leader = f"{ACTOR}{name}"
        if name == path or name.startswith(OF_ITS_OWN) or path in sources or leader not in sources:
            continue
        values[path] = values[leader]
        sources[path] = Source("default", f"follows {leader}, from {sources[leader]}", sources[leader].follows)
