"""The arithmetic of a step, against a count of the same step one response at a time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import load
from recipes.config.accounting import accounting, nearest_divisors, nearest_multiples
from recipes.config.checks import check
from recipes.config.layers import validated
from recipes.config.schema import Recipe
from recipes.errors import RecipeError

REFERENCE = {
    "data.rollout_batch_size": 64,
    "data.max_prompt_length": 256,
    "data.max_response_length": 2048,
    "worker.actor.global_batch_size": 64,
    "worker.actor.micro_batch_size_per_device_for_update": 4,
    "worker.actor.dynamic_batching": False,
    "worker.rollout.n": 16,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 15,
}


def counted(rows=4096, **changes):
    values = {**REFERENCE, **{name.replace("__", "."): value for name, value in changes.items()}}
    return accounting(validated(Recipe, values, {}), rows)


def test_the_reference_run_accumulates_32_times():
    step = counted()
    assert step.accumulation_steps == 32
    assert (step.prompts, step.responses, step.updates) == (64, 1024, 1)
    assert (step.steps_per_epoch, step.total_steps) == (64, 960)
    assert step.tokens_per_step == 1024 * 2304
    assert ("gradient-accumulation steps per update", "32") in step.table()
    assert counted(trainer__max_steps=2000).total_steps == 2000
    assert counted(rows=200).steps_per_epoch == 3, "rows that do not fill a step are dropped"
    assert counted(rows=200, data__train_max_samples=100).steps_per_epoch == 1
    assert counted(rows=0).total_steps == 0
    several = counted(worker__actor__ppo_epochs=3, worker__actor__ulysses_size=2)
    assert (several.updates, several.responses_per_gpu) == (3, 256)


def count_slowly(prompts: int, n: int, update: int, gpus: int, micro: int) -> tuple[int, int]:
    """Deal every response of a step to updates and GPUs, and count a GPU's micro-batches: (updates, accumulation)."""
    responses = [(prompt, answer) for prompt in range(prompts) for answer in range(n)]
    passes: Counter[tuple[int, int]] = Counter()
    held: Counter[tuple[int, int]] = Counter()
    for position, (prompt, _) in enumerate(responses):
        place = (prompt // update, position % gpus)
        if held[place] % micro == 0:
            passes[place] += 1
        held[place] += 1
    return len({step for step, _ in passes}), max(passes.values())


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 5),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_agrees_with_a_count_of_single_responses(updates, size, n, gpus, micro, dynamic):
    size *= gpus  # so that an update divides over the GPUs
    step = counted(
        data__rollout_batch_size=updates * size,
        worker__actor__global_batch_size=size,
        worker__actor__micro_batch_size_per_device_for_update=micro,
        worker__actor__dynamic_batching=dynamic,
        worker__rollout__n=n,
        trainer__n_gpus_per_node=gpus,
    )
    assert (step.updates, step.accumulation_steps) == count_slowly(updates * size, n, size, gpus, micro)
    assert step.responses == step.responses_per_update * step.updates
    assert ("at most" in dict(step.table())["gradient-accumulation steps per update"]) == dynamic


@given(st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_suggested_numbers_fit_and_are_nearest(number, of):
    divisors = [candidate for candidate in range(1, of + 1) if of % candidate == 0]
    found = nearest_divisors(number, of)
    assert set(found) <= set(divisors)
    assert min(abs(candidate - number) for candidate in divisors) in [abs(candidate - number) for candidate in found]
    for multiple in nearest_multiples(number, of):
        assert multiple > 0
        assert multiple % of == 0
        assert abs(multiple - number) <= of


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_what_passes_divides(step, update, n, gpus, micro, tensor):
    """No recipe passes whose batches leave a rest, and none is refused whose batches leave none."""
    values = {
        "data.rollout_batch_size": step,
        "worker.actor.global_batch_size": update,
        "worker.actor.micro_batch_size_per_device_for_update": micro,
        "worker.actor.micro_batch_size_per_device_for_experience": micro,
        "worker.actor.dynamic_batching": False,
        "worker.rollout.n": n + 1,
        "worker.rollout.tensor_parallel_size": tensor,
        "trainer.n_gpus_per_node": gpus,
    }
    responses = update * (n + 1)
    fits = step % update == gpus % tensor == responses % gpus == 0 and responses // gpus % micro == 0
    try:
        check(validated(Recipe, values, {}))
    except RecipeError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_batch_that_follows_the_step_is_mended_by_the_step(estimator):
    """An update is the whole step there: another number for the update alone would not divide the step."""

    def checked(prompts):
        words = ["--train_batch_size", prompts, "--n_gpus", "3", f"algorithm.adv_estimator={estimator}"]
        check(load("custom", arguments=words, environ={}, hardware="gpu"))

    with pytest.raises(RecipeError) as raised:
        checked("256")
    assert raised.value.fix == "set data.rollout_batch_size to 255 or 258"
    checked("255")
    checked("258")


@pytest.mark.parametrize(("engine", "words", "update", "experience"), [
    ("verl", "--rollout_n 5 --train_batch_size 256 --n_gpus 8", 4, 8),
    ("verl", "--rollout_n 3 --train_batch_size 10 --n_gpus 1", 3, 6),
    ("verl", "--rollout_n 8 --train_batch_size 256 --n_gpus 6", 1, 1),
    ("verl", "--rollout_n 7 --train_batch_size 9 --n_gpus 3 worker.actor.dynamic_batching=true", 4, 8),
    ("easyr1", "--rollout_n 7 --train_batch_size 9 --n_gpus 3 worker.actor.dynamic_batching=true", 3, 7),
])  # fmt: skip
def test_micro_batches_that_a_file_leaves_open_divide(engine, words, update, experience):
    """verl fills them by tokens where it may; EasyR1 divides all the same."""
    words = ["worker.actor.dynamic_batching=false"] * ("dynamic" not in words) + words.split()
    actor = load("custom", arguments=[*words, "--engine", engine], environ={}, hardware="gpu").worker.actor
    assert actor.micro_batch_size_per_device_for_update == update
    assert actor.micro_batch_size_per_device_for_experience == experience
