"""A recipe as the arguments, command and environment of verl's trainer."""

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.config import objective
from recipes.config.checks import require_supported
from recipes.config.gpus import FUSED_WIDTH, model_shape
from recipes.config.names import REWARD, native, verl_defaults
from recipes.config.rewards import reward_call
from recipes.config.schema import LAUNCHERS, Recipe, Source, leaves, verl_loss
from recipes.engines.checkpoints import numbers_variable
from recipes.engines.cpu import settings
from recipes.engines.loggers import logger_environment
from recipes.engines.verl import tools
from recipes.errors import RecipeError
from recipes.paths import run_dir
from recipes.settings import flatten, require_resolved

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
EXTERNAL = "actor_rollout_ref.model.external_lib"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
RAY_INIT = "ray_kwargs.ray_init"
# Defined here, because the modules that use them import torch or verl.
VENDOR = "recipes"
"""Vendor name under which `engine.py` registers its engine class."""
ON_POLICY_PREFIX = "on_policy_"
"""Prefix of the names of the losses in `on_policy.py`."""


def translate(recipe: Recipe) -> dict[str, Any]:
    """verl's dotted keys. The CPU plug-in's keys override translated ones; keys below `verl` override both.

    What only EasyR1 can do is left out, since verl makes the warm start of its recipes. Raises RecipeError where verl
    cannot do what a key asks.
    """
    if recipe.engine == "verl":
        require_supported(recipe, "verl")
    keys = _renamed(recipe)
    parts = (_algorithm, _data, _kernels, _warmup, _precision, _batches, _rollout, _reward, _trainer)
    for part in (*parts, *((_old_log_probs, _sampler, _changes) if recipe.trainer.patches else ())):
        keys.update(part(recipe))
    keys = flatten(keys)
    if recipe.hardware == "cpu":
        keys.update(_of_plug_in(recipe))
    given = native(recipe)
    if keys.get(EXTERNAL) and given.get(EXTERNAL):
        theirs = given[EXTERNAL] if isinstance(given[EXTERNAL], list) else [given[EXTERNAL]]
        given[EXTERNAL] = [keys[EXTERNAL], *theirs]
    keys = {name: keys[name] for name in keys if not any(name.startswith(f"{group}.") for group in given)}
    return keys | given


def _of_plug_in(recipe: Recipe) -> dict[str, Any]:
    """The keys of the plug-in for CPUs that no variable or argument sets."""
    by_user = {name for name, (_, source) in _entries_said(recipe).items() if source.by_user}
    return {name: value for name, value in settings.keys(recipe).items() if name not in by_user}


def _entries_said(recipe: Recipe) -> dict[str, tuple[Any, Source]]:
    """The entries of the recipe's free mappings: verl's name -> value, and the layer that set it."""
    return {
        f"{leaf.info.verl[0]}.{name}": (value, recipe.source_of(path))
        for path, leaf in leaves(Recipe).items()
        if leaf.is_open and leaf.info.verl
        for name, value in flatten(recipe.value(path)).items()
    }


def trainer_mode(recipe: Recipe) -> str:
    """verl's trainer: `sync`, or the one that a key of verl's names (docs/ALGORITHMS.md, asynchronous trainers)."""
    return str(native(recipe).get("trainer.v1.trainer_mode", "sync"))


def _renamed(recipe: Recipe) -> dict[str, Any]:
    """The keys that verl has, under its names, values copied or converted to verl's form."""
    keys: dict[str, Any] = {}
    for path, leaf in leaves(Recipe).items():
        if leaf.info.computed or not leaf.info.verl or path in LAUNCHERS or not recipe.uses(path):
            continue
        value = recipe.value(path)
        if "verl" not in leaf.info.engines or (leaf.is_open and not value):
            continue
        keys |= dict.fromkeys(leaf.info.verl, leaf.info.convert(value) if leaf.info.convert else value)
    return keys


