"""Checks for values that contradict each other, made before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from recipes.config import effects, objective, rewards
from recipes.config.accounting import divisors, nearest
from recipes.config.accounting import problems as batches
from recipes.config.names import NATIVE, easyr1_defaults, instead_on_verl, native, refused_on_verl
from recipes.config.schema import BY_CONVERSION, Recipe, leaves
from recipes.errors import RecipeError, raise_together
from recipes.yaml_text import flow

SHARD = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
ENGINES = {"verl": "verl", "easyr1": "EasyR1"}
"""Engine -> its name in pages and messages."""
_ESTIMATORS_OF_GROUPS = (
    "grpo", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "reinforce_plus_plus_baseline", "opo",
)  # fmt: skip


def check(recipe: Recipe, gpus: int | None = None) -> None:
    """Raise RecipeError for the first combination that the trainer would refuse, or silently change.

    Args:
        recipe: a resolved recipe.
        gpus: number of GPUs of this machine; None skips the check against it.
    """
    found_by = (_groups, rewards.problems, batches, _lengths, objective.problems, _adapters, _gradients)
    others = (find(recipe) for find in (*found_by, _best_checkpoint, effects.problems))
    for error in chain(_machines(recipe, gpus), *others):
        raise error


def require_supported(recipe: Recipe, engine: str) -> None:
    """Raise RecipeError for every key, or value, that `engine` does not support."""
    own = _of_verl_alone(recipe) if engine == "easyr1" else refused_on_verl(recipe)
    raise_together([*own, *_unsupported(recipe, engine)])


def _unsupported(recipe: Recipe, engine: str) -> Iterator[RecipeError]:
    away = "://" in f"{recipe.data.train_files} {recipe.data.val_files}"  # rows behind a URL are not converted
    for path, leaf in leaves(Recipe).items():
        if not recipe.uses(path) or (path in BY_CONVERSION and not away):
            continue
        value, source, able = recipe.value(path), recipe.source_of(path), engine in leaf.info.engines
        allowed = leaf.info.values_on.get(engine, (value,)) if able else (leaf.default,)
        # A key that the engine lacks may hold a default, or a value of the hardware file, which all engines share.
        if value not in allowed and (able or source.layer not in ("default", "hardware")):
            instead = "" if able or engine == "easyr1" else instead_on_verl(path, value)
            yield RecipeError(
                f"{ENGINES[engine]} cannot do {path}: {flow(value)} ({leaf.info.doc})",
                where=source.where,
                fix=instead
                or f"set {path} to {' or '.join(map(flow, allowed))}" + ", or choose another engine" * (not able),
            )


def _of_verl_alone(recipe: Recipe) -> Iterator[RecipeError]:
    for name in sorted(native(recipe).keys() - easyr1_defaults().keys()):
        yield RecipeError(
            f"{name} is a key of verl, and the engine is EasyR1",
            where=recipe.source_of(f"{NATIVE}{name}").where,
            fix="use ENGINE=verl, or leave it out",
        )


def remarks(recipe: Recipe) -> list[str]:
    """Return remarks on valid but hardly intended settings: what is not read or has no effect, and misplaced KL."""
    return [*recipe.resolution.notes, *effects.remarks(recipe), *objective.remarks(recipe)]


def _machines(recipe: Recipe, gpus: int | None) -> Iterator[RecipeError]:
    trainer = recipe.trainer
    if recipe.hardware == "gpu" and gpus is not None and trainer.n_gpus_per_node > gpus:
        yield recipe.error(
            f"trainer.n_gpus_per_node is {trainer.n_gpus_per_node}, but this machine has "
            + (f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "no NVIDIA GPU that a process may use"),
            f"set GPUS_PER_NODE={gpus}" if gpus else "set HARDWARE=cpu, or look at nvidia-smi and CUDA_VISIBLE_DEVICES",
            "trainer.n_gpus_per_node",
        )
    for key in ("worker.rollout.tensor_parallel_size", "worker.actor.ulysses_size"):
        size, count = recipe.value(key), recipe.n_gpus
        if count % size:
            yield recipe.error(
                f"{key} {size} does not divide the {count} GPUs",
                f"set {key} to {nearest(size, divisors(count))}",
                key,
                "trainer.n_gpus_per_node",
            )


def _groups(recipe: Recipe) -> Iterator[RecipeError]:
    """One response per prompt where responses are compared.

    With one response, EasyR1's online filtering would drop groups by their mean, and verl's would drop none.
    """
    algorithm, n = recipe.algorithm, recipe.worker.rollout.n
    by_group, filters = algorithm.adv_estimator in _ESTIMATORS_OF_GROUPS, algorithm.online_filtering
    if n < 2 and (by_group or filters):
        key = "algorithm.adv_estimator" if by_group else "algorithm.online_filtering"
        yield recipe.error(
            f"{key} {recipe.value(key)} compares the responses of a group, and worker.rollout.n is {n}",
            "set ROLLOUT_N to 2 or more; 5 is usual" + ", or ONLINE_FILTERING=false" * (not by_group),
            "worker.rollout.n",
            key,
        )


def _lengths(recipe: Recipe) -> Iterator[RecipeError]:
    """Token limits that are too low for one sequence of full length."""
    actor, rollout = recipe.worker.actor, recipe.worker.rollout
    rooms: dict[str, tuple[int | None, int]] = {}
    if actor.dynamic_batching:
        each = -(-recipe.longest // actor.ulysses_size)
        rooms["worker.actor.max_token_len_per_device"] = (actor.max_token_len_per_device, each)
    if recipe.engine == "easyr1":
        rooms["worker.rollout.max_num_batched_tokens"] = (rollout.max_num_batched_tokens, recipe.longest)
    for key, (room, needed) in rooms.items():
        if room is not None and room < needed:
            share = f"a GPU's share, {needed}, of " if needed != recipe.longest else ""
            yield recipe.error(
                f"{key} {room} cannot hold {share}prompt + response, {recipe.longest} tokens",
                f"set {key} to {needed} or more",
                key,
                "data.max_prompt_length",
                "data.max_response_length",
            )


def _adapters(recipe: Recipe) -> Iterator[RecipeError]:
    """Adapters with FSDP1, which inserts modules of its own; peft (0.21.2) finds adapters by the modules' names, so
    verl/utils/fsdp_utils.py:754 (`lora_params = get_peft_model_state_dict(peft_model)`) finds none."""
    fsdp1 = recipe.worker.actor.strategy == "fsdp" and recipe.hardware == "gpu" and recipe.engine == "verl"
    if recipe.worker.actor.model.lora.rank and fsdp1:
        yield recipe.error(
            "worker.actor.strategy fsdp trains no adapters: verl sends vLLM none of them, and vLLM fails",
            "set worker.actor.strategy to fsdp2, or leave it out",
            "worker.actor.strategy",
            "worker.actor.model.lora.rank",
        )


def _gradients(recipe: Recipe) -> Iterator[RecipeError]:
    """Shards of one GPU with FSDP1: PyTorch makes it NO_SHARD, which averages no gradients between GPUs."""
    size = native(recipe).get(SHARD)
    if size == 1 < recipe.n_gpus and recipe.worker.actor.strategy == "fsdp" and recipe.engine == "verl":
        yield recipe.error(
            f"{SHARD} 1 with worker.actor.strategy fsdp leaves each of the {recipe.n_gpus} GPUs its own gradients",
            "set worker.actor.strategy to fsdp2, or leave it out",
            f"verl.{SHARD}",
            "worker.actor.strategy",
        )


def _best_checkpoint(recipe: Recipe) -> Iterator[RecipeError]:
    """A best checkpoint without validations or checkpoints to choose from."""
    trainer = recipe.trainer
    for key, frequency in (("val_freq", trainer.val_freq), ("save_freq", trainer.save_freq)):
        if trainer.keep_best and frequency <= 0:
            yield recipe.error(
                f"trainer.keep_best chooses among validated and saved steps, and trainer.{key} is {frequency}",
                "set VAL_FREQ and SAVE_FREQ to one number of steps",
                "trainer.keep_best",
                f"trainer.{key}",
            )
