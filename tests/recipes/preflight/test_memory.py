"""Memory by phase: held against measurements, and the advice makes a run fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.config import load
from recipes.config.memory import published_shape
from recipes.errors import RecipeError
from recipes.preflight import memory

H100, H200 = 81_559 << 20, 143_771 << 20


@pytest.mark.parametrize(("what", "measured", "estimated"), memory.held_against_measurements())
def test_estimates_are_within_15_percent_of_what_was_measured_or_above(what, measured, estimated):
    assert 0.85 * measured <= estimated <= (1 + memory.ESTIMATE_TOLERANCE) * measured


@given(
    rank=st.sampled_from([0, 16, 64]),
    ranks=st.sampled_from([1, 2, 8]),
    tokens=st.integers(1_024, 40_000),
    offload=st.booleans(),
    liger=st.booleans(),
    critic=st.booleans(),
)
def test_what_saves_memory_never_costs_any(rank, ranks, tokens, offload, liger, critic):
    plan = memory.MemoryPlan(
        published_shape("Qwen/Qwen2.5-VL-3B-Instruct@main"),
        H100,
        lora=rank,
        ranks=ranks,
        ranks_here=ranks,
        update_tokens=tokens,
        forward_tokens=tokens,
        offload_optimizer=offload,
        recompute=False,
        liger=liger,
        critic=critic,
        utilization=0.5,
    )
    need = {phase.name: phase.need for phase in memory.gpu_phases(plan)}
    savings = [
        {"ranks": 2 * ranks},
        {"recompute": True},
        {"liger": True},
        {"fused": True},
        {"offload_params": True},
        {"offload_all": True},
        {"update_tokens": tokens // 2, "forward_tokens": tokens // 2},
        {"critic": False},
        {"accumulates": False},
        *([{"lora": 64}] if not rank else []),
    ]
    for saving in savings:
        for phase in memory.gpu_phases(replace(plan, **saving)):
            added = 4 * plan.shape.adapter_parameters(64) if "lora" in saving else 0
            assert phase.need <= need[phase.name] + added, saving


def recipe_on(monkeypatch, gpu, gpus, *arguments, task="countdown"):
    for place in (memory, __import__("recipes.config.machine", fromlist=["machine"])):
        monkeypatch.setattr(place, "gpu_memory", lambda: gpu)
    monkeypatch.setattr(memory, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(memory, "host_memory", lambda: 1 << 40)
    return load(task, arguments=[f"trainer.n_gpus_per_node={gpus}", *arguments], environ={}, hardware="gpu")


@pytest.mark.parametrize(
    ("task", "gpu", "gpus", "arguments", "phase"),
    [
        ("countdown", H100, 1, [], memory.GENERATE),
        ("custom", H100, 1, ["worker.rollout.gpu_memory_utilization=0.3"], memory.STEP),
    ],
)
def test_what_does_not_fit_is_named_with_two_changes_that_make_it_fit(monkeypatch, task, gpu, gpus, arguments, phase):
    recipe = recipe_on(monkeypatch, gpu, gpus, *arguments, task=task)
    with pytest.raises(RecipeError, match=f"does not fit: {phase}") as caught:
        memory.check_memory(recipe)
    first, second = (change.partition(" (")[0] for change in caught.value.fix.split("; or "))
    reductions = dict(memory.memory_reductions(memory.plan_of(recipe), phase, gpus))
    assert memory._phase(reductions[first], phase).fits
    assert second in reductions
    # The change as the user would type it has the same effect as in the plan; variables are options too.
    given = [word if "." in word.partition("=")[0] else f"--{word.lower()}" for word in first.split()]
    replaced = {word.partition("=")[0] for word in given}
    kept = [each for each in arguments if each.partition("=")[0] not in replaced]
    again = recipe_on(monkeypatch, gpu, gpus, *kept, *given, task=task)
    assert memory._phase(memory.plan_of(again), phase).fits
