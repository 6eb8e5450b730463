"""Memory by phase: held against measurements, and settings that need less."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.config import load, tasks
from recipes.errors import RecipeError
from recipes.memory import estimates, gpus
from recipes.memory.shape import published_shape
from recipes.preflight import memory

H100, H200 = 81_559 << 20, 143_771 << 20
FOUR = "Qwen/Qwen3-4B"
SHARE = "worker.rollout.gpu_memory_utilization"


@pytest.mark.parametrize(("what", "measured", "estimated"), memory.held_against_measurements())
def test_estimates_are_within_15_percent_of_what_was_measured_or_above(what, measured, estimated):
    assert 0.85 * measured <= estimated <= (1 + estimates.ESTIMATE_TOLERANCE) * measured


@given(
    rank=st.sampled_from([0, 16, 64]),
    ranks=st.sampled_from([1, 2, 8]),
    tokens=st.integers(1_024, 40_000),
    offload=st.booleans(),
    liger=st.booleans(),
)
def test_what_saves_memory_never_costs_any(rank, ranks, tokens, offload, liger):
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
        {"accumulates": False},
        *([{"lora": 64}] if not rank else []),
    ]
    for saving in savings:
        for phase in memory.gpu_phases(replace(plan, **saving)):
            added = 4 * plan.shape.adapter_parameters(64) if "lora" in saving else 0
            assert phase.need <= need[phase.name] + added, saving


def recipe_on(monkeypatch, size, count, *arguments, task="countdown", used=0, **environ):
    every = [gpus.Gpu(str(n), f"GPU-{n}", used, size, ("4242 (python3)",) * bool(used)) for n in range(count)]
    monkeypatch.setattr(gpus, "gpus_here", lambda: every)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(memory, "host_memory", lambda: 1 << 40)
    return load(task, arguments=[f"trainer.n_gpus_per_node={count}", *arguments], environ=environ, hardware="gpu")


@pytest.mark.parametrize(
    ("task", "size", "count", "arguments", "phase"),
    [
        ("countdown", H100, 1, [], memory.GENERATE),
        ("custom", H100, 1, ["worker.rollout.gpu_memory_utilization=0.3"], memory.STEP),
    ],
)
def test_what_does_not_fit_is_named_with_two_settings_that_need_less(monkeypatch, task, size, count, arguments, phase):
    recipe = recipe_on(monkeypatch, size, count, *arguments, task=task)
    with pytest.raises(RecipeError, match=f"does not fit: {phase}") as caught:
        memory.check_memory(recipe)
    given = [way for way in caught.value.fix.split("; or ") if "=" in way]
    assert given
    for way in given:  # as the user would type it
        words = [word if "." in word.partition("=")[0] else f"--{word.lower()}" for word in way.split()]
        plans = recipe, recipe_on(monkeypatch, size, count, *arguments, *words, task=task)
        before, after = ({each.name: each.need for each in memory.phases(memory.plan_of(one))} for one in plans)
        assert after.get(phase, 0) < before[phase], way


def test_what_others_hold_is_taken_out_of_vllms_share_and_of_the_passes(monkeypatch):
    """The trial that died: 12.7 GB in use, and an estimate of 138.7 of 151 GB."""
    alone = recipe_on(monkeypatch, H200, 1)
    beside = recipe_on(monkeypatch, H200, 1, used=int(12.7e9))
    assert alone.value(SHARE) == 0.6
    assert beside.value(SHARE) == 0.51
    assert "12.7 GB" in beside.source_of(SHARE).where
    tokens = "worker.actor.max_token_len_per_device"
    assert beside.value(tokens) < alone.value(tokens)
    assert "GPU 0 has 12.7 GB of 150.8 GB in use by 4242 (python3)" in memory.check_memory(beside)
    plan = memory.plan_of(beside)
    assert all(phase.need + 12.7e9 + phase.aside < H200 for phase in memory.gpu_phases(plan))


def test_a_share_that_the_user_set_is_refused_with_the_name_of_who_holds_the_memory(monkeypatch):
    recipe = recipe_on(monkeypatch, H200, 1, f"{SHARE}=0.6", used=int(12.7e9))
    with pytest.raises(RecipeError, match=r"generation .* in use by 4242 \(python3\)") as caught:
        memory.check_memory(recipe)
    assert "end that process" in caught.value.fix
    with pytest.raises(RecipeError, match="vLLM will ask for 60% of each"):
        memory.check_memory(recipe_on(monkeypatch, H200, 1, f"{SHARE}=0.6", used=H200 // 2))


def test_unequal_gpus_are_told_and_the_smallest_counts(monkeypatch):
    recipe = recipe_on(monkeypatch, H100, 2)
    assert not [line for line in memory.check_memory(recipe) if "not equal" in line]
    answers = {"gpu": "0, GPU-a, 4, 143771\n1, GPU-b, 4, 81559\n2, GPU-c, 4, 143771\n", "compute": ""}
    monkeypatch.undo()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "nvidia_smi", lambda query, *_: answers[query.split("-")[3].partition("=")[0]])
    monkeypatch.setattr(memory, "host_memory", lambda: 1 << 40)
    lines = memory.check_memory(load("countdown", arguments=["trainer.n_gpus_per_node=2"], environ={}, hardware="gpu"))
    assert any("not equal: 85.5 GB (GPU 1), 150.8 GB (GPU 0). Each gets" in line for line in lines), lines
    assert any(line.startswith("memory of a GPU, estimated") and "of 86 GB" in line for line in lines), lines


def test_an_estimate_that_was_never_measured_says_that_it_is_above_and_refuses_nothing(monkeypatch):
    recipe = recipe_on(monkeypatch, H200, 1)
    monkeypatch.setattr(memory, "host_memory", lambda: 8 << 30)
    (line,) = [line for line in memory.check_memory(recipe) if line.startswith("training is above the limit")]
    assert "may be too high; if memory runs out: " in line


def test_the_host_holds_vllms_weights_while_it_sleeps_where_nobody_sends_all_of_them(monkeypatch):
    def asleep(*arguments: str, **environ: str) -> float:
        plan = memory.plan_of(recipe_on(monkeypatch, H200, 2, *arguments, **environ))
        (training,) = (phase for phase in memory.host_phases(plan) if phase.name == memory.HOST)
        return training.parts["vLLM asleep"]

    each = 2 * memory.plan_of(recipe_on(monkeypatch, H200, 2)).shape.parameters
    assert asleep() == 0
    assert asleep(LORA_RANK="8") == 2 * each
    assert asleep("worker.rollout.tensor_parallel_size=2", LORA_RANK="8") == each
    assert asleep(ENGINE="easyr1") == 2 * each


def training_on_the_host(plan) -> dict[str, float]:
    (training,) = (phase for phase in memory.host_phases(plan) if phase.name == memory.HOST)
    return training.parts


def test_the_host_holds_the_reference_in_the_format_that_it_computes_in(monkeypatch):
    def bytes_of_a_number(*arguments: str, **environ: str) -> float:
        plan = memory.plan_of(recipe_on(monkeypatch, H200, 1, *arguments, **environ))
        return training_on_the_host(plan)["reference"] / plan.shape.parameters

    ref = "worker.ref.fsdp"
    assert bytes_of_a_number() == bytes_of_a_number(f"{ref}.torch_dtype=fp32") == 2
    assert bytes_of_a_number(f"{ref}.mp_param_dtype=fp32") == 4
    assert bytes_of_a_number(f"{ref}.mp_param_dtype=fp32", f"{ref}.torch_dtype=bf16") == 2
    assert bytes_of_a_number(ENGINE="easyr1") == 2
    assert bytes_of_a_number(f"{ref}.torch_dtype=fp32", ENGINE="easyr1") == 4


def test_a_model_is_being_saved_only_where_whole_models_are(monkeypatch):
    def saved(*arguments: str) -> float:
        return training_on_the_host(memory.plan_of(recipe_on(monkeypatch, H200, 1, *arguments)))["model being saved"]

    assert saved() > 0
    assert saved("trainer.save_freq=-1") == saved("trainer.save_hf_model=false") == 0


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "arguments",
    [[], ["trainer.save_freq=-1"], ["trainer.save_freq=-1", "worker.actor.offload.offload_optimizer=true"]],
)
def test_what_is_advised_for_the_host_acts_on_it(monkeypatch, hardware, arguments):
    def plan(*more: str):
        recipe_on(monkeypatch, H200, 1)
        given = dict(
            word.split("=") for word in ("trainer.n_gpus_per_node=1", *arguments, *more)
        )  # the last one counts
        keys = [f"{name}={value}" for name, value in given.items()]
        return memory.plan_of(load("countdown", arguments=keys, environ={"MODEL_PATH": FOUR}, hardware=hardware))

    before = sum(training_on_the_host(plan()).values())
    ways = [way for way in memory.advice(plan(), memory.HOST).split("; or ") if way]
    assert ways or (hardware == "gpu" and arguments == ["trainer.save_freq=-1"])
    for way in ways:
        words = [word if "." in word.partition("=")[0] else f"--{word.lower()}" for word in way.split() if "=" in word]
        if words:
            assert sum(training_on_the_host(plan(*words)).values()) < before, way


def test_the_hosts_memory_is_what_is_free_now(monkeypatch, tmp_path):
    """The machine's 9 GB, or what the limit leaves of the group's processes; cached files make way."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=32 * 10**9, available=9 * 10**9))
    (_, *two), (_, *one) = estimates.CGROUPS
    for version, prefix in ((two, ""), (one, "total_")):
        folder = tmp_path / f"version-of-{version[0]}"
        folder.mkdir()
        monkeypatch.setattr(estimates, "CGROUPS", ((folder, *version),))
        assert memory.host_memory() == 9 * 10**9, "no limit"
        (folder / version[1]).write_text(f"{5 * 10**9}\n")
        (folder / "memory.stat").write_text(f"anon 7\n{prefix}inactive_file 1000\n{prefix}active_file 200\nshmem 5\n")
        (folder / version[0]).write_text("max\n")
        assert memory.host_memory() == 9 * 10**9
        for limit, free in ((8 * 10**9, 3 * 10**9 + 1200), (1 << 62, 9 * 10**9), (10**9, 0)):
            (folder / version[0]).write_text(f"{limit}\n")
            assert memory.host_memory() == free


