"""The arithmetic of a step, and batches that divide."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import load
from recipes.config.accounting import accounting
from recipes.config.checks import check
from recipes.config.schema import Recipe
from recipes.errors import RecipeError
from recipes.settings import validated


def recipe_of(step, update, n, gpus, micro, dynamic=False, **others):
    """A recipe by its sizes: prompts a step and an update, responses a prompt, GPUs, responses a pass."""
    values = {
        "data.rollout_batch_size": step,
        "worker.actor.global_batch_size": update,
        "worker.actor.micro_batch_size_per_device_for_update": micro,
        "worker.actor.micro_batch_size_per_device_for_experience": micro,
        "worker.actor.dynamic_batching": dynamic,
        "worker.rollout.n": n,
        "worker.rollout.tensor_parallel_size": 1,
        "trainer.n_gpus_per_node": gpus,
    }
    return validated(Recipe, {**values, **{name.replace("__", "."): value for name, value in others.items()}}, {})


def test_the_reference_run_accumulates_32_times():
    def counted(rows=4096, **others):
        lengths = {"data__max_prompt_length": 256, "data__max_response_length": 2048, "trainer__total_epochs": 15}
        return accounting(recipe_of(64, 64, 16, 8, 4, **lengths, **others), rows)

    step = counted()
    assert step == {
        "training rows": "4,096",
        "prompts per step": "64",
        "responses per step": "1,024",
        "updates per step": "1",
        "responses per update and GPU": "128",
        "gradient-accumulation steps per update": "32",
        "steps per epoch": "64",
        "total steps": "960",
        "tokens per step": "at most 2,359,296",
    }
    assert counted(trainer__max_steps=2000)["total steps"] == "2,000"
    assert counted(rows=200)["steps per epoch"] == "3", "rows that do not fill a step are dropped"


@pytest.mark.parametrize(
    ("sizes", "updates", "accumulated"),
    [((12, 4, 3, 2, 2), 3, 3), ((12, 4, 3, 2, 4), 3, 2), ((8, 8, 5, 4, 20), 1, 1), ((6, 3, 4, 3, 3), 2, 2)],
)
def test_responses_of_an_update_are_dealt_to_gpus_and_passes(sizes, updates, accumulated):
    step = accounting(recipe_of(*sizes), 1000)
    assert step["updates per step"] == str(updates)
    assert step["gradient-accumulation steps per update"] == str(accumulated)
    assert step["responses per step"] == str(sizes[0] * sizes[2])


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_what_passes_divides(step, update, n, gpus, micro, tensor):
    """No recipe passes whose batches leave a rest, and none is refused whose batches leave none."""
    responses = update * (n + 1)
    fits = step % update == gpus % tensor == responses % gpus == 0 and responses // gpus % micro == 0
    try:
        check(recipe_of(step, update, n + 1, gpus, micro, worker__rollout__tensor_parallel_size=tensor))
    except RecipeError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(("engine", "words", "update", "experience"), [
    ("verl", "--rollout_n 5 --train_batch_size 256 --n_gpus 8", 4, 8),
    ("verl", "--rollout_n 7 --train_batch_size 9 --n_gpus 3 worker.actor.dynamic_batching=true", 4, 8),
    ("easyr1", "--rollout_n 7 --train_batch_size 9 --n_gpus 3 worker.actor.dynamic_batching=true", 3, 7),
])  # fmt: skip
def test_micro_batches_that_a_file_leaves_open_divide(engine, words, update, experience):
    """verl fills them by tokens where it may; EasyR1 divides all the same."""
    words = ["worker.actor.dynamic_batching=false"] * ("dynamic" not in words) + words.split()
    actor = load("custom", arguments=[*words, "--engine", engine], environ={}, hardware="gpu").worker.actor
    assert actor.micro_batch_size_per_device_for_update == update
    assert actor.micro_batch_size_per_device_for_experience == experience
