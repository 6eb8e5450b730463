"""A recipe as the arguments, command and environment of verl's trainer."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recipes.config import verl_names
from recipes.config.kl import AVERAGES, CONSTANT_LENGTH, kl_places
from recipes.config.layers import Source, flatten
from recipes.config.machine import wandb_environment
from recipes.config.paths import split_function
from recipes.config.schema import Recipe, leaves
from recipes.engines.support import OWN, is_used, require_supported, sampler
from recipes.errors import RecipeError
from recipes.paths import run_dir

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Names of the policy losses: verl's gspo is the token form that EasyR1 calls gspo_token; with one advantage per
# response, as in GRPO, both forms have the same gradient (arXiv:2507.18071, section 4.3).
_LOSSES = {"default": "vanilla", "gspo_token": "gspo"}


def _file_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _file_text(path: str | None) -> str | None:
    """The text of a file, since verl wants the template itself. Raises RecipeError where it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(
            f"cannot read the chat template: {error.strerror}", where=f"data.override_chat_template: {path}"
        ) from error


def _comma_list(value: str) -> Any:
    names = [name.strip() for name in value.split(",") if name.strip()]
    return names if len(names) > 1 else value.strip()


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "": lambda value: value,
    "comma_list": _comma_list,
    "dtype": lambda value: _DTYPES[value],
    "file_list": _file_list,
    "file_text": _file_text,
    "filter_key": lambda value: "reward" if value == "overall" else value,
    "loss_type": lambda value: _LOSSES.get(value, value),
    "minus_one_if_null": lambda value: -1 if value is None else value,
    "null_if_negative": lambda value: None if value < 0 else value,
    "null_if_zero": lambda value: value or None,
    "prompt_key": lambda value: value or "prompt",
    "zero_if_null": lambda value: 0.0 if value is None else value,
}


ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"

PREFIX = "on_policy_"
"""Of the losses in `on_policy.py`, which this module must not import: it would import torch."""

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


DAPO_SHARE = 5
"""DAPO's buffer is a fifth of the longest response: 4,096 of 20,480 tokens (arXiv:2503.14476, section 4.1)."""


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


@rule(
    "worker.actor.loss_avg_mode",
    "worker.actor.loss_agg_mode",
    "worker.actor.loss_scale_factor",
    "worker.critic.loss_avg_mode",
)
def _averages(recipe: Recipe) -> dict[str, Any]:
    """Without a constant, verl divides by the longest response of a micro-batch, which is another one every time."""
    actor = recipe.worker.actor
    mode, constant = actor.loss_agg_mode or AVERAGES[actor.loss_avg_mode], actor.loss_scale_factor
    if mode == CONSTANT_LENGTH:
        constant = constant or recipe.data.max_response_length
    keys = {f"{ACTOR}.loss_agg_mode": mode, f"{ACTOR}.loss_scale_factor": constant}
    if uses_critic(recipe):
        keys["critic.loss_agg_mode"] = AVERAGES[recipe.worker.critic.loss_avg_mode]
    return keys


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


@rule("worker.reward.reward_function")
def _reward(recipe: Recipe) -> dict[str, Any]:
    if recipe.worker.reward.reward_function is None:
        return {}
    path, name = split_function(recipe.worker.reward.reward_function)
    return {
        "reward.custom_reward_function.path": path,
        "reward.custom_reward_function.name": name or "compute_score",
    }


def overlong_tokens(recipe: Recipe) -> int:
    """Tokens before the limit in which the penalty on length grows."""
    return recipe.worker.reward.overlong_buffer.len or max(1, recipe.data.max_response_length // DAPO_SHARE)


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
        f"{place}.len": overlong_tokens(recipe),
    }


@rule("trainer.max_try_make_batch")
def _tries(recipe: Recipe) -> dict[str, Any]:
    """verl's own buffer has no bound; ours has, and is used where there is one to keep."""
    most = max(0, recipe.trainer.max_try_make_batch)
    if not recipe.algorithm.online_filtering:
        return {}
    bounded = sampler("recipes.engines.samplers", "BoundedReplayBuffer") if most else {}
    return {"algorithm.filter_groups.max_num_gen_batches": most, **bounded}


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
    "worker.actor.max_token_len_per_device_for_experience",
)
def _actor_batches(recipe: Recipe) -> dict[str, Any]:
    """EasyR1 fills a micro-batch with as many tokens as its responses would have at full length."""
    actor = recipe.worker.actor
    keys: dict[str, Any] = {f"{ACTOR}.use_dynamic_bsz": actor.dynamic_batching}
    if actor.dynamic_batching:
        given = actor.max_token_len_per_device
        update = given or _tokens(recipe, actor.micro_batch_size_per_device_for_update, actor.ulysses_size)
        experience = actor.max_token_len_per_device_for_experience or given
        experience = experience or _tokens(recipe, actor.micro_batch_size_per_device_for_experience, actor.ulysses_size)
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


