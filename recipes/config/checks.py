"""Checks of values before anything starts: those that contradict each other, and keys without effect (effects.yaml)."""

from collections.abc import Iterator, Mapping
from itertools import chain
from math import ceil
from typing import Any

from recipes.config import objective, rewards
from recipes.config.accounting import divisors, nearest
from recipes.config.accounting import problems as batches
from recipes.config.names import NATIVE, OF_EASYR1, easyr1_defaults, instead_on_verl, native, verl_defaults
from recipes.config.schema import BY_CONVERSION, Recipe, leaves
from recipes.config.variables import table
from recipes.errors import RecipeError, raise_together
from recipes.settings import NATIVES, flatten, groups, innermost
from recipes.yaml_text import flow

SHARD, STRATEGY = "actor_rollout_ref.actor.fsdp_config.fsdp_size", "worker.actor.strategy"
WINDOW, EASYR1_WINDOW = "actor_rollout_ref.rollout.max_model_len", "worker.rollout.max_model_len"
_GPUS = "trainer.n_gpus_per_node"
ENGINES = {"verl": "verl", "easyr1": "EasyR1"}
"""Engine -> its name in pages and messages."""
_ESTIMATORS_OF_GROUPS = (
    "grpo", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "reinforce_plus_plus_baseline", "opo",
)  # fmt: skip


def check(recipe: Recipe) -> None:
    """Raise RecipeError for the first combination that the trainer would refuse, or silently change."""
    found_by = (_shares, _groups, rewards.problems, batches, _lengths, objective.problems, _sharding, _arguments)
    for error in chain(*(find(recipe) for find in (*found_by, _best_checkpoint, without_effect))):
        raise error


def require_supported(recipe: Recipe, engine: str) -> None:
    """Raise RecipeError for every key, or value, that `engine` does not support."""
    raise_together([*_of_the_other(recipe, engine), *_mistyped(recipe, engine), *_unsupported(recipe, engine)])


def _of_the_other(recipe: Recipe, engine: str) -> Iterator[RecipeError]:
    """One error for each key that only the other engine has."""
    other, group = ("easyr1", OF_EASYR1) if engine == "verl" else ("verl", NATIVE)
    theirs = recipe.easyr1 if engine == "verl" else native(recipe).keys() - easyr1_defaults().keys()
    for name in sorted(theirs):
        what = f"{name} is a key of {ENGINES[other]}, and the engine is {ENGINES[engine]}"
        instead = instead_on_verl(name, recipe.easyr1[name]) if engine == "verl" else ""
        fix = instead or f"leave it out, or use ENGINE={other}"
        yield RecipeError(what, where=recipe.source_of(f"{group}{name}").where, fix=fix)


def _mistyped(recipe: Recipe, engine: str) -> Iterator[RecipeError]:
    """One error for each key of the engine's own with a text where its own value is none."""
    group, defaults = (NATIVE, verl_defaults()) if engine == "verl" else (OF_EASYR1, easyr1_defaults())
    for name, value in flatten(recipe.verl if engine == "verl" else recipe.easyr1).items():
        if mistake := of_another_kind(name, value, defaults.get(name), engine):
            yield recipe.error(*mistake, f"{group}{name}")


TEXT_TOO = ("rollout_is_threshold", "save_freq", "test_freq", ".logger")
"""Ends of the engine's keys that take a text beside another kind: bounds joined by a mark, `after_each_epoch`."""


def of_another_kind(name: str, value: Any, theirs: Any, engine: str) -> tuple[str, str] | None:
    """What is wrong with a text where the engine's own value, `theirs`, is none, and how to mend it, or None."""
    if not isinstance(value, str) or not isinstance(theirs, int | float | list | dict):
        return None
    if "${" in value or value.lstrip("+-.") in ("inf", "nan") or name.endswith(TEXT_TOO):
        return None
    what = f"{name} is {value!r}, and {ENGINES[engine]}'s own value is {flow(theirs)}"
    return what, f"give a value such as {flow(theirs)}" + f", or write +{name} if a text is right" * (engine == "verl")