def _algorithm(recipe: Recipe) -> dict[str, Any]:
    """KL and loss averaging. verl applies a KL coefficient only if one of two switches is on, so both are set."""
    in_reward, in_loss = objective.kl_in_reward(recipe), objective.kl_in_loss(recipe)
    keys: dict[str, Any] = {
        "algorithm.use_kl_in_reward": in_reward is not None,
        f"{ACTOR}.use_kl_loss": in_loss is not None,
        f"{ACTOR}.loss_scale_factor": objective.constant_length(recipe),
    }
    if in_reward:
        keys["algorithm.kl_penalty"] = in_reward.estimator
        keys["algorithm.kl_ctrl.kl_coef"] = in_reward.coefficient
    if in_loss:
        keys[f"{ACTOR}.kl_loss_type"] = in_loss.estimator
        keys[f"{ACTOR}.kl_loss_coef"] = in_loss.coefficient
    if recipe.algorithm.online_filtering:
        # verl's replay buffer samples without a limit; ours stops after max_try_make_batch batches.
        keys["algorithm.filter_groups.max_num_gen_batches"] = max(0, recipe.trainer.max_try_make_batch)
    return keys


def _old_log_probs(recipe: Recipe) -> dict[str, Any]:
    """The keys that skip the pass for old log-probabilities: the losses of `on_policy.py` use the current ones.

    With `recompute_old_log_probs` null the pass is skipped where the update's log-probabilities can replace it. verl's
    asynchronous trainers, whose responses are of older weights, always keep it.
    """
    actor, recompute = recipe.worker.actor, recipe.worker.actor.recompute_old_log_probs
    if recompute is None:
        by_verls_name = any(name.startswith(("algorithm.rollout_correction", LOSS)) for name in native(recipe))
        recompute = by_verls_name or not objective.update_suffices(recipe)
    if recompute or trainer_mode(recipe) != "sync":
        return {}
    return {
        "algorithm.rollout_correction.bypass_mode": True,
        LOSS: ON_POLICY_PREFIX + verl_loss(actor.loss_type),
        f"{ACTOR}.calculate_entropy": True,
    }


def _kernels(recipe: Recipe) -> dict[str, Any]:
    """The fused head, in Triton if its kernel takes the model's hidden size, else in PyTorch; and fused Adam."""
    keys: dict[str, Any] = {}
    if recipe.worker.actor.use_fused_kernels:
        model = model_shape(recipe.worker.actor.model.model_path)
        kernel = "torch" if model and model.hidden % FUSED_WIDTH else "triton"
        keys["actor_rollout_ref.model.fused_kernel_options.impl_backend"] = kernel
    if recipe.worker.actor.optim.fused:
        keys[f"{ACTOR}.optim.override_optimizer_config.fused"] = True
    return keys


def _warmup(recipe: Recipe) -> dict[str, Any]:
    """No share of a warm-up beside 0 steps of it, for which verl would take the share."""
    return {f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0} if recipe.worker.actor.optim.lr_warmup_steps == 0 else {}


def _changes(recipe: Recipe) -> dict[str, Any]:
    """The agent loops, and on GPUs the module that registers the engine; the plug-in for CPUs names its own."""
    keys = {f"{ROLLOUT}.agent.agent_loop_manager_class": "recipes.engines.verl.agent_loops.AgentLoops"}
    if recipe.worker.rollout.tools:
        keys[f"{ROLLOUT}.multi_turn.function_tool_path"] = str(Path(__file__).with_name("given_tools.py"))
        keys[f"{ROLLOUT}.agent.default_agent_loop"] = "tool_agent"
    return keys | ({EXTERNAL: "recipes.engines.verl.engine"} if recipe.hardware == "gpu" else {})