EXTENSIONS = "recipes.engines.extensions"


@rule("worker.actor.use_fused_kernels")
def _kernels(recipe: Recipe) -> dict[str, Any]:
    """What makes GPUs fast; of verl's backends Triton's is the one that never has the logits in memory."""
    fused = recipe.worker.actor.use_fused_kernels
    keys: dict[str, Any] = {"actor_rollout_ref.model.use_fused_kernels": fused}
    if fused:
        keys["actor_rollout_ref.model.fused_kernel_options.impl_backend"] = "triton"
    if recipe.hardware == "gpu":
        keys["actor_rollout_ref.model.external_lib"] = EXTENSIONS
        if uses_critic(recipe):
            keys["critic.model.external_lib"] = EXTENSIONS
    return keys


def is_on_policy(recipe: Recipe) -> bool:
    """Whether a step has one update over all its responses, once."""
    return (
        recipe.worker.actor.global_batch_size == recipe.data.rollout_batch_size and recipe.worker.actor.ppo_epochs == 1
    )


@rule("worker.actor.recompute_old_log_probs")
def _old_log_probs(recipe: Recipe) -> dict[str, Any]:
    """Without the pass before the update, our losses take the current log-probabilities (`on_policy.py`).

    A KL in the reward then comes from vLLM's log-probabilities, which are the policy's where it samples from all of it.
    """
    actor, rollout = recipe.worker.actor, recipe.worker.rollout
    samples_all = rollout.top_p == 1 and rollout.top_k == -1
    possible = is_on_policy(recipe) and rollout.calculate_log_probs and (samples_all or not kl_places(recipe)[0])
    native = any(name.lstrip("+").startswith("algorithm.rollout_correction") for name in recipe.verl)
    skipped = actor.recompute_old_log_probs is False
    if actor.recompute_old_log_probs is None:
        skipped = possible and not native
    if not skipped:
        return {}
    return {
        "algorithm.rollout_correction.bypass_mode": True,
        f"{ACTOR}.policy_loss.loss_mode": PREFIX + CONVERTERS["loss_type"](actor.loss_type),
        f"{ACTOR}.calculate_entropy": True,
    }


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


@rule("trainer.max_steps", "trainer.total_epochs")
def _duration(recipe: Recipe) -> dict[str, Any]:
    """verl stops at whichever ends first; here, as in EasyR1, max_steps alone decides. An epoch has a step at least."""
    steps, epochs = recipe.trainer.max_steps, recipe.trainer.total_epochs
    return {
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": epochs if steps is None else max(epochs, steps),
    }


@rule("trainer.save_model_only", "trainer.save_hf_model")
def _checkpoint(recipe: Recipe) -> dict[str, Any]:
    contents = ["model"] if recipe.trainer.save_model_only else ["model", "optimizer", "extra"]
    keys: dict[str, Any] = {}
    if uses_critic(recipe):
        keys["critic.checkpoint.save_contents"] = list(contents)
    if recipe.trainer.save_hf_model:
        contents.append("hf_model")
        keys["trainer.checkpoint_callback_class"] = "recipes.engines.checkpoint_callbacks.MergedModels"
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


def translate(recipe: Recipe) -> dict[str, Any]:
    """verl's dotted keys for the recipe: its own translation, then what CPUs need, then the keys below `verl`.

    Raises:
        RecipeError: a key that verl cannot do, or a key below `verl` that disagrees with its name in the recipe.
    """
    require_supported(recipe, "verl")
    keys = _renamed(recipe)
    for _, rule in RULES:
        keys.update(rule(recipe))
    keys = flatten(keys)
    _refuse_contradictions(recipe, keys)
    if recipe.hardware == "cpu":
        from recipes.engines.verl_cpu import settings

        needed = settings.keys(recipe)
        keys.update({name: needed[name] for name in needed if uses_critic(recipe) or not name.startswith("critic.")})
    keys.update(native(recipe))
    return keys