def _unsupported(recipe: Recipe, engine: str) -> Iterator[RecipeError]:
    away = "://" in f"{recipe.data.train_files} {recipe.data.val_files}"  # rows behind a URL are not converted
    for path, leaf in leaves(Recipe).items():
        if not recipe.uses(path) or (path in BY_CONVERSION and not away):
            continue
        value, source, able = recipe.value(path), recipe.source_of(path), engine in leaf.info.engines
        allowed = leaf.info.values_on.get(engine, (value,)) if able else (leaf.default,)
        # A key that the engine lacks may hold a default, or a value of the hardware file, which all engines share.
        if value not in allowed and (able or source.layer not in ("default", "hardware")):
            fix = f"set {path} to {' or '.join(map(flow, allowed))}" + ", or choose another engine" * (not able)
            if not able and engine == "verl":
                fix = instead_on_verl(path, value) or fix
            what = f"{ENGINES[engine]} cannot do {path}: {flow(value)} ({leaf.info.doc})"
            yield RecipeError(what, where=source.where, fix=fix)


def remarks(recipe: Recipe) -> list[str]:
    """Return remarks on valid but hardly intended settings: what is not read or has no effect, and misplaced KL."""
    return [*recipe.resolution.notes, *_idle(recipe), *objective.remarks(recipe)]


def _shares(recipe: Recipe) -> Iterator[RecipeError]:
    """GPUs that share an engine, or a sequence, and do not divide all of them."""
    for key in ("worker.rollout.tensor_parallel_size", "worker.actor.ulysses_size"):
        size, count = recipe.value(key), recipe.n_gpus
        if count % size:
            fix = f"set {key} to {nearest(size, divisors(count))}"
            yield recipe.error(f"{key} {size} does not divide the {count} GPUs", fix, key, _GPUS)


def _groups(recipe: Recipe) -> Iterator[RecipeError]:
    """One response per prompt where responses are compared, and bounds that drop every group.

    With one response, EasyR1's online filtering would drop groups by their mean, and verl's would drop none.
    """
    algorithm, n = recipe.algorithm, recipe.worker.rollout.n
    by_group, filters = algorithm.adv_estimator in _ESTIMATORS_OF_GROUPS, algorithm.online_filtering
    if n < 2 and (by_group or filters):
        key = "algorithm.adv_estimator" if by_group else "algorithm.online_filtering"
        what = f"{key} {recipe.value(key)} compares the responses of a group, and worker.rollout.n is {n}"
        fix = "set ROLLOUT_N to 2 or more; 5 is usual" + ", or ONLINE_FILTERING=false" * (not by_group)
        yield recipe.error(what, fix, "worker.rollout.n", key)
    low, high = "algorithm.filter_low", "algorithm.filter_high"
    if filters and recipe.value(low) >= recipe.value(high):
        what = f"no group's mean is above {low} {recipe.value(low)} and below {high} {recipe.value(high)}"
        yield recipe.error(what, "exchange them, or leave them out", low, high)


def _lengths(recipe: Recipe) -> Iterator[RecipeError]:
    """Token limits, and windows of vLLM, that are too low for one sequence of full length."""
    needs: dict[str, int] = {}
    if recipe.worker.actor.dynamic_batching:
        needs["worker.actor.max_token_len_per_device"] = ceil(recipe.longest / recipe.worker.actor.ulysses_size)
    if recipe.engine == "easyr1":
        needs["worker.rollout.max_num_batched_tokens"] = recipe.longest
    for key, needed in needs.items():
        room = recipe.value(key)
        if room is not None and room < needed:
            share = f"a GPU's share, {needed}, of " if needed != recipe.longest else ""
            what = f"{key} {room} cannot hold {share}prompt + response, {recipe.longest} tokens"
            lengths = "data.max_prompt_length", "data.max_response_length"
            yield recipe.error(what, f"set {key} to {needed} or more", key, *lengths)
    easyr1 = recipe.engine == "easyr1"
    name, given = (OF_EASYR1 + EASYR1_WINDOW, recipe.easyr1) if easyr1 else (NATIVE + WINDOW, native(recipe))
    if isinstance(window := given.get(_bare(name)), int) and window < recipe.longest:
        what = f"{_bare(name)} is {window}, and prompt and response may have {recipe.longest} tokens together"
        yield recipe.error(what, "leave it out", name)


