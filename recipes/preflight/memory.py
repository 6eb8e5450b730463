"""A recipe's memory before anything starts: what does not fit is refused, with who holds it and what to change.

`recipes/memory/estimates.py` has the estimate of each phase.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from recipes.config import Recipe, kl
from recipes.config.gpus import model_shape
from recipes.config.schema.keys import settled
from recipes.errors import RecipeError
from recipes.memory import gpus
from recipes.memory.budgets import GIGABYTE
from recipes.memory.estimates import (
    BACKWARD,
    FORWARD,
    GENERATE,
    HALF,
    HOST,
    LOAD,
    STEP,
    MemoryPlan,
    Phase,
    gpu_phases,
    host_memory,
    host_phases,
    number_bytes,
    phases,
    vllm_cache,
)
from recipes.memory.shape import published_shape, shape
from recipes.paths import ROOT

ACTOR = "worker.actor"
LORA_RANK = 64
"""The rank that the advice proposes."""


def plan_of(recipe: Recipe, gpu: int | None = None) -> MemoryPlan | None:
    """The plan of a recipe; None where the model's shape is not known.

    Args:
        gpu: bytes of one GPU that nobody uses; None: of those that the run takes, the one with the least free.
    """
    actor, rollout, model = recipe.worker.actor, recipe.worker.rollout, recipe.worker.actor.model
    sizes = model_shape(model.model_path)
    tightest = None
    if recipe.hardware == "gpu" and gpu is None:
        tightest = min(gpus.taken(recipe.trainer.n_gpus_per_node), key=lambda each: each.free, default=None)
        gpu = tightest.total if tightest else None
    if sizes is None or (recipe.hardware == "gpu" and gpu is None):
        return None
    longest, here = recipe.longest, recipe.n_gpus // recipe.trainer.nnodes
    sharing = actor.fsdp.fsdp_size if 0 < actor.fsdp.fsdp_size < recipe.n_gpus else recipe.n_gpus

    def tokens(budget: int | None, responses: int) -> int:
        filled = budget if actor.dynamic_batching and budget else responses * -(-longest // actor.ulysses_size)
        return int(filled)

    update = tokens(actor.max_token_len_per_device, settled(actor.micro_batch_size_per_device_for_update))
    each = settled(actor.global_batch_size) * rollout.n * longest // max(1, recipe.n_gpus)
    return MemoryPlan(
        shape=sizes,
        gpu=gpu if recipe.hardware == "gpu" else None,
        in_use=tightest.used if tightest else 0,
        host=host_memory(),
        ranks=sharing,
        ranks_here=here,
        update_tokens=update,
        forward_tokens=tokens(
            actor.max_token_len_per_device_for_experience or actor.max_token_len_per_device,
            settled(actor.micro_batch_size_per_device_for_experience),
        ),
        longest=longest,
        dynamic=actor.dynamic_batching,
        image_share=recipe.data.max_prompt_length / longest if rollout.limit_images else 0.0,
        recompute=settled(model.enable_gradient_checkpointing),
        liger=model.use_liger,
        fused=actor.use_fused_kernels,
        compute_bytes=number_bytes(actor.fsdp.mp_param_dtype),
        keeps_weights_asleep=recipe.engine == "easyr1" or bool(model.lora.rank),
        reference_bytes=_reference_bytes(recipe),
        saves=recipe.trainer.save_freq > 0 and recipe.trainer.save_hf_model,
        reference=kl.in_reward(recipe) is not None or kl.in_loss(recipe) is not None,
        accumulates=each > update,
        tensor=rollout.tensor_parallel_size,
        utilization=rollout.gpu_memory_utilization if recipe.hardware == "gpu" else 0.0,
        sequences=rollout.max_num_seqs or 256,
        batched_tokens=rollout.max_num_batched_tokens,
        eager=rollout.enforce_eager,
        weight_bytes=number_bytes(actor.fsdp.torch_dtype),
        lora=model.lora.rank,
        offload_params=actor.offload.offload_params,
        offload_optimizer=actor.offload.offload_optimizer,
        offload_all=actor.fsdp.enable_cpu_offload,
    )


def _reference_bytes(recipe: Recipe) -> int:
    """Bytes of a number of the reference: verl holds float32 as it computes (`recipes/engines/reference_memory.py`),
    EasyR1 the type that is asked for, and bf16 on GPUs where none is."""
    fsdp, easyr1 = recipe.worker.ref.fsdp, recipe.engine == "easyr1"
    if easyr1 and (fsdp.torch_dtype or recipe.hardware == "gpu"):
        return number_bytes(fsdp.torch_dtype or "bf16")
    return min(number_bytes(fsdp.torch_dtype), number_bytes(fsdp.mp_param_dtype))


def advice(plan: MemoryPlan, phase: str) -> str:
    """Return two settings that reduce the memory of a phase, as a user types them, the cheapest first."""
    of_gpu = (GENERATE, FORWARD, BACKWARD, STEP)
    on_cpus = (HOST,) if plan.gpu is None else ()  # where activations and the trained weights lie on the host
    apart = [name for name in ("params", "optimizer") if getattr(plan, f"offload_{name}")]
    together = " ".join(f"{ACTOR}.offload.offload_{name}=false" for name in apart)
    tokens = f"{ACTOR}.max_token_len_per_device" if plan.dynamic else "MICRO_BATCH_SIZE"
    experience = f"{tokens}_for_experience" if plan.dynamic else f"{tokens}_FOR_EXPERIENCE"
    offloaded = plan.offload_params and plan.offload_optimizer
    offload = f"{ACTOR}.offload.offload_params=true {ACTOR}.offload.offload_optimizer=true"
    ways: list[tuple[tuple[str, ...], bool, str]] = [
        ((GENERATE,), True, "a smaller GPU_MEMORY_UTILIZATION"),
        ((GENERATE,), not offloaded, offload),
        ((BACKWARD,), not plan.fused, f"{ACTOR}.use_fused_kernels=true"),
        ((BACKWARD, *on_cpus), not plan.recompute, f"{ACTOR}.model.enable_gradient_checkpointing=true"),
        ((BACKWARD, *on_cpus), plan.update_tokens > plan.longest, f"a smaller {tokens}"),
        ((FORWARD,), plan.forward_tokens > plan.longest, f"a smaller {experience}"),
        ((BACKWARD, STEP), not plan.offload_all, f"{ACTOR}.strategy=fsdp2 {ACTOR}.fsdp.enable_cpu_offload=true"),
        (of_gpu, True, "a larger GPUS_PER_NODE"),
        ((HOST,), plan.saves, "trainer.save_hf_model=false"),
        ((HOST,), bool(together) and plan.gpu is not None and not plan.offload_all, together),
        ((LOAD, HOST), plan.ranks_here > 1, "a smaller GPUS_PER_NODE"),
        ((*of_gpu, *on_cpus), not plan.lora, f"LORA_RANK={LORA_RANK}"),
    ]
    return "; or ".join([text for where, helps, text in ways if helps and phase in where][:2])


def tightest_phases(plans: Iterable[MemoryPlan]) -> list[Phase]:
    """Of every phase the one that has the least to spare, from the plans of the GPUs.

    vLLM takes a share of what each GPU has, so that generation may be tightest on another GPU than the rest.
    """
    every = zip(*(gpu_phases(plan) for plan in plans), strict=True)
    return [min(same, key=lambda phase: (phase.limit or 0) - phase.need) for same in every]


def check_memory(recipe: Recipe) -> list[str]:
    """Raise where a phase surely does not fit; remark on the estimate of every phase, and on what is close.

    Raises:
        RecipeError: names the phase that lacks most, who holds memory of the GPUs, and two settings that need less.
    """
    others = busy(recipe) if recipe.hardware == "gpu" else []
    _refuse_less_than_vllm_takes(recipe, others)
    lines = [*(str(gpu) for gpu in others), *(unequal(recipe) if recipe.hardware == "gpu" else [])]
    plan = plan_of(recipe)
    name = str(recipe.worker.actor.model.model_path or "")
    if plan is None:
        unknown = recipe.hardware == "gpu" and not gpus.chosen_gpus()
        reason = (
            "the GPU's memory is not known" if unknown else f"the shape of {name} is not known before it is fetched"
        )
        return [*lines, f"memory is not estimated: {reason}"]
    chosen = gpus.taken(recipe.trainer.n_gpus_per_node) if plan.gpu else []
    plans = [replace(plan, gpu=gpu.total, in_use=gpu.used) for gpu in chosen]
    on_gpus = tightest_phases(plans)
    every = [*on_gpus, *host_phases(plan)]
    failing = [phase for phase in every if not phase.fits]
    if failing:
        worst = max(failing, key=lambda phase: phase.need / (phase.limit or 1))
        too = [phase.name for phase in failing if phase is not worst]
        what = f"{name} does not fit: {worst}" + (f"; nor does {', '.join(too)}" if too else "")
        fixes = [advice(plan, worst.name)]
        if any(each.in_use > gpus.IDLE and worst.limit == each.free for each in plans):
            what, fixes = "; ".join([what, *lines]), [_elsewhere(), *fixes]
        fix = "; or ".join(filter(None, fixes)) or "a smaller model, set by MODEL_PATH, or larger machines"
        raise recipe.error(what, fix, "worker.actor.model.model_path")
    if plan.gpu:
        most, *rest = sorted(on_gpus, key=lambda phase: -phase.need)
        less = ", ".join(f"{phase.name} {phase.need / GIGABYTE:.1f}" for phase in rest)
        smallest = min(plans, key=lambda each: each.gpu or 0)
        lines += [f"memory of a GPU, estimated: {most}; {less}", *_cache_lines(recipe, smallest)]
    host = max(host_phases(plan), key=lambda phase: phase.need)
    lines.append(f"memory of the host, estimated: {host}")
    for phase in every:
        if phase.is_close:
            way_out = advice(plan, phase.name)
            above = phase.need > (phase.limit or 0)
            state = "is above the limit, by an estimate that may be too high" if above else "comes close to the limit"
            lines.append(f"{phase.name} {state}" + (f"; if memory runs out: {way_out}" if way_out else ""))
    return lines


def unequal(recipe: Recipe) -> list[str]:
    """Remark on GPUs of different sizes: each gets as much work, and each phase is estimated on the tightest."""
    chosen = gpus.taken(recipe.trainer.n_gpus_per_node)
    sizes = {gpu.total: [each.index for each in chosen if each.total == gpu.total] for gpu in chosen}
    if len(sizes) < 2:
        return []
    listed = ", ".join(
        f"{size / GIGABYTE:.1f} GB (GPU {', '.join(indices)})" for size, indices in sorted(sizes.items())
    )
    return [
        f"the GPUs are not equal: {listed}. Each gets the same work, fitted to the smallest, and the fast ones wait; "
        "CUDA_VISIBLE_DEVICES chooses equal ones"
    ]


def busy(recipe: Recipe) -> list[gpus.Gpu]:
    """Return the GPUs of this run of which others hold more than an idle one shows."""
    return [gpu for gpu in gpus.taken(recipe.trainer.n_gpus_per_node) if gpu.used > gpus.IDLE]


def _refuse_less_than_vllm_takes(recipe: Recipe, others: list[gpus.Gpu]) -> None:
    """Raise where less is free than vLLM takes at once, whatever the model's size."""
    key = "worker.rollout.gpu_memory_utilization"
    share = recipe.value(key)
    if any(gpu.free < share * gpu.total for gpu in others):
        lines = "; ".join(str(gpu) for gpu in others)
        raise recipe.error(f"{lines}; vLLM will ask for {share:.0%} of each", _elsewhere(), key)


