"""verl's own keys read as the schema's: the reverse of `recipes.engines.verl.translate`, for official examples.

Keys that the translation only renames are turned round by the schema itself; the tables here hold the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from recipes.config.schema import Recipe, leaves
from recipes.config.verl_defaults import same_in_schema

Values = Mapping[str, Any]
Read = tuple[tuple[str, ...], Callable[[Values], Any]]

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
IN_REWARD, IN_LOSS = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
REWARD_COEF, LOSS_COEF = "algorithm.kl_ctrl.kl_coef", f"{ACTOR}.kl_loss_coef"
REWARD_TYPE, LOSS_TYPE = "algorithm.kl_penalty", f"{ACTOR}.kl_loss_type"
CONTENTS = f"{ACTOR}.checkpoint.save_contents"

_PRECISION = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LOSSES = {"vanilla": "default", "gspo": "gspo_token"}
INVERSES: dict[str, Callable[[Any], Any]] = {
    "comma_list": lambda value: ",".join(value) if isinstance(value, list) else value,
    "dtype": lambda value: _PRECISION.get(value, value),
    "file_list": lambda value: value[0] if isinstance(value, list) and len(value) == 1 else value,
    "file_text": lambda value: value,
    "filter_key": lambda value: "overall" if value == "reward" else value,
    "loss_type": lambda value: _LOSSES.get(value, value),
    "minus_one_if_null": lambda value: None if value == -1 else value,
    "null_if_negative": lambda value: -1 if value is None else value,
    "null_if_zero": lambda value: value or 0,
    "prompt_key": lambda value: value,
    "zero_if_null": lambda value: value or None,
}
"""By `via` of the schema: what undoes the converter of that name."""


def _kl(in_loss: str, in_reward: str) -> Read:
    """The value that acts: the loss's where KL is in the loss, the reward's otherwise."""
    return (in_loss, in_reward), lambda v: v.get(in_loss) if v.get(IN_LOSS) else v.get(in_reward)


def _average(values: Values) -> str:
    return "token" if values.get(f"{ACTOR}.loss_agg_mode", "token-mean").startswith("token") else "seq"


RULES: dict[str, Read] = {
    "algorithm.disable_kl": ((IN_REWARD, IN_LOSS), lambda v: not (v.get(IN_REWARD) or v.get(IN_LOSS))),
    "algorithm.use_kl_in_reward": ((IN_REWARD,), lambda v: v.get(IN_REWARD)),
    "algorithm.kl_coef": _kl(LOSS_COEF, REWARD_COEF),
    "algorithm.kl_penalty": _kl(LOSS_TYPE, REWARD_TYPE),
    "data.min_pixels": (("data.mm_processor_kwargs.min_pixels",), lambda v: v["data.mm_processor_kwargs.min_pixels"]),
    "data.max_pixels": (("data.mm_processor_kwargs.max_pixels",), lambda v: v["data.mm_processor_kwargs.max_pixels"]),
    "worker.actor.dynamic_batching": ((f"{ACTOR}.use_dynamic_bsz",), lambda v: v[f"{ACTOR}.use_dynamic_bsz"]),
    "worker.actor.max_token_len_per_device": (
        (f"{ACTOR}.ppo_max_token_len_per_gpu",),
        lambda v: v[f"{ACTOR}.ppo_max_token_len_per_gpu"] if v.get(f"{ACTOR}.use_dynamic_bsz") else None,
    ),
    "worker.actor.loss_avg_mode": ((f"{ACTOR}.loss_agg_mode",), _average),
    "worker.actor.fsdp.enable_cpu_offload": (
        (f"{ACTOR}.fsdp_config.offload_policy",),
        lambda v: v[f"{ACTOR}.fsdp_config.offload_policy"],
    ),
    "worker.rollout.max_model_len": ((f"{ROLLOUT}.max_model_len",), lambda v: v[f"{ROLLOUT}.max_model_len"]),
    "worker.rollout.load_format": ((f"{ROLLOUT}.load_format",), lambda v: v[f"{ROLLOUT}.load_format"]),
    "worker.reward.reward_function": (("custom_reward_function.path",), lambda v: v["custom_reward_function.path"]),
    "trainer.save_limit": (
        ("trainer.max_actor_ckpt_to_keep",),
        lambda v: -1 if v["trainer.max_actor_ckpt_to_keep"] is None else v["trainer.max_actor_ckpt_to_keep"],
    ),
    "trainer.save_model_only": ((CONTENTS,), lambda v: "optimizer" not in v[CONTENTS]),
    "trainer.save_hf_model": ((CONTENTS,), lambda v: "hf_model" in v[CONTENTS]),
    "trainer.find_last_checkpoint": (("trainer.resume_mode",), lambda v: v["trainer.resume_mode"] == "auto"),
    "trainer.load_checkpoint_path": (("trainer.resume_from_path",), lambda v: v["trainer.resume_from_path"]),
}
"""Key of the schema -> verl's keys that decide it, and how they do."""

SUPERSEDED = ("algorithm.kl_loss_coef", "algorithm.kl_loss_type", "worker.actor.loss_agg_mode")
"""Keys of the schema whose value another key of this table already tells."""

OUTSIDE = {
    "actor_rollout_ref.model.use_fused_kernels": "a choice of kernels; the values do not change",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "follows from the actor's micro-batches here",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": "follows from worker.actor.dynamic_batching here",
    "actor_rollout_ref.ref.use_torch_compile": "the reference follows the actor",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache": "an argument of one vLLM version",
    "actor_rollout_ref.rollout.layered_summon": "sends weights layer by layer, to save memory",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": "follows from the actor's micro-batches here",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": "follows from worker.actor.dynamic_batching here",
    "data.truncation": "error is the default; overlong prompts are filtered out before",
}
"""verl's keys in official launchers that the schema has no counterpart for, and why."""


@cache
def reads() -> dict[str, Read]:
    """Every key of the schema that verl's keys tell, with the names to read and how."""
    table: dict[str, Read] = {
        path: ((name,), _same(name)) for name, path in same_in_schema().items() if path not in SUPERSEDED
    }
    for path, leaf in leaves(Recipe).items():
        undo = INVERSES.get(leaf.info.via)
        if undo is not None and leaf.info.verl:
            table[path] = ((leaf.info.verl[0],), _undone(leaf.info.verl[0], undo))
    return {**table, **RULES}


def _same(name: str) -> Callable[[Values], Any]:
    return lambda values: values[name]


def _undone(name: str, undo: Callable[[Any], Any]) -> Callable[[Values], Any]:
    return lambda values: undo(values[name])


@cache
def _read_names() -> frozenset[str]:
    return frozenset(name for names, _ in reads().values() for name in names)


def has_counterpart(name: str) -> bool:
    """Whether one of verl's keys says something that the schema can say."""
    return name in _read_names()


def repeats(name: str, values: Values) -> bool:
    """Whether a key is a further name of one that `values` holds with the same value, such as the reference's batch."""
    for leaf in leaves(Recipe).values():
        if name in leaf.info.verl[1:]:
            return leaf.info.verl[0] in values and values[leaf.info.verl[0]] == values[name]
    return False


def to_schema(values: Values) -> dict[str, Any]:
    """The schema's keys and values that a set of verl's keys amounts to."""
    return {path: read(values) for path, (names, read) in reads().items() if any(name in values for name in names)}


def told_by(names: set[str]) -> set[str]:
    """The schema's keys that at least one of verl's `names` decides."""
    return {path for path, (read, _) in reads().items() if names & set(read)}
