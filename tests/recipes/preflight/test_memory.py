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


def recipe_on(monkeypatch, gpu, gpus, *arguments, task="countdown", host=1 << 40):
    for place in (memory, __import__("recipes.config.machine", fromlist=["machine"])):
        monkeypatch.setattr(place, "gpu_memory", lambda: gpu)
    monkeypatch.setattr(memory, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(memory, "host_memory", lambda: host)
    return load(task, arguments=[f"trainer.n_gpus_per_node={gpus}", *arguments], environ={}, hardware="gpu")


PADDED = [
    "worker.actor.dynamic_batching=false",
    "worker.actor.padding_free=false",
    "worker.actor.model.enable_gradient_checkpointing=true",
    "worker.actor.use_fused_kernels=false",
    "worker.actor.micro_batch_size_per_device_for_update=32",
]


@pytest.mark.parametrize(
    ("task", "gpu", "gpus", "arguments", "phase"),
    [
        ("countdown", H100, 1, [], memory.GENERATE),
        ("countdown", H100, 8, PADDED, memory.BACKWARD),
        ("custom", H100, 1, ["worker.rollout.gpu_memory_utilization=0.3"], memory.STEP),
        ("custom", H200, 1, [], memory.GENERATE),
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
    if given[0].startswith("--micro_batch_size"):
        kept.remove(PADDED[-1])
    again = recipe_on(monkeypatch, gpu, gpus, *kept, *given, task=task)
    assert memory._phase(memory.plan_of(again), phase).fits


def test_without_a_gpu_the_host_is_named_with_fewer_responses_a_pass(make, monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: 25 << 30)
    recipe = make("worker.actor.model.model_path=Qwen/Qwen3-0.6B", "data.max_prompt_length=512")
    with pytest.raises(RecipeError, match="does not fit: training .* of 27 GB") as caught:
        memory.check_memory(recipe)
    assert "MICRO_BATCH_SIZE=1 (" in caught.value.fix


def test_recipes_on_the_machines_they_were_made_for_fit_and_say_what_they_take(monkeypatch):
    for task in ("countdown", "gsm8k", "number_game", "custom"):
        remarks = memory.check_memory(recipe_on(monkeypatch, H100, 8, task=task))
        assert "backward pass" in remarks[0]
        assert "responses of full length" in remarks[1]
        assert "host" in remarks[2]
    close = memory.check_memory(recipe_on(monkeypatch, H100, 8, host=64 << 30))
    assert any("loading comes close to the limit" in remark and "GPUS_PER_NODE=4" in remark for remark in close)


def test_vllm_must_hold_its_weights_and_one_response_and_what_is_unknown_is_remarked(monkeypatch):
    recipe = recipe_on(monkeypatch, H100, 8, "worker.rollout.gpu_memory_utilization=0.08")
    with pytest.raises(RecipeError, match="8% of a GPU, 6.8 GB, do not hold its weights") as caught:
        memory.check_memory(recipe)
    assert "TENSOR_PARALLEL_SIZE=2" in caught.value.fix
    recipe = recipe_on(monkeypatch, None, 8)
    assert memory.check_memory(recipe) == ["memory is not estimated: the GPU's memory is not known"]