def _elsewhere() -> str:
    free = [gpu.index for gpu in gpus.gpus_here() if gpu.used <= gpus.IDLE]
    choose = f"CUDA_VISIBLE_DEVICES={','.join(free)} GPUS_PER_NODE={len(free)}" if free else "wait until it has ended"
    return f"end that process if it is yours, or {choose}"


def _cache_lines(recipe: Recipe, plan: MemoryPlan) -> list[str]:
    """Return how many responses of full length vLLM's cache holds. Raises RecipeError where it holds none."""
    left, each = vllm_cache(plan)
    held = max(0, int(left / each / plan.longest))
    weights = HALF * plan.shape.parameters / plan.tensor
    if plan.utilization * (plan.gpu or 0) - weights < plan.longest * each:
        raise recipe.error(
            f"vLLM's {plan.utilization:.0%} of a GPU, {plan.utilization * (plan.gpu or 0) / GIGABYTE:.1f} GB, do not "
            f"hold its weights, {weights / GIGABYTE:.1f} GB, and the cache of one response",
            f"TENSOR_PARALLEL_SIZE={2 * plan.tensor}; or a larger GPU_MEMORY_UTILIZATION",
            "worker.rollout.gpu_memory_utilization",
        )
    line = f"vLLM's cache, estimated: {max(0.0, left) / GIGABYTE:.1f} GB, {held:,} responses of full length"
    return [line + ("" if held >= plan.sequences else f"; {plan.sequences} at once wait for one another when long")]


MEASUREMENTS = ROOT / "docs" / "results" / "memory.json"
"""Measurements: `what`, `gigabytes`, the `model` on the hub or folder here, and what differs from `MemoryPlan`."""


def held_against_measurements() -> list[tuple[str, float, float]]:
    """Return what was measured, in GB, beside its estimate; a table in docs/MEMORY.md."""
    rows = []
    for each in json.loads(MEASUREMENTS.read_text(encoding="utf-8")):
        sizes = shape(ROOT / each["model"]) or published_shape(each["model"])
        if sizes is None:
            raise RecipeError(
                f"the sizes of {each['model']} are not known", where=str(MEASUREMENTS), fix="name another"
            )
        plan = MemoryPlan(sizes, **each["plan"])
        update = [phase for phase in phases(plan) if phase.name in ((HOST,) if plan.gpu is None else (BACKWARD, STEP))]
        rows.append((each["what"], each["gigabytes"], max(phase.need for phase in update) / GIGABYTE))
    return rows
