"""Memory by phase: held against measurements, and settings that need less."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes import preflight
from recipes.config import check, load, tasks
from recipes.config import gpus as plans
from recipes.data.custom import ready
from recipes.memory import estimates, fit, gpus
from recipes.memory.shape import published, published_shape
from recipes.preflight import machine, memory
from recipes.preflight.resume import fingerprint
from tests.mistakes import mistake
from tools.pages.memory import held_against_measurements

A10, H100, H200 = 23_028 << 20, 81_559 << 20, 143_771 << 20
FOUR, SMOLLM2 = "Qwen/Qwen3-4B", "HuggingFaceTB/SmolLM2-135M-Instruct"
VISION = "Qwen/Qwen2.5-VL-{}B-Instruct"
SHARE, TOKENS = fit.KEYS["utilization"], fit.KEYS["update_tokens"]
SIX = ["data.rollout_batch_size=6", "worker.actor.global_batch_size=6"]
ODD = [{"experts": 8}, {"num_attention_heads": 0, "head_dim": None}, {"num_hidden_layers": 0}, {"vocab_size": "151936"}]
EASYR1_OF_TWO = ["engine=easyr1", "worker.actor.fsdp.fsdp_size=2"]
ON_GPU = [f"{fit.KEYS[name]}=false" for name in ("offload_params", "offload_optimizer")]


@pytest.mark.parametrize(("what", "measured", "estimated"), held_against_measurements())
def test_estimates_are_within_15_percent_of_what_was_measured_or_above(what, measured, estimated):
    assert 0.85 * measured <= estimated <= (1 + estimates.ESTIMATE_TOLERANCE) * measured


@pytest.mark.parametrize(
    ("task", "environ", "plan", "measured"),
    [
        ("gsm8k_smollm2", {"MODEL_PATH": SMOLLM2}, {"utilization": 0.028, "sequences": 1_024}, 9.3e9),
        (
            "gsm8k",
            {"MODEL_PATH": "Qwen/Qwen2.5-0.5B", "LORA_RANK": "64", "ROLLOUT_BATCH_SIZE": "16", "ROLLOUT_N": "8"},
            {"utilization": 0.029, "sequences": 256},
            7.7e9,
        ),
    ],
)
def test_generation_on_a_card_of_8_gb_is_estimated_as_measured(task, environ, plan, measured):
    """On an H200 of which another process held all but 7.9 GB: the first ran out of memory, the second did not."""
    arguments = ["--gpus", "1x141", "worker.actor.global_batch_size=16"]
    recipe = load(task, arguments=arguments, environ=environ)
    whole = 150_109_880_320
    phases = estimates.gpu_phases(replace(plans.plan_of(recipe), gpu=whole, in_use=whole - 7_899_054_080, **plan))
    need = next(phase.whole for phase in phases if phase.name == estimates.GENERATE)
    assert 0.98 * measured <= need <= (1 + estimates.ESTIMATE_TOLERANCE) * measured


def recipe_on(monkeypatch, size, count, *arguments, task="countdown", used=0, **environ):
    every = [gpus.Gpu(str(n), f"GPU-{n}", used, size, ("4242 (python3)",) * bool(used)) for n in range(count)]
    monkeypatch.setattr(gpus, "gpus_here", lambda: every)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(plans, "host_memory", lambda: 1 << 40)
    return load(task, arguments=[f"trainer.n_gpus_per_node={count}", *arguments], environ=environ, hardware="gpu")


def of(recipe, *names: str) -> list:
    return [recipe.value(fit.KEYS[name]) for name in names]


def test_the_fastest_settings_that_fit_are_chosen(monkeypatch):
    """One H100 80GB, which refused Qwen3-4B; the shapes that were measured stay as they were."""
    chosen = ("utilization", "offload_params", "offload_optimizer", "recompute", "fused_adam", "update_tokens")
    one = recipe_on(monkeypatch, H100, 1)
    memory.check_memory(one)
    assert of(one, *chosen) == [0.338, False, False, True, True, 7_168]
    other = recipe_on(monkeypatch, H200, 1)
    assert of(other, *chosen) == [0.6, False, False, False, False, 13_312]
    assert of(recipe_on(monkeypatch, H100, 8), *chosen) == [0.6, False, False, False, False, 13_312]
    small = recipe_on(monkeypatch, 44_000 << 20, 2)
    memory.check_memory(small)
    assert of(small, "offload_params", "offload_optimizer") == [False, True]
    tiny = recipe_on(monkeypatch, H100, 1, task="gsm8k_smollm2", MODEL_PATH=SMOLLM2)
    assert of(tiny, "recompute", "update_tokens", "forward_tokens") == [False, 65_536, 131_072]
    # A run goes on with the settings of another GPU.
    before, after = fingerprint(one), fingerprint(other)
    assert before.content == after.content
    assert {key for key, value in before.settings.items() if after.settings[key] != value} <= set(fit.KEYS.values())


@pytest.mark.parametrize(
    ("model", "gpus_", "environ", "is_fitting"),
    [
        ("Qwen/Qwen2.5-0.5B", "1x8", {"LORA_RANK": "32"}, True),
        ("Qwen/Qwen2.5-3B", "1x12", {"LORA_RANK": "32"}, True),
        ("Qwen/Qwen3-4B", "1x16", {"LORA_RANK": "32"}, True),
        ("Qwen/Qwen2.5-7B", "1x24", {"LORA_RANK": "32"}, True),
        ("Qwen/Qwen2.5-7B", "1x24", {"LORA_RANK": "32", "RECIPES_PATCHES": "0"}, True),  # on the host in float32
        ("Qwen/Qwen2.5-14B", "1x48", {"LORA_RANK": "32"}, True),
        ("Qwen/Qwen2.5-3B", "1x8", {"LORA_RANK": "32"}, False),
        ("Qwen/Qwen3-8B", "1x24", {"LORA_RANK": "64", "MAX_RESPONSE_LENGTH": "12000"}, False),  # a cache for one
        (SMOLLM2, "1x8", {}, True),
        ("Qwen/Qwen2.5-1.5B", "1x24", {}, False),
    ],
)
def test_small_cards(model, gpus_, environ, is_fitting):
    """What is printed of a phase adds up, with what is kept for vLLM, to no more than the card has."""
    task = "gsm8k_smollm2" if model == SMOLLM2 else "gsm8k"
    plan = plans.plan_of(load(task, arguments=["--gpus", gpus_], environ={"MODEL_PATH": model, **environ}))
    assert fit.fits(plan) is is_fitting
    for phase in estimates.gpu_phases(plan):
        total, limit, *parts = map(float, re.findall(r"\d+\.\d", str(phase).replace(model, "")))
        assert total == pytest.approx(sum(parts), abs=0.05 * (len(parts) + 3))
        assert total <= limit or not is_fitting


def test_what_somebody_decides_stays_and_the_rest_follows(monkeypatch):
    recipe = recipe_on(monkeypatch, H200, 1)
    rollout = recipe.worker.rollout
    assert recipe.worker.actor.use_fused_kernels
    assert of(recipe, "forward_tokens") == [fit.MAX_FORWARD_TOKENS]
    assert (rollout.max_num_seqs, rollout.cudagraph_capture_sizes[-1]) == (1_024, 1_024)
    packed = recipe_on(monkeypatch, H200, 1, MICRO_BATCH_SIZE="2")
    assert packed.value(TOKENS) == recipe.value(TOKENS), "packed passes are filled by tokens"
    given_ = recipe_on(monkeypatch, H200, 1, f"{TOKENS}=4096", "worker.rollout.max_num_seqs=77")
    assert of(given_, "update_tokens", "forward_tokens") == [4096, 4096]
    assert (given_.worker.rollout.max_num_seqs, given_.worker.rollout.cudagraph_capture_sizes[-1]) == (77, 77)


def test_a_model_below_another_folder_of_artifacts_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps({**published()[FOUR], "logits_scaling": 8}))
    recipe = recipe_on(monkeypatch, H200, 1, MODEL_PATH="artifacts/models")
    assert of(recipe, "recompute", "update_tokens")[1] != fit.TOKENS_OF_UNKNOWN_MODEL
    assert not recipe.worker.actor.use_fused_kernels, "the fused head does not scale logits"


@pytest.mark.parametrize("config", [{}, [], *({**published()[FOUR], **odd} for odd in ODD)])
def test_nothing_is_fitted_to_a_model_or_a_gpu_that_is_not_known(monkeypatch, tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    unknown = [recipe_on(monkeypatch, H200, 1, MODEL_PATH=str(tmp_path))]
    monkeypatch.setattr(gpus, "gpus_here", list)
    unknown.append(load("countdown", environ={}, hardware="gpu"))
    for recipe in unknown:
        assert of(recipe, "recompute", "update_tokens") == [True, fit.TOKENS_OF_UNKNOWN_MODEL]


@given(
    size=st.integers(16, 200),
    ranks=st.sampled_from([1, 2, 8]),
    model=st.sampled_from([FOUR, "Qwen/Qwen2.5-7B", "Qwen/Qwen3-0.6B"]),
    lora=st.sampled_from([0, 16]),
    share=st.sampled_from([None, 0.2, 0.6]),
    offload=st.sampled_from([None, False, True]),
    fused=st.booleans(),
)
@settings(deadline=None)
def test_what_was_asked_for_stays_and_more_memory_moves_nothing_away(size, ranks, model, lora, share, offload, fused):
    def on(gigabytes: int) -> estimates.MemoryPlan:
        sizes = {"longest": 2_304, "prompt": 256, "sequences": 256, "ranks": ranks, "lora": lora, "fused": fused}
        plan = estimates.MemoryPlan(published_shape(model), gigabytes * 10**9, **sizes)
        return fit.choose_settings(plan, {"utilization": share, "offload_optimizer": offload})

    small, large = on(size), on(size + 60)
    assert share is None or small.utilization == share
    assert offload is None or small.offload_optimizer is offload
    if fit.fits(small):
        assert fit.fits(large)
        moved = [(plan.offload_params, plan.offload_optimizer, plan.recompute) for plan in (small, large)]
        assert all(after <= before for before, after in zip(*moved, strict=True))
    for way in [] if fit.fits(small) else fit.ways_out(small, {"utilization": share}, fit.Machine(gpus=1)):
        assert fit.fits(way.plan)
        assert "=" in way.text


@pytest.mark.parametrize(
    ("task", "size", "count", "arguments", "environ", "nearest"),
    [
        ("countdown", 46_068 << 20, 1, [], {}, "LORA_RANK=64 LR=2e-05"),
        ("countdown", H100, 1, [f"{SHARE}=0.6", *ON_GPU], {}, SHARE),
        ("countdown", H100, 1, ["data.max_response_length=120000"], {}, "MAX_RESPONSE_LENGTH="),
        ("custom", H100, 1, [], {}, "MODEL_PATH=Qwen/Qwen3-4B"),
        ("custom", A10, 1, ["worker.actor.optim.lr=3e-6"], {}, "LORA_RANK=64 LR=3e-05"),
        ("number_game", A10, 2, [], {"MODEL_PATH": VISION.format(7)}, "LORA_RANK=64 LR=1e-05 TENSOR_PARALLEL_SIZE=2"),
        (
            "number_game",
            A10,
            2,
            [],
            {"MODEL_PATH": VISION.format(3)},
            "worker.actor.strategy=fsdp2 worker.actor.f",
        ),
        ("gsm8k", A10, 1, [], {"MODEL_PATH": "Qwen/Qwen2.5-1.5B"}, "worker.actor.fsdp.torch_dtype=bf16"),
        ("gsm8k", A10, 2, ["engine=easyr1"], {}, "worker.actor.fsdp.torch_dtype=bf16 worker.actor.optim.strategy="),
        ("number_game", H200, 1, ["engine=easyr1"], {"MODEL_PATH": VISION.format(7)}, "LORA_RANK=64"),
        ("gsm8k", A10, 3, SIX, {"MODEL_PATH": "Qwen/Qwen2.5-14B"}, "GPUS_PER_NODE=4 TENSOR_PARALLEL_SIZE=4 LORA"),
    ],
)
def test_what_does_not_fit_is_refused_with_changes_that_fit_as_a_user_types_them(
    monkeypatch, task, size, count, arguments, environ, nearest
):
    error = mistake(lambda: memory.check_memory(recipe_on(monkeypatch, size, count, *arguments, task=task, **environ)))
    ways = [way.partition("  # ")[0].strip() for way in error.fix.splitlines()[1:]]
    assert any(way.startswith(nearest) for way in ways), ways
    for way in ways:
        typed = dict(word.split("=") for word in way.split())
        keys = {key.partition("=")[0]: key for key in arguments}
        keys |= {name: f"{name}={value}" for name, value in typed.items() if "." in name}
        if "MAX_RESPONSE_LENGTH" in typed:
            keys.pop("data.max_response_length", None)
        on = int(typed.pop("GPUS_PER_NODE", count)) * int(typed.get("NNODES", 1))
        named = environ | {name: value for name, value in typed.items() if "." not in name}
        recipe = recipe_on(monkeypatch, size, on // int(typed.get("NNODES", 1)), *keys.values(), task=task, **named)
        memory.check_memory(recipe)
        check(recipe)
        preflight.check_engine(recipe)


@pytest.mark.parametrize("of_two", [["+actor_rollout_ref.actor.fsdp_config.fsdp_size=2"], EASYR1_OF_TWO])
def test_weights_are_sharded_over_the_group_that_the_engine_is_given(monkeypatch, of_two):
    assert plans.plan_of(recipe_on(monkeypatch, H200, 8)).ranks == 8
    assert plans.plan_of(recipe_on(monkeypatch, H200, 8, *of_two)).ranks == 2


@pytest.mark.parametrize(("environ", "responses"), [({}, 5), ({"RECIPES_PATCHES": "0"}, 1), ({"ENGINE": "easyr1"}, 1)])
def test_a_picture_counts_once_for_its_responses_where_the_tower_sees_it_once(monkeypatch, environ, responses):
    plan = plans.plan_of(recipe_on(monkeypatch, H200, 2, task="number_game", TINY="0", **environ))
    assert plan.show_once == responses
    token, cut = plan.activations(recompute=False)
    alone = plan.shape.activations(recompute=False, liger=plan.liger)
    shown = plan.image_share * plan.shape.image_activations(recompute=False)
    assert token == pytest.approx(alone + shown / responses)
    assert cut == (plan.longest * shown if responses > 1 else 0)


def test_unchanged_verl_keeps_the_reference_in_the_type_of_its_weights(monkeypatch):
    made = {patches: plans.plan_of(recipe_on(monkeypatch, H200, 8, RECIPES_PATCHES=patches)) for patches in "01"}
    assert {patches: plan.reference_bytes for patches, plan in made.items()} == {"0": 4, "1": 2}


def test_what_others_hold_is_taken_out_of_vllms_share_and_of_the_passes(monkeypatch):
    """The trial that died: 12.7 GB in use, and an estimate of 138.7 of 151 GB."""
    alone = recipe_on(monkeypatch, H200, 1)
    beside = recipe_on(monkeypatch, H200, 1, used=int(12.7e9))
    assert alone.value(SHARE) == 0.6
    assert beside.value(SHARE) == 0.527
    assert beside.value(TOKENS) < alone.value(TOKENS)
    assert "GPU 0 has 12.7 GB of 150.8 GB in use by 4242 (python3)" in memory.check_memory(beside)
    plan = plans.plan_of(beside)
    assert all(phase.need + 12.7e9 + phase.aside < H200 for phase in estimates.gpu_phases(plan))


@pytest.mark.parametrize(
    ("used", "arguments", "model"),
    [(int(12.7e9), [f"{SHARE}=0.6", *ON_GPU], FOUR), (H200 // 2, [], "of/unknown-size"), (H200, [], FOUR)],
)
def test_a_gpu_that_others_fill_is_refused_with_the_name_of_who_holds_it(monkeypatch, used, arguments, model):
    recipe = recipe_on(monkeypatch, H200, 1, *arguments, used=used, MODEL_PATH=model)
    assert "4242 (python3)" in mistake(lambda: memory.check_memory(recipe)).what


def test_a_plan_for_gpus_that_are_not_here(monkeypatch, tmp_path):
    """From a folder that has only config.json; a start on them is refused."""
    (tmp_path / "config.json").write_text(json.dumps(published()["Qwen/Qwen2.5-0.5B"]))
    recipe = load("countdown", arguments=["--gpus", "1x24"], environ={"MODEL_PATH": str(tmp_path)})
    assert (recipe.hardware, recipe.n_gpus, recipe.value(SHARE) > 0.3) == ("gpu", 1, True)
    monkeypatch.setattr(machine, "visible_gpus", lambda _: 0)
    monkeypatch.setattr(machine, "lacks", lambda *_: True)  # of the GPUs that are here
    monkeypatch.setenv("EASYR1_HOME", str(tmp_path))
    for planned in (recipe, recipe.model_copy(update={"engine": "easyr1"})):
        preflight.check_before_data(planned, plan_only=True)
    found = preflight.dry(recipe)
    assert not found.errors
    assert any("23.5 GB" in line for line in found.remarks)
    mistake(lambda: preflight.check_before_data(recipe))
    for content in ("{}", '{"hidden_size": 64}', ""):
        (tmp_path / "config.json").write_text(content)
        unknown = load("countdown", arguments=["--gpus", "1x24"], environ={"MODEL_PATH": str(tmp_path)})
        (error,) = preflight.dry(unknown).errors
        assert "worker.actor.model.model_path" in error.where
    for wrong in ("", "24", "0x24", "1x0", "two", "1x24GB"):
        assert "gpus" in mistake(lambda wrong=wrong: load("countdown", arguments=["--gpus", wrong], environ={})).where


def test_an_estimate_that_was_never_measured_says_that_it_is_above_and_refuses_nothing(monkeypatch):
    recipe = recipe_on(monkeypatch, H200, 1)
    monkeypatch.setattr(plans, "host_memory", lambda: 8 << 30)
    assert any(line.startswith("training is above the limit") for line in memory.check_memory(recipe))


def test_a_machine_without_gpus_and_without_free_memory_is_refused(monkeypatch):
    monkeypatch.setattr(plans, "host_memory", lambda: 1 << 30)
    error = mistake(lambda: memory.check_memory(load("countdown", environ={}, hardware="cpu")))
    assert "LORA_RANK" in error.fix
    assert "worker.actor.model.model_path" in error.where


def test_the_hosts_memory_is_what_is_free_now(monkeypatch, tmp_path):
    """The machine's 9 GB, or what the limit of a job around this process leaves; cached files make way."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=32 * 10**9, available=9 * 10**9))
    monkeypatch.setattr(estimates, "OWN_CGROUPS", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text("4:cpu,memory:/job/step\n1:name=systemd:/x\n0::/job/step\n")
    for _, *version in estimates.CGROUPS:
        _, limit_file, used_file, prefix = version
        root = tmp_path / f"version-of-{limit_file}"
        monkeypatch.setattr(estimates, "CGROUPS", ((root, *version),))
        for folder in (root, root / "job"):
            folder.mkdir()
            assert estimates.host_memory() == 9 * 10**9, "no limit"
            (folder / used_file).write_text(f"{5 * 10**9}\n")
            cached = f"anon 7\n{prefix}inactive_file 1000\n{prefix}active_file 200\nshmem 5\n"
            (folder / "memory.stat").write_text(cached)
            (folder / limit_file).write_text("max\n")
            assert estimates.host_memory() == 9 * 10**9
            for limit, free in ((8 * 10**9, 3 * 10**9 + 1200), (10**9, 0), (1 << 62, 9 * 10**9)):
                (folder / limit_file).write_text(f"{limit}\n")
                assert estimates.host_memory() == free
                assert (str(folder) in estimates.memory_limit()) == (limit < 32 * 10**9)


@pytest.mark.parametrize(("dtype", "is_refused"), [("bf16", True), ("fp16", False)])
def test_a_card_without_bf16_is_named(monkeypatch, dtype, is_refused):
    monkeypatch.setattr(gpus, "model", lambda: ("Tesla T4", (7, 5)))
    keys = [f"worker.{name}={dtype}" for name in ("actor.fsdp.mp_param_dtype", "rollout.dtype")]
    recipe = recipe_on(monkeypatch, H100, 1, *keys)
    if is_refused:
        assert "Tesla T4" in mistake(lambda: memory.check_memory(recipe)).what
    else:
        memory.check_memory(recipe)


ANSWERS = {
    "": "".join(f"GPU {index}: H100 (UUID: GPU-{word})\n" for index, word in enumerate(("aaaa", "bbbb", "cccc", "dd"))),
    "gpu": "0, GPU-aaaa, 81555, 81559\n1, GPU-bbbb, 10325, 81559\n2, GPU-cccc, 61559, 81559\n3, GPU-dd, [N/A], [N/A]\n",
    "compute": "GPU-bbbb, 4242, /usr/bin/python3\nGPU-bbbb, 4243, VLLM::EngineCore\nGPU-cccc, [N/A], [Not Found]\n",
}


def test_gpus_that_others_use_are_read_from_nvidia_smi(monkeypatch):
    monkeypatch.setattr(gpus, "nvidia_smi", lambda query, *_: ANSWERS[f"{query}--".split("-")[3].partition("=")[0]])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-bbbb")
    assert [str(gpu) for gpu in gpus.chosen_gpus()] == [
        "GPU 2 has 21.0 GB of 85.5 GB in use by a process that is not shown here",
        "GPU 1 has 74.7 GB of 85.5 GB in use by 4242 (python3), 4243 (VLLM::EngineCore)",
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [(gpu.total, gpu.used) for gpu in gpus.chosen_gpus()[:2]] == [(H100, 4 << 20), (H100, 71_234 << 20)]


def test_each_gpu_that_the_run_takes_is_held_against_its_own_free_memory(monkeypatch):
    """What one GPU has is never held against what is in use on another, nor against a GPU that stays idle."""

    def on(*sizes: tuple[int, int], count: int):
        every = [gpus.Gpu(str(n), f"GPU-{n}", used << 20, size << 20) for n, (used, size) in enumerate(sizes)]
        recipe_on(monkeypatch, H200, 1)
        monkeypatch.setattr(gpus, "gpus_here", lambda: every)
        return load("countdown", arguments=[f"trainer.n_gpus_per_node={count}"], environ={}, hardware="gpu")

    alone = on((0, 143_000), count=1)
    beside_a_small_one = on((0, 143_000), (0, 16_000), count=1)
    assert plans.plan_of(beside_a_small_one).free == plans.plan_of(alone).free == 143_000 << 20
    assert beside_a_small_one.value(TOKENS) == alone.value(TOKENS)

    unequal, equal = on((40_000, 143_000), (0, 81_000), count=2), on((0, 81_000), (0, 81_000), count=2)
    assert plans.plan_of(unequal).free == 81_000 << 20
    assert unequal.value(TOKENS) == equal.value(TOKENS)
    assert unequal.value(SHARE) == 0.506


@pytest.mark.parametrize("task", tasks())
def test_every_shipped_recipe_fits_eight_h100(monkeypatch, task):
    """A recipe whose model's sizes are not known here, as a new task's may be, says so."""
    recipe = recipe_on(monkeypatch, H100, 8, task=task, TINY="0")
    lines = memory.check_memory(recipe)
    known = "memory of a GPU, estimated" if plans.plan_of(recipe) else recipe.worker.actor.model.model_path
    assert any(known in line for line in lines), lines


def test_a_plan_refuses_what_the_launcher_refuses():
    planned = load("number_game", arguments=["--gpus", "2x48", "worker.actor.fsdp.enable_cpu_offload=true"], environ={})
    assert any("enable_cpu_offload" in error.what for error in preflight.dry(planned).errors)


def test_a_plan_for_gpus_that_are_not_here_still_says_that_a_step_asks_for_more_rows_than_there_are(tmp_path):
    rows = "".join(f'{{"prompt": "{i} + 1?", "ground_truth": "{i + 1}"}}\n' for i in range(20))
    (tmp_path / "few.jsonl").write_text(rows)
    arguments = ["--gpus", "8x80", "--data", str(tmp_path / "few.jsonl"), "--data_source", "math_reasoning"]
    found = preflight.dry(ready(load("custom", arguments=arguments, environ={}), lambda line: None, make=False))
    assert [error.where.split(":")[0] for error in found.errors] == ["data.rollout_batch_size"]