def notes(recipe: Recipe) -> list[str]:
    """Notes on what the plug-in for CPUs replaces, on another trainer of verl's, and on unchanged verl."""
    if recipe.engine != "verl":
        return []
    said, plug_in = _entries_said(recipe), _of_plug_in(recipe) if recipe.hardware == "cpu" else {}
    lines = [
        f"the plug-in for CPUs replaces {name} {said[name][0]} ({said[name][1]}) by {value}"
        for name, value in plug_in.items()
        if name in said and said[name][0] != value
    ]
    if (mode := trainer_mode(recipe)) != "sync":
        lines.append(
            f"trainer.v1.trainer_mode={mode} is another trainer of verl's: its dumps name no rows, so that validations "
            "are not paired by question, and numbers that are NaN do not end it (trainer.stop_on_nan)"
        )
    if recipe.trainer.patches:
        return lines
    from recipes.engines.verl import upstream

    left = [each.apply.__name__ for each in upstream.CHANGES if not each.needed]
    lines.append(
        "RECIPES_PATCHES=0: verl as it is, every process started anew, without the registered engine, its own sampler "
        f"and {', '.join(left)} (docs/ARCHITECTURE.md has what each is for)"
    )
    if recipe.worker.actor.model.lora.rank:
        lines.append("the saved model keeps its adapters apart, and neither vLLM nor an evaluation loads it")
    return lines


def _data(recipe: Recipe) -> dict[str, Any]:
    """Thinking, where it is set; image sizes, for prompts with images only: processors of text models reject them."""
    thinking = recipe.data.enable_thinking
    keys = {} if thinking is None else {"data.apply_chat_template_kwargs.enable_thinking": thinking}
    if not recipe.worker.rollout.limit_images:
        return keys
    sizes = {"min_pixels": recipe.data.min_pixels, "max_pixels": recipe.data.max_pixels}
    return keys | {f"data.mm_processor_kwargs.{name}": value for name, value in sizes.items() if value is not None}


