"""Keys that decide together: each rule reads a few keys of the recipe and gives a few of verl's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recipes.config.locate import split_function
from recipes.config.schema import Recipe
from recipes.errors import RecipeError

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
AGGREGATION = {"token": "token-mean", "seq": "seq-mean-token-mean"}
VERL_PRECISION = {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}

Rule = Callable[[Recipe], dict[str, Any]]
RULES: list[tuple[tuple[str, ...], Rule]] = []


def rule(*keys: str) -> Callable[[Rule], Rule]:
    """Register a rule with the keys that it translates; a trailing `*` stands for a whole group."""

    def register(function: Rule) -> Rule:
        RULES.append((keys, function))
        return function

    return register


def uses_critic(recipe: Recipe) -> bool:
    """Whether there is a value network."""
    return recipe.algorithm.adv_estimator == "gae"


def kl_places(recipe: Recipe) -> tuple[bool, bool]:
    """Where KL acts: (in the reward, in the loss)."""
    algorithm = recipe.algorithm
    if algorithm.disable_kl:
        return False, False
    chosen = algorithm.use_kl_in_reward
    return (not algorithm.use_kl_loss if chosen is None else chosen), algorithm.use_kl_loss


@rule(
    "algorithm.disable_kl",
    "algorithm.use_kl_loss",
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    "algorithm.kl_coef",
    "algorithm.kl_loss_coef",
    "algorithm.kl_loss_type",
)
def _kl(recipe: Recipe) -> dict[str, Any]:
    """verl applies a coefficient only where one of two switches is on, so both are always stated."""
    algorithm = recipe.algorithm
    in_reward, in_loss = kl_places(recipe)
    keys: dict[str, Any] = {"algorithm.use_kl_in_reward": in_reward, f"{ACTOR}.use_kl_loss": in_loss}
    if in_reward:
        keys["algorithm.kl_penalty"] = algorithm.kl_penalty
        keys["algorithm.kl_ctrl.kl_coef"] = algorithm.kl_coef
    if in_loss:
        coefficient = algorithm.kl_loss_coef
        keys[f"{ACTOR}.kl_loss_coef"] = algorithm.kl_coef if coefficient is None else coefficient
        keys[f"{ACTOR}.kl_loss_type"] = algorithm.kl_loss_type or algorithm.kl_penalty
    return keys


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


@rule(
    "worker.actor.loss_avg_mode",
    "worker.actor.loss_agg_mode",
    "worker.critic.loss_avg_mode",
)
def _averages(recipe: Recipe) -> dict[str, Any]:
    actor = recipe.worker.actor
    keys = {f"{ACTOR}.loss_agg_mode": actor.loss_agg_mode or AGGREGATION[actor.loss_avg_mode]}
    if uses_critic(recipe):
        keys["critic.loss_agg_mode"] = AGGREGATION[recipe.worker.critic.loss_avg_mode]
    return keys


@rule("worker.ref.strategy")
def _reference(recipe: Recipe) -> dict[str, Any]:
    """verl's reference follows the actor, unless the recipe says otherwise."""
    if recipe.source_of("worker.ref.strategy").layer == "default":
        return {}
    strategy = recipe.worker.ref.strategy
    return {f"{REF}.strategy": strategy, f"{REF}.fsdp_config.strategy": strategy}


@rule("worker.rollout.val_override_config.*")
def _validation(recipe: Recipe) -> dict[str, Any]:
    """In verl, validation is greedy unless sampling is asked for; in EasyR1 it samples as training does."""
    rollout, given = recipe.worker.rollout, recipe.worker.rollout.val_override_config
    temperature = rollout.temperature if given.temperature is None else given.temperature
    return {
        f"{ROLLOUT}.val_kwargs.temperature": temperature,
        f"{ROLLOUT}.val_kwargs.top_p": rollout.top_p if given.top_p is None else given.top_p,
        f"{ROLLOUT}.val_kwargs.top_k": rollout.top_k if given.top_k is None else given.top_k,
        f"{ROLLOUT}.val_kwargs.n": given.n,
        f"{ROLLOUT}.val_kwargs.do_sample": temperature > 0,
    }


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


@rule("worker.reward.reward_function")
def _reward(recipe: Recipe) -> dict[str, Any]:
    if recipe.worker.reward.reward_function is None:
        return {}
    path, name = split_function(recipe.worker.reward.reward_function)
    return {
        "reward.custom_reward_function.path": path,
        "reward.custom_reward_function.name": name or "compute_score",
    }


@rule("worker.reward.overlong_buffer.*")
def _overlong(recipe: Recipe) -> dict[str, Any]:
    """verl's DAPO reward manager holds the penalty; the naive one ignores it."""
    buffer = recipe.worker.reward.overlong_buffer
    if not buffer.enable:
        return {}
    place = "reward.reward_kwargs.overlong_buffer_cfg"
    return {
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs.max_resp_len": recipe.data.max_response_length,
        **{f"{place}.{name}": value for name, value in buffer.model_dump().items()},
    }


@rule("trainer.max_steps", "trainer.total_epochs")
def _duration(recipe: Recipe) -> dict[str, Any]:
    """verl stops at whichever ends first; here, as in EasyR1, max_steps alone decides. An epoch has a step at least."""
    steps, epochs = recipe.trainer.max_steps, recipe.trainer.total_epochs
    return {
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": epochs if steps is None else max(epochs, steps),
    }


@rule("trainer.max_try_make_batch")
def _tries(recipe: Recipe) -> dict[str, Any]:
    if not recipe.algorithm.online_filtering:
        return {}
    return {"algorithm.filter_groups.max_num_gen_batches": max(0, recipe.trainer.max_try_make_batch)}


@rule("trainer.save_model_only", "trainer.save_hf_model")
def _checkpoint(recipe: Recipe) -> dict[str, Any]:
    contents = ["model"] if recipe.trainer.save_model_only else ["model", "optimizer", "extra"]
    keys: dict[str, Any] = {}
    if uses_critic(recipe):
        keys["critic.checkpoint.save_contents"] = list(contents)
    if recipe.trainer.save_hf_model:
        contents.append("hf_model")
    return {**keys, f"{ACTOR}.checkpoint.save_contents": contents}


@rule("trainer.save_limit")
def _limit(recipe: Recipe) -> dict[str, Any]:
    limit = recipe.trainer.save_limit if recipe.trainer.save_limit >= 0 else None
    keys = {"trainer.max_actor_ckpt_to_keep": limit}
    return {**keys, "trainer.max_critic_ckpt_to_keep": limit} if uses_critic(recipe) else keys


@rule("trainer.load_checkpoint_path", "trainer.find_last_checkpoint")
def _resume(recipe: Recipe) -> dict[str, Any]:
    path = recipe.trainer.load_checkpoint_path
    if path is not None:
        return {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": path}
    return {"trainer.resume_mode": "auto" if recipe.trainer.find_last_checkpoint else "disable"}