ANSWERS = {
    "gpu": "0, GPU-aaaa, 4, 81559\n1, GPU-bbbb, 71234, 81559\n2, GPU-cccc, 20000, 81559\n3, GPU-dddd, [N/A], [N/A]\n",
    "compute": "GPU-bbbb, 4242, /usr/bin/python3\nGPU-bbbb, 4243, VLLM::EngineCore\nGPU-cccc, [N/A], [Not Found]\n",
}


def test_gpus_that_others_use_are_read_from_nvidia_smi(monkeypatch):
    monkeypatch.setattr(gpus, "nvidia_smi", lambda query, *_: ANSWERS[query.split("-")[3].partition("=")[0]])
    chosen = {"CUDA_VISIBLE_DEVICES": "2,GPU-bbbb"}
    assert [str(gpu) for gpu in gpus.chosen_gpus(chosen)] == [
        "GPU 2 has 21.0 GB of 85.5 GB in use by a process that is not shown here",
        "GPU 1 has 74.7 GB of 85.5 GB in use by 4242 (python3), 4243 (VLLM::EngineCore)",
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [(gpu.total, gpu.used) for gpu in gpus.taken(2)] == [(H100, 4 << 20), (H100, 71_234 << 20)]


def test_each_gpu_that_the_run_takes_is_held_against_its_own_free_memory(monkeypatch):
    """What one GPU has is never held against what is in use on another, nor against a GPU that stays idle."""

    def on(*sizes: tuple[int, int], count: int):
        every = [gpus.Gpu(str(n), f"GPU-{n}", used << 20, size << 20) for n, (used, size) in enumerate(sizes)]
        recipe_on(monkeypatch, H200, 1)
        monkeypatch.setattr(gpus, "gpus_here", lambda: every)
        return load("countdown", arguments=[f"trainer.n_gpus_per_node={count}"], environ={}, hardware="gpu")

    tokens = "worker.actor.max_token_len_per_device"
    alone = on((0, 143_000), count=1)
    beside_a_small_one = on((0, 143_000), (0, 16_000), count=1)
    assert memory.plan_of(beside_a_small_one).free == memory.plan_of(alone).free == 143_000 << 20
    assert beside_a_small_one.value(tokens) == alone.value(tokens)

    unequal, equal = on((40_000, 143_000), (0, 81_000), count=2), on((0, 81_000), (0, 81_000), count=2)
    assert memory.plan_of(unequal).free == 81_000 << 20
    assert unequal.value(tokens) == equal.value(tokens)
    assert unequal.value(SHARE) == 0.32  # 0.6 less 40,000 of 143,000 MiB

    plan = replace(memory.plan_of(alone), utilization=0.6)
    plans = [replace(plan, gpu=200 << 30, in_use=100 << 30), replace(plan, gpu=90 << 30)]
    generation, *others = memory.tightest_phases(plans)
    assert (generation.limit, generation.parts["vLLM"]) == (100 << 30, 0.6 * (200 << 30))
    assert {phase.limit for phase in others} == {90 << 30}


@pytest.mark.parametrize("size", [H100, H200])
@pytest.mark.parametrize(("model", "recomputes"), [("Qwen/Qwen2.5-7B", ()), ("Qwen/Qwen2.5-14B", (H100,))])
def test_larger_models_fit_eight_gpus_at_the_recipes_own_batch(monkeypatch, model, recomputes, size):
    """The plan of docs/PERFORMANCE.md; a 14B recomputes activations on 80 GB."""
    recipe = recipe_on(monkeypatch, size, 8, EMBEDDED="0", MODEL_PATH=model)
    lines = memory.check_memory(recipe)
    assert not [line for line in lines if "does not fit" in line or "the limit" in line], lines
    actor = recipe.worker.actor
    assert actor.model.enable_gradient_checkpointing is (size in recomputes)
    assert actor.max_token_len_per_device >= 4 * recipe.longest
    assert (recipe.data.rollout_batch_size, recipe.worker.rollout.n, recipe.n_gpus) == (64, 16, 8)


@pytest.mark.parametrize("task", tasks())
def test_every_shipped_recipe_fits_eight_h100(monkeypatch, task):
    made = {"gsm8k_smollm2": {"MODEL_PATH": "HuggingFaceTB/SmolLM2-135M-Instruct"}}.get(task, {})
    lines = memory.check_memory(recipe_on(monkeypatch, H100, 8, task=task, EMBEDDED="0", **made))
    assert any(line.startswith("memory of a GPU, estimated") for line in lines), lines