def native(recipe: Recipe) -> dict[str, Any]:
    """verl's own keys of the recipe, flat and without Hydra's plus."""
    return {name.lstrip("+"): value for name, value in flatten(recipe.verl).items()}


def _renamed(recipe: Recipe) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for path, leaf in leaves(Recipe).items():
        convert = CONVERTERS.get(leaf.info.via)
        if convert is None or not leaf.info.verl or path in OWN or not is_used(recipe, path):
            continue
        if leaf.info.not_on.get("verl") is not None:
            continue
        value = convert(recipe.value(path))
        for name in leaf.info.verl:
            if not (leaf.is_open and not value):
                keys[name] = value
    return keys


def _refuse_contradictions(recipe: Recipe, keys: dict[str, Any]) -> None:
    """A key below `verl` may replace a translation that an earlier layer made, and no other."""
    feeding: dict[str, list[str]] = {}
    for path, leaf in leaves(Recipe).items():
        for name in leaf.info.verl:
            feeding.setdefault(name, []).append(path)
    for name, value in recipe.verl.items():
        plain = name.lstrip("+")
        if plain not in keys or keys[plain] == value:
            continue
        source = recipe.source_of(f"verl.{name}")
        rivals = [path for path in feeding.get(plain, []) if _stands(recipe.source_of(path), source)]
        if rivals:
            raise RecipeError(
                f"{plain} is {value!r}, but {rivals[0]} makes it {keys[plain]!r}",
                where=f"{source.where}; {recipe.source_of(rivals[0]).where}",
                fix="set one of the two",
            )


def _stands(rival: Source, native: Source) -> bool:
    """Whether the recipe's own key was set as late as verl's, or by the user as well."""
    return rival.layer != "default" and (rival.rank >= native.rank or (rival.by_user and native.by_user))


_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.\-]*")
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_WORDS = ("null", "true", "false", "nan", "inf")


def overrides(recipe: Recipe) -> list[str]:
    """What verl's command line takes. Keys at verl's own default are left out, except those given below `verl`.

    Raises RecipeError where verl is not installed, since its configuration decides what has to be added.
    """
    known = verl_names.defaults()
    if not known:
        raise RecipeError(
            "verl is not installed in this environment",
            where="import verl",
            fix="run bash scripts/setup_env.sh, or activate an environment that has verl",
        )
    asked = native(recipe)
    return [
        override(name, value, name in known)
        for name, value in sorted(translate(recipe).items())
        if name in asked or not _same(known.get(name), value)
    ]


def override(name: str, value: Any, known: bool) -> str:
    """One override in Hydra's grammar."""
    if not _KEY.fullmatch(name):
        raise RecipeError(f"{name!r} cannot be written as a key of Hydra", where="command line of verl")
    return f"{'' if known else '+'}{name}={quoted(value)}"


def quoted(value: Any) -> str:
    """A value in Hydra's grammar, so that it is read back as the same value; `${...}` stays an interpolation."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(quoted(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{quoted(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # Hydra reads a backslash as an escape only before a quote, and at the end of the text.
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _same(default: Any, value: Any) -> bool:
    """Equal and of one type: 1 is not true, and 1.0 is 1."""
    if isinstance(default, bool) or isinstance(value, bool):
        return default is value
    return bool(default == value)


GPU_MAIN = "verl.trainer.main_ppo"
CPU_MAIN = "recipes.engines.verl_cpu.main"


def command(recipe: Recipe) -> list[str]:
    """The argument vector that starts verl's trainer, with this Python."""
    main = CPU_MAIN if recipe.hardware == "cpu" else GPU_MAIN
    return [sys.executable, "-m", main, *overrides(recipe), *_hydra(recipe)]


def _hydra(recipe: Recipe) -> list[str]:
    """Hydra would make a dated folder and a log of its own in the working folder."""
    folder = run_dir(recipe.trainer.experiment_name or recipe.name)
    return [f"hydra.run.dir={quoted(str(folder))}", "hydra.output_subdir=null", "hydra/job_logging=stdout"]


def environment(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that the trainer needs besides those it inherits."""
    variables = {"HYDRA_FULL_ERROR": "1", **wandb_environment(list(recipe.trainer.logger), environ)}
    if recipe.hardware == "cpu":
        from recipes.engines.verl_cpu import settings

        variables |= settings.environment(recipe)
    elif importlib.util.find_spec("flashinfer") is None:
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = environ.get("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return variables
