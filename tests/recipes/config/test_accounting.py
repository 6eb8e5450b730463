"""The arithmetic of a step, against a count of the same step one response at a time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config.accounting import accounting
from recipes.config.merge import validated

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
    counted = accounting(validated(REFERENCE, {}), rows=4096)
    assert counted.accumulation_steps == 32
    assert (counted.prompts, counted.responses, counted.updates) == (64, 1024, 1)
    assert (counted.steps_per_epoch, counted.total_steps) == (64, 960)
    assert counted.tokens_per_step == 1024 * 2304
    assert ("gradient-accumulation steps per update", "32") in counted.table()


def test_max_steps_decides_alone():
    assert accounting(validated({**REFERENCE, "trainer.max_steps": 2000}, {}), rows=4096).total_steps == 2000


def test_rows_that_do_not_fill_a_step_are_dropped():
    assert accounting(validated(REFERENCE, {}), rows=200).steps_per_epoch == 3
    assert accounting(validated({**REFERENCE, "data.train_max_samples": 100}, {}), rows=200).steps_per_epoch == 1
    assert accounting(validated(REFERENCE, {}), rows=0).total_steps == 0


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
    counted = accounting(validated(values, {}), rows=1000)
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
    counted = accounting(validated(values, {}), rows=4096)
    assert counted.updates == epochs
    assert counted.responses_per_gpu == each