def _sharding(recipe: Recipe) -> Iterator[RecipeError]:
    """FSDP1 with adapters, or with shards of one GPU, on verl.

    FSDP1 inserts modules of its own; peft (0.21.2) finds adapters by the modules' names, so
    verl/utils/fsdp_utils.py:754 (`lora_params = get_peft_model_state_dict(peft_model)`) finds none. Shards of one GPU
    become PyTorch's NO_SHARD, which averages no gradients between GPUs.
    """
    if recipe.worker.actor.strategy != "fsdp" or recipe.engine != "verl":
        return
    fix, rank = f"set {STRATEGY} to fsdp2, or leave it out", "worker.actor.model.lora.rank"
    if recipe.value(rank) and recipe.hardware == "gpu":
        what = f"{STRATEGY} fsdp trains no adapters: verl sends vLLM none of them, and vLLM fails"
        yield recipe.error(what, fix, STRATEGY, rank)
    if native(recipe).get(SHARD) == 1 < recipe.n_gpus:
        what = f"{SHARD} 1 with {STRATEGY} fsdp leaves each of the {recipe.n_gpus} GPUs its own gradients"
        yield recipe.error(what, fix, f"verl.{SHARD}", STRATEGY)


def _arguments(recipe: Recipe) -> Iterator[RecipeError]:
    """Arguments of vLLM that pass by a key with another value, by which the run is planned."""
    rollout, key = recipe.worker.rollout, "worker.rollout.engine_kwargs"
    for name, value in rollout.engine_kwargs.items() if (recipe.engine, rollout.name) == ("verl", "vllm") else ():
        own = WINDOW if name == "max_model_len" else f"worker.rollout.{name.replace('-', '_')}"
        planned = recipe.value(own) if own in leaves(Recipe) else native(recipe).get(own)
        if own in (WINDOW, *leaves(Recipe)) and value not in (None, planned):
            yield recipe.error(f"{key}.{name} passes by {own}, by which the run is planned", f"set {own}", key)


def _best_checkpoint(recipe: Recipe) -> Iterator[RecipeError]:
    """A best checkpoint without validations or checkpoints to choose from."""
    never = [key for key in ("trainer.val_freq", "trainer.save_freq") if recipe.value(key) <= 0]
    if recipe.trainer.keep_best and never:
        what = f"trainer.keep_best chooses among validated and saved steps, and {never[0]} is {recipe.value(never[0])}"
        yield recipe.error(what, "set VAL_FREQ and SAVE_FREQ to one number of steps", "trainer.keep_best", never[0])


def without_effect(recipe: Recipe) -> Iterator[RecipeError]:
    """Keys that a variable or an argument sets although their switch is off."""
    for path, switch in _switched_off(recipe).items():
        value = recipe.value(path)
        if recipe.source_of(path).by_user and value not in (None, False):
            what = f"{path} {value} has no effect: {switch} is {recipe.value(switch)}"
            yield recipe.error(what, f"change {switch}, or leave {path} out", path, switch)


