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


def recipe(values):
    return validated(Recipe, values, {})


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


def test_the_reference_run_accumulates_32_times():
    counted = accounting(recipe(REFERENCE), rows=4096)
    assert counted.accumulation_steps == 32
    assert (counted.prompts, counted.responses, counted.updates) == (64, 1024, 1)
    assert (counted.steps_per_epoch, counted.total_steps) == (64, 960)
    assert counted.tokens_per_step == 1024 * 2304
    assert ("gradient-accumulation steps per update", "32") in counted.table()


def test_max_steps_decides_alone():
    assert accounting(recipe({**REFERENCE, "trainer.max_steps": 2000}), rows=4096).total_steps == 2000


def test_rows_that_do_not_fill_a_step_are_dropped():
    assert accounting(recipe(REFERENCE), rows=200).steps_per_epoch == 3
    assert accounting(recipe({**REFERENCE, "data.train_max_samples": 100}), rows=200).steps_per_epoch == 1
    assert accounting(recipe(REFERENCE), rows=0).total_steps == 0


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
@settings(max_examples=80, deadline=None)
def test_agrees_with_a_count_of_single_responses(updates, size, n, gpus, micro, dynamic):
    size *= gpus  # so that an update divides over the GPUs
    values = {
        "data.rollout_batch_size": updates * size,
        "worker.actor.global_batch_size": size,
        "worker.actor.micro_batch_size_per_device_for_update": micro,
        "worker.actor.dynamic_batching": dynamic,
        "worker.rollout.n": n,
        "trainer.n_gpus_per_node": gpus,
    }
    counted = accounting(recipe(values), rows=1000)
    assert (counted.updates, counted.accumulation_steps) == count_slowly(updates * size, n, size, gpus, micro)
    assert counted.responses == counted.responses_per_update * counted.updates
    assert ("at most" in dict(counted.table())["gradient-accumulation steps per update"]) == dynamic


@pytest.mark.parametrize(("epochs", "gpus", "ulysses", "each"), [(1, 8, 1, 128), (3, 8, 2, 256), (1, 4, 4, 1024)])
def test_epochs_and_sequence_parallelism(epochs, gpus, ulysses, each):
    values = {
        **REFERENCE,
        "worker.actor.ppo_epochs": epochs,
        "trainer.n_gpus_per_node": gpus,
        "worker.actor.ulysses_size": ulysses,
    }
    counted = accounting(recipe(values), rows=4096)
    assert counted.updates == epochs
    assert counted.responses_per_gpu == each


@given(st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_suggested_numbers_fit_and_are_nearest(number, of):
    divisors = [candidate for candidate in range(1, of + 1) if of % candidate == 0]
    found = nearest_divisors(number, of)
    assert found
    assert set(found) <= set(divisors)
    assert min(abs(candidate - number) for candidate in divisors) in [abs(candidate - number) for candidate in found]
    for multiple in nearest_multiples(number, of):
        assert multiple > 0
        assert multiple % of == 0
        assert abs(multiple - number) <= of


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
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
        check(recipe(values))
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
    ("verl", "--rollout_n 7 --train_batch_size 1 --n_gpus 1", 1, 7),
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