def _precision(recipe: Recipe) -> dict[str, Any]:
    """Offloading and precision. Raises RecipeError for CPU offload with FSDP 1, which accumulates gradients wrongly."""
    actor, key = recipe.worker.actor, "worker.actor.fsdp.enable_cpu_offload"
    if actor.fsdp.enable_cpu_offload and actor.strategy != "fsdp2":
        what = f"verl cannot do {key} with worker.actor.strategy fsdp: gradients would be wrong when they accumulate"
        fix = "set worker.actor.strategy to fsdp2, or use worker.actor.offload.offload_params"
        raise RecipeError(what, where=recipe.source_of(key).where, fix=fix)
    # The actor's alone: verl always keeps a forward-only model in CPU memory.
    keys: dict[str, Any] = {f"{ACTOR}.fsdp_config.offload_policy": actor.fsdp.enable_cpu_offload}
    for place, fsdp in ((ACTOR, actor.fsdp), (REF, recipe.worker.ref.fsdp)):
        if fsdp.torch_dtype is not None:
            keys[f"{place}.fsdp_config.model_dtype"] = fsdp.torch_dtype
        if fsdp.mp_param_dtype != "bf16":  # verl's default
            precision = {"param_dtype": fsdp.mp_param_dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
            keys[f"{place}.fsdp_config.mixed_precision"] = precision
    return keys


def _batches(recipe: Recipe) -> dict[str, Any]:
    """The token budgets of micro-batches; by default the micro-batch size times the longest sequence.

    `memory_filled` (config/gpus.py) sets the budget of packed passes on GPUs; micro-batch sizes set the others.
    """
    actor = recipe.worker.actor

    def tokens(responses: int | None) -> int:
        return actor.max_token_len_per_device or -(-require_resolved(responses) * recipe.longest // actor.ulysses_size)

    if not actor.dynamic_batching:
        return {}
    experience = actor.max_token_len_per_device_for_experience
    experience = experience or tokens(actor.micro_batch_size_per_device_for_experience)
    return {
        f"{ACTOR}.ppo_max_token_len_per_gpu": tokens(actor.micro_batch_size_per_device_for_update),
        **dict.fromkeys([f"{place}.log_prob_max_token_len_per_gpu" for place in (ROLLOUT, REF)], experience),
    }


def _rollout(recipe: Recipe) -> dict[str, Any]:
    """vLLM's maximum length and initial weights, and sampling in validation.

    By default verl takes the model's maximum length, and vLLM would reserve cache for it. vLLM starts from random
    weights where the trainer sends every weight before the first use: not with LoRA, where it sends adapters only, nor
    with images, for which vLLM 0.28 keeps the normalisation in buffers that are never sent. verl's validation is greedy
    unless sampling is set; EasyR1's validation samples as training does.
    """
    reads_weights = recipe.worker.actor.model.lora.rank > 0 or recipe.worker.rollout.limit_images > 0
    rollout, given = recipe.worker.rollout, recipe.worker.rollout.val_override_config
    sampling = {
        name: getattr(rollout, name) if getattr(given, name) is None else getattr(given, name)
        for name in ("temperature", "top_p", "top_k")
    }
    return {
        f"{ROLLOUT}.max_model_len": recipe.longest,
        f"{ROLLOUT}.load_format": "safetensors" if reads_weights else "dummy",
        f"{ROLLOUT}.val_kwargs": {**sampling, "do_sample": sampling["temperature"] > 0},
    }


DAPO_SHARE = 5
"""DAPO's buffer is a fifth of the longest response: 4,096 of 20,480 tokens (arXiv:2503.14476, section 4.1)."""


def _reward(recipe: Recipe) -> dict[str, Any]:
    """The reward function, and the length penalty, which only verl's DAPO reward manager implements."""
    overlong, response = recipe.worker.reward.overlong_buffer, recipe.data.max_response_length
    keys: dict[str, Any] = {
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": "CheckedRewardManager",
        "reward.reward_manager.module.path": "pkg://recipes.rewards.verl",
    }
    if call := reward_call(recipe):
        keys[f"{REWARD}.path"] = "pkg://recipes.rewards.verl"  # calls a reward of any form
        keys[f"{REWARD}.name"] = "compute_score"
        keys[f"{REWARD}.reward_kwargs"] = {"path": call[0], "arguments": call[1]}
    if overlong.enable:
        length = overlong.len or max(1, response // DAPO_SHARE)
        keys |= {
            "reward.reward_manager.name": "CheckedDapoRewardManager",
            "reward.reward_kwargs.max_resp_len": response,
            "reward.reward_kwargs.overlong_buffer_cfg": {**overlong.model_dump(), "log": True, "len": length},
        }
    return keys


def _sampler(recipe: Recipe) -> dict[str, Any]:
    """The replay buffer of `samplers.py` with the arguments of verl's own; asynchronous trainers keep verl's."""
    place = "trainer.v1.sampler"
    if trainer_mode(recipe) != "sync" or f"{place}.custom_sampler.path" in native(recipe):
        return {}
    return {
        f"{place}.custom_sampler.path": "pkg://recipes.engines.verl.samplers",
        f"{place}.custom_sampler.name": "BoundedReplayBuffer",
        f"{place}.sampler_kwargs.filter_groups": "${algorithm.filter_groups}",
        f"{place}.sampler_kwargs.train_batch_size": "${data.train_batch_size}",
        f"{place}.sampler_kwargs.gen_batch_size": "${oc.select:data.gen_batch_size,null}",
        f"{place}.sampler_kwargs.sync_refill_failed_groups": "${trainer.v1.sampler.sync_refill_failed_groups}",
    }


def _trainer(recipe: Recipe) -> dict[str, Any]:
    """Length of the run, contents and number of the checkpoints, and where the run resumes.

    verl stops at max_steps or total_epochs, whichever comes first; here, as in EasyR1, max_steps decides if set. An
    epoch has at least one step, so max_steps epochs are always enough.
    """
    trainer = recipe.trainer
    contents = ["model"] if trainer.save_model_only else ["model", "optimizer", "extra"]
    keys: dict[str, Any] = {
        "trainer.total_epochs": max(trainer.total_epochs, trainer.max_steps or 0),
        f"{ACTOR}.checkpoint.save_contents": [*contents, *(["hf_model"] if trainer.save_hf_model else [])],
        "trainer.max_actor_ckpt_to_keep": trainer.save_limit if trainer.save_limit >= 0 else None,
        f"{RAY_INIT}.include_dashboard": False,  # on a machine with GPUs it made the start 50 s longer
    }
    if saves_adapters_alone(recipe):
        keys[f"{ACTOR}.checkpoint.save_lora_only"] = True
    if trainer.save_freq > 0:
        keys["trainer.checkpoint_callback_class"] = "recipes.engines.verl.trainer.EndInOrder"
    if trainer.load_checkpoint_path is not None:
        return keys | {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": trainer.load_checkpoint_path}
    return keys | {"trainer.resume_mode": "auto" if trainer.find_last_checkpoint else "disable"}


def saves_adapters_alone(recipe: Recipe) -> bool:
    """Return whether a checkpoint's shards have the adapters alone; a resumed run reads the base model's folder again.

    Without `save_hf_model` the shards have all weights, so that verl's own tool can merge them.
    """
    return bool(recipe.worker.actor.model.lora.rank) and recipe.trainer.save_hf_model


_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.\-]*")
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_LITERALS = ("null", "true", "false", "nan", "inf")


def overrides(recipe: Recipe) -> list[str]:
    """verl's command-line arguments. Keys at verl's own default are left out, except those given below `verl`.

    Raises RecipeError where verl is not installed, since its configuration decides what has to be added.
    """
    known = verl_defaults()
    if not known:
        fix = "run bash scripts/setup_env.sh, or activate an environment that has verl"
        raise RecipeError("verl is not installed in this environment", where="import verl", fix=fix)
    asked = native(recipe).keys() | _entries_said(recipe).keys()
    return [
        override(name, value, name in known)
        for name, value in sorted(translate(recipe).items())
        if name in asked or name.startswith(f"{REWARD}.reward_kwargs.") or not equal(known.get(name), value)
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
    if _PLAIN.fullmatch(text) and text.lower() not in _LITERALS:
        return text
    # Hydra reads a backslash as an escape only before a quote, and at the end of the text.
    escaped = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal: 1 equals 1.0, but true does not equal 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def command(recipe: Recipe) -> list[str]:
    """The argument vector that starts verl's trainer, with this Python."""
    folder = run_dir(recipe.experiment)
    # Hydra would make a dated folder and a log of its own in the working folder.
    hydra = [f"hydra.run.dir={quoted(str(folder))}", "hydra.output_subdir=null", "hydra/job_logging=stdout"]
    module = "recipes.engines.start.main" if recipe.trainer.patches else "verl.trainer.main_ppo"
    return [sys.executable, "-m", module, *overrides(recipe), *hydra]


COMPILE_CACHE_OFF = "VLLM_DISABLE_COMPILE_CACHE"


def compile_caches(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep the compile caches of PyTorch, Triton and vLLM from run to run.

    By default PyTorch's cache is in /tmp, until a reboot, and Triton's in one of two folders, depending on which
    process compiles first. vLLM's processes keep Triton's kernels in vLLM's folder. verl turns vLLM's cache off
    (verl/trainer/constants_ppo.py:93 (`VLLM_DISABLE_COMPILE_CACHE`)), since engines that wrote to it at the same time
    could corrupt it; torch writes it atomically now (pytorch/pytorch#162432). Each version and model has its own files.
    """
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    compiled = Path(environ.get("VLLM_CACHE_ROOT") or home / "vllm")
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(home / "torch" / "inductor"), "TRITON_CACHE_DIR": str(home / "triton")}
    return {**(folders if _can_write(home) else {}), COMPILE_CACHE_OFF: "0" if _can_write(compiled) else "1"}


def _can_write(folder: Path) -> bool:
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def environment(recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that the trainer needs besides those it inherits."""
    variables = {
        "HYDRA_FULL_ERROR": "1",
        **numbers_variable(recipe.trainer.stop_on_nan, recipe.worker.actor.fsdp.mp_param_dtype == "fp16"),
        **({} if recipe.trainer.patches else {"RECIPES_PATCHES": "0"}),
        **tools.environment(recipe),
        **logger_environment(list(recipe.trainer.logger), run_dir(recipe.experiment), environ),
    }
    if recipe.hardware == "cpu":
        return variables | settings.environment(recipe, environ)
    # The logging level is verl's own; vLLM reads it once, at import.
    defaults = {"VLLM_LOGGING_LEVEL": "WARN", **compile_caches(environ)}
    if recipe.trainer.patches:
        defaults["VERL_ENGINE_VENDOR"] = VENDOR  # set here, since a forked process has its parent's variables
    if importlib.util.find_spec("flashinfer") is None:
        defaults["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    return variables | {name: environ.get(name, value) for name, value in defaults.items()}