def _idle(recipe: Recipe) -> Iterator[str]:
    """One line for each variable, argument and file of the user's that sets keys without effect.

    A variable that sets several keys, one of which acts, has an effect.
    """
    off = {path: switch for path, switch in _switched_off(recipe).items() if recipe.value(path) is not False}
    chosen = {path: source for path, source in recipe.sources.items() if source.chosen and path not in NATIVES}
    idle = {path: _why_idle(recipe, path, off) for path in chosen if _says_something(recipe, path)}
    acting = {source.where for path, source in chosen.items() if not idle.get(path) and source.by_user}
    found: dict[str, list[str]] = {}
    for path, why in idle.items():
        if why and chosen[path].where not in acting:
            found.setdefault(chosen[path].where, []).append(f"{_bare(path)} has no effect, {why}")
    yield from (f"{where}: {'; '.join(said)}" for where, said in found.items())


def _says_something(recipe: Recipe, path: str) -> bool:
    """Return whether a value asks for anything; a file may repeat a default, and all may repeat an engine's."""
    if leaf := leaves(Recipe).get(path):
        return recipe.value(path) not in ((None,) if recipe.source_of(path).by_user else (None, leaf.default))
    name = _bare(path).lstrip("+")
    return _value(recipe, name) not in (None, _engines_default(name))


def _why_idle(recipe: Recipe, path: str, off: Mapping[str, str]) -> str:
    """The reason why a key has no effect; empty where it has one. `off`: a key -> the switch that is off."""
    if path in off:
        return f"since {off[path]} is {flow(recipe.value(off[path]))}"
    name, acts = _bare(path).lstrip("+"), table("effects.yaml")
    rows: list[Any] = innermost(acts, name) or []
    if path != name and not rows:
        switches = [f"{group}.{word}" for group in groups(name) for word in ("enable", "enabled")]
        rows = [{each: {"not": [False]}} for each in switches if each != name and each in verl_defaults()][:1]
    cases = [row for row in rows if isinstance(row, Mapping)]
    wrong = [next((key for key in case if not _holds(recipe, key, case[key])), "") for case in cases]
    if not cases:
        return "".join(f"since {row}" for row in rows[:1])
    if not all(wrong):
        return ""
    hint = "".join(f": {row}" for row in rows if isinstance(row, str))
    return f"since {wrong[0]} is {flow(_value(recipe, wrong[0]))}{hint}"


def _bare(path: str) -> str:
    return path.removeprefix(NATIVE).removeprefix(OF_EASYR1)


def _holds(recipe: Recipe, key: str, values: Any) -> bool:
    value = _value(recipe, key)
    return value not in values["not"] if isinstance(values, Mapping) else value in values


def _value(recipe: Recipe, key: str) -> Any:
    """The value of a recipe's key or of an engine's; one that is handed to the engine past the recipe's key counts."""
    given, leaf = native(recipe) | recipe.easyr1, leaves(Recipe).get(key)
    past = next((given[name] for name in (key, *(leaf.info.verl if leaf else ())) if name in given), None)
    return past if past is not None else recipe.value(key) if leaf else _engines_default(key)


def _engines_default(name: str) -> Any:
    """The default of an engine's own key; a name that both have is verl's."""
    return verl_defaults().get(name, easyr1_defaults().get(name))


def _switched_off(recipe: Recipe) -> dict[str, str]:
    """Key -> the switch that is off and without which nothing reads it."""
    off = {
        path: leaf.info.needs
        for path, leaf in leaves(Recipe).items()
        if leaf.info.needs and not recipe.value(leaf.info.needs)
    }
    if recipe.algorithm.disable_kl:
        off |= dict.fromkeys(objective.OF_KL, objective.NO_KL)
    elif objective.kl_in_loss(recipe) and not objective.kl_in_reward(recipe):
        of_loss = {"algorithm.kl_coef": "algorithm.kl_loss_coef", "algorithm.kl_penalty": "algorithm.kl_loss_type"}
        off |= {key: own for key, own in of_loss.items() if recipe.value(own) not in (None, recipe.value(key))}
    return off
