"""Models, sharding, precision and micro-batches."""

from __future__ import annotations

from typing import Any

from recipes.config.schema import Recipe
from recipes.engines.verl.rules.base import ACTOR, REF, ROLLOUT, rule, uses_critic
from recipes.errors import RecipeError

VERL_PRECISION = {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


@rule("data.min_pixels", "data.max_pixels")
def _pixels(recipe: Recipe) -> dict[str, Any]:
    """Only for prompts with images: text models know no such arguments."""
    if not recipe.worker.rollout.limit_images:
        return {}
    sizes = {"min_pixels": recipe.data.min_pixels, "max_pixels": recipe.data.max_pixels}
    return {f"data.mm_processor_kwargs.{name}": value for name, value in sizes.items() if value is not None}


@rule("worker.actor.model.model_path", "worker.critic.model.model_path")
def _models(recipe: Recipe) -> dict[str, Any]:
    actor = recipe.worker.actor.model.model_path
    keys = {"actor_rollout_ref.model.path": actor}
    if uses_critic(recipe):
        keys["critic.model.path"] = recipe.worker.critic.model.model_path or actor
    return keys


@rule("worker.actor.model.trust_remote_code", "worker.critic.model.trust_remote_code")
def _trust(recipe: Recipe) -> dict[str, Any]:
    actor = recipe.worker.actor.model.trust_remote_code
    keys = {"actor_rollout_ref.model.trust_remote_code": actor, "data.trust_remote_code": actor}
    if uses_critic(recipe):
        keys["critic.model.trust_remote_code"] = recipe.worker.critic.model.trust_remote_code
    return keys


@rule("worker.actor.optim.strategy", "worker.critic.optim.strategy")
def _optimiser(recipe: Recipe) -> dict[str, Any]:
    """AdamW of torch is verl's default; the schema lets nothing else through."""
    return {}


@rule("worker.actor.fsdp.*", "worker.ref.fsdp.*", "worker.critic.fsdp.*")
def _fsdp(recipe: Recipe) -> dict[str, Any]:
    """Offloading by FSDP, and precision; the group's other keys are renamed one by one."""
    roles = {"actor": f"{ACTOR}.fsdp_config", "ref": f"{REF}.fsdp_config"}
    if uses_critic(recipe):
        roles["critic"] = "critic.fsdp"
    keys: dict[str, Any] = {}
    for role, place in roles.items():
        fsdp = getattr(recipe.worker, role).fsdp
        if role != "ref":
            _require_fsdp2(recipe, role)
            keys[f"{place}.offload_policy"] = fsdp.enable_cpu_offload
        if fsdp.torch_dtype is not None:
            keys[f"{place}.model_dtype"] = fsdp.torch_dtype
        precision = {name: getattr(fsdp, f"mp_{name}") for name in VERL_PRECISION}
        if precision != VERL_PRECISION:
            keys |= {f"{place}.mixed_precision.{name}": value for name, value in precision.items()}
    return keys


def _require_fsdp2(recipe: Recipe, role: str) -> None:
    network = getattr(recipe.worker, role)
    if network.fsdp.enable_cpu_offload and network.strategy != "fsdp2":
        key = f"worker.{role}.fsdp.enable_cpu_offload"
        raise RecipeError(
            f"verl cannot do {key} with worker.{role}.strategy fsdp: gradients would be wrong when they accumulate",
            where=recipe.source_of(key).where,
            fix=f"set worker.{role}.strategy to fsdp2, or use worker.{role}.offload.offload_params",
        )


@rule(
    "worker.actor.dynamic_batching",
    "worker.actor.max_token_len_per_device",
)
def _actor_batches(recipe: Recipe) -> dict[str, Any]:
    """EasyR1 fills a micro-batch with as many tokens as its responses would have at full length."""
    actor = recipe.worker.actor
    keys: dict[str, Any] = {f"{ACTOR}.use_dynamic_bsz": actor.dynamic_batching}
    if actor.dynamic_batching:
        given = actor.max_token_len_per_device
        update = given or _tokens(recipe, actor.micro_batch_size_per_device_for_update, actor.ulysses_size)
        experience = given or _tokens(recipe, actor.micro_batch_size_per_device_for_experience, actor.ulysses_size)
        keys[f"{ACTOR}.ppo_max_token_len_per_gpu"] = update
        keys[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] = experience
        keys[f"{REF}.log_prob_max_token_len_per_gpu"] = experience
    return keys


@rule(
    "worker.critic.dynamic_batching",
    "worker.critic.max_token_len_per_device",
    "worker.critic.padding_free",
)
def _critic_batches(recipe: Recipe) -> dict[str, Any]:
    """verl's V1 trainer hands the critic's engine only a token budget; the rest has to be said to the engine itself."""
    if not uses_critic(recipe):
        return {}
    critic = recipe.worker.critic
    budget = critic.max_token_len_per_device
    tokens = budget or _tokens(recipe, critic.micro_batch_size_per_device_for_update, critic.ulysses_size)
    return {
        "critic.use_dynamic_bsz": critic.dynamic_batching,
        "critic.ppo_max_token_len_per_gpu": tokens,
        "critic.ppo_infer_max_token_len_per_gpu": tokens,
        "critic.model.use_remove_padding": critic.padding_free,
        "critic.fsdp.use_dynamic_bsz": critic.dynamic_batching,
        "critic.fsdp.use_remove_padding": critic.padding_free,
        "critic.fsdp.micro_batch_size_per_gpu": critic.micro_batch_size_per_device_for_update,
        "critic.fsdp.infer_micro_batch_size_per_gpu": critic.micro_batch_size_per_device_for_experience,
        "critic.fsdp.ulysses_sequence_parallel_size": critic.ulysses_size,
    }


def _tokens(recipe: Recipe, responses: int, ulysses: int) -> int:
    longest = recipe.data.max_prompt_length + recipe.data.max_response_length
    return -(-responses * longest // ulysses)


@rule("worker.ref.strategy")
def _reference(recipe: Recipe) -> dict[str, Any]:
    """verl's reference follows the actor, unless the recipe says otherwise."""
    if recipe.source_of("worker.ref.strategy").layer == "default":
        return {}
    strategy = recipe.worker.ref.strategy
    return {f"{REF}.strategy": strategy, f"{REF}.fsdp_config.strategy": strategy}


@rule("worker.rollout.max_model_len", "worker.rollout.load_format")
def _engine(recipe: Recipe) -> dict[str, Any]:
    """verl leaves the length to the model's maximum, for which vLLM would reserve cache.

    Random first weights are harmless where every weight is sent before the first use. LoRA sends adapters only, and
    vLLM 0.28 keeps the normalisation of images in buffers that are never sent: the rollout would be blind.
    """
    rollout = recipe.worker.rollout
    longest = recipe.data.max_prompt_length + recipe.data.max_response_length
    needs_weights = recipe.worker.actor.model.lora.rank > 0 or rollout.limit_images > 0
    chosen = "safetensors" if needs_weights else "dummy"
    return {
        f"{ROLLOUT}.max_model_len": rollout.max_model_len or longest,
        f"{ROLLOUT}.load_format": chosen if rollout.load_format == "auto" else rollout.load_format,
    }
