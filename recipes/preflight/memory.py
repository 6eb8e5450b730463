"""Memory by phase before anything starts: what GPUs and machine must hold, and what to change where it does not fit.

Bytes a token come from `recipes/config/memory.py`; here they are added up over what is in memory at the same time. An
update has two peaks: the backward pass (state, activations, gathered layers), and Adam's step, for which torch makes
one more copy of the weights. While vLLM generates, its share of the GPU lies beside weights and moments; in the other
phases it sleeps. docs/MEMORY.md holds the estimates against measurements.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from recipes.config import Recipe, kl, memory
from recipes.config.gpus import FUSED_WIDTH
from recipes.config.machine import gpu_memory, visible_gpus
from recipes.config.memory import GIGABYTE, RESERVED_BYTES, Shape
from recipes.model_files import local_model
from recipes.paths import ROOT

HALF, FULL = 2, 4
"""Bytes of a number."""
LOGIT_BYTES = 8
"""For each logit of an update without the fused head: the logit and its gradient in 16 bits, one copy in float32."""
GRAPHS = GIGABYTE
"""vLLM's CUDA graphs and compiled kernels; an assumption."""
SYNC = 2 << 30
"""verl sends weights to vLLM in buckets of this size (`update_weights_bucket_megabytes`)."""
ESTIMATE_TOLERANCE = 0.16
"""Fraction by which estimates of activations may exceed the measured bytes (docs/MEMORY.md)."""
PROCESSES = {"cpu": (2_000 << 20, 780 << 20), "gpu": (4_900 << 20, 1_800 << 20)}
"""Host memory of driver, Ray, reward, trainer and vLLM for one rank, and of each further one: PSS of the trainer on
CPUs with the tiny model; for GPUs without the fork server that shares imports there. CUDA's libraries come on top."""
ACTOR = "worker.actor"
LORA_RANK, MAX_RANKS = 64, 64
"""What the advice proposes, and how many GPUs at most."""


@dataclass(frozen=True)
class MemoryPlan:
    """What decides the memory of a run."""

    shape: Shape  # of policy and reference, and of the critic where there is one
    gpu: int | None  # bytes of one GPU; None without GPUs, where everything lies on the host
    host: int | None = None  # bytes of the machine; None where they are not known
    ranks: int = 1  # GPUs that share one copy of the weights
    ranks_here: int = 1  # GPUs of this machine
    update_tokens: int = 0  # of a pass with gradients
    forward_tokens: int = 0  # of a pass without
    longest: int = 0  # tokens of prompt and response together
    dynamic: bool = True  # passes are filled by tokens
    image_share: float = 0.0  # of the tokens
    recompute: bool = True  # activations are computed again
    liger: bool = False
    fused: bool = False  # the head keeps no logits
    weight_bytes: int = FULL  # of a trained number; Adam's moments are two more of these
    compute_bytes: int = HALF  # of a number in forward and backward passes
    lora: int = 0  # rank of the adapters; 0 trains all weights
    reference: bool = False  # a second copy of the model gives the KL
    critic: bool = False  # a value network of the same shape is trained
    offload_params: bool = False  # weights rest on the host between their uses
    offload_optimizer: bool = False  # Adam's moments do
    offload_all: bool = False  # FSDP2 keeps weights, gradients and moments on the host, and Adam runs there
    accumulates: bool = True  # an update has several passes, so that gradients are there when one begins
    moments: bool = True  # Adam's moments are there: not in the first step, nor in trials without an optimiser
    adam: bool = True  # Adam takes its step
    tensor: int = 1  # GPUs that share vLLM's weights
    utilization: float = 0.0  # vLLM's share of a GPU
    sequences: int = 0  # responses that vLLM decodes at once
    batched_tokens: int = 0  # of one of vLLM's passes
    eager: bool = False  # vLLM runs without CUDA graphs

    @property
    def trained(self) -> int:
        """Weights that have gradients."""
        return self.shape.adapter_parameters(self.lora) if self.lora else self.shape.parameters

    def weights(self) -> float:
        """Bytes of one rank's share."""
        adapters = self.trained if self.lora else 0
        return self.weight_bytes * (self.shape.parameters + adapters) / self.ranks

    def share(self, copies: int) -> float:
        """Bytes of one rank's share of so many numbers for each trained weight."""
        return copies * self.weight_bytes * self.trained / self.ranks


@dataclass(frozen=True)
class Phase:
    """What one phase holds at its peak."""

    name: str
    parts: dict[str, float]  # what for -> bytes
    limit: int | None  # bytes that are there; None where that is not known
    aside: int = 0  # bytes on top that are not this process's own: CUDA contexts, and vLLM asleep
    spread: float = 0.0  # by which share the estimate may be too high; infinite where nothing was measured

    @property
    def need(self) -> float:
        """Bytes of the parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """False where it surely does not fit."""
        return self.limit is None or self.need <= self.limit * (1 + self.spread)

    @property
    def is_close(self) -> bool:
        """Whether it fits only if what lies beside it is small, or the estimate too high."""
        return self.fits and self.limit is not None and self.need + self.aside > self.limit

    def __str__(self) -> str:
        largest = sorted(self.parts.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{name} {size / GIGABYTE:.1f}" for name, size in largest if size >= GIGABYTE / 20)
        of = f" of {self.limit / GIGABYTE:.0f}" if self.limit else ""
        return f"{self.name} {self.need / GIGABYTE:.1f}{of} GB ({parts})"


GENERATE, FORWARD, BACKWARD, STEP = "generation", "log-probabilities", "backward pass", "optimiser step"
LOAD, HOST = "loading", "training"


def phases(plan: MemoryPlan) -> list[Phase]:
    """Every phase with its peak."""
    return [*(gpu_phases(plan) if plan.gpu else ()), *host_phases(plan)]


def gpu_phases(plan: MemoryPlan) -> Iterator[Phase]:
    """What one GPU holds."""
    shape, resting = plan.shape, plan.offload_params or plan.offload_all
    moments = plan.share(2) if plan.moments and not (plan.offload_optimizer or plan.offload_all) else 0.0
    critic = (plan.weights() + plan.share(2)) if plan.critic and not resting else 0.0
    weights = 0.0 if plan.offload_all else plan.weights()
    generation = {
        "vLLM": plan.utilization * (plan.gpu or 0),
        "weights": 0.0 if resting else plan.weights(),
        "moments": moments,
    }
    forward = {
        "weights": weights,
        "moments": moments,
        "gathered layers": shape.gathered(plan.compute_bytes, trained=False),
        "activations": plan.forward_tokens * (shape.layer_activations(plan.liger) + 8 * shape.hidden),
        "logits": 0.0 if plan.fused else plan.forward_tokens * shape.vocabulary * (HALF + FULL),
    }
    yield Phase(GENERATE, {**generation, "critic": critic}, plan.gpu, GIGABYTE + SYNC)
    for name, parts in ((FORWARD, forward), (BACKWARD, _backward(plan))):
        yield Phase(name, {**parts, "critic": critic}, plan.gpu, RESERVED_BYTES, ESTIMATE_TOLERANCE)
    if plan.adam and not plan.offload_all:
        state = {"weights": weights, "gradients": plan.share(1), "moments": plan.share(2), "Adam's copy": plan.share(1)}
        yield Phase(STEP, {**state, "critic": critic}, plan.gpu, RESERVED_BYTES)


def _backward(plan: MemoryPlan) -> dict[str, float]:
    """Gradients appear while activations go, so that the first pass of an update holds the larger of both."""
    shape, tokens = plan.shape, plan.update_tokens
    held = tokens * shape.activations(plan.recompute, plan.image_share, plan.liger)
    layer = tokens * shape.layer_activations(plan.liger) if plan.recompute else 0.0
    gradients = 0.0 if plan.offload_all else plan.share(1)
    if not plan.accumulates:
        held = max(held - layer, gradients) + layer - gradients
    return {
        "weights": 0.0 if plan.offload_all else plan.weights(),
        "gradients": gradients,
        "moments": plan.share(2) if plan.moments and not plan.offload_all else 0.0,
        "gathered layers": shape.gathered(plan.compute_bytes, trained=not plan.lora),
        "activations": held,
        "logits": 0.0 if plan.fused else tokens * shape.vocabulary * LOGIT_BYTES,
    }


def host_phases(plan: MemoryPlan) -> Iterator[Phase]:
    """What the machine holds, all its ranks together.

    With tied embeddings verl loads the whole model in each rank (`get_init_weight_context_manager`), else in one.
    """
    parameters, here, on_host = plan.shape.parameters, plan.ranks_here, plan.gpu is None
    copies = max(1, here // plan.ranks)
    first, each = PROCESSES["cpu" if on_host else "gpu"]
    processes = {"processes": float(first + each * (here - 1))}
    spread = ESTIMATE_TOLERANCE if on_host else math.inf
    loading = plan.weight_bytes * parameters * (here if plan.shape.tied else copies)
    yield Phase(LOAD, {**processes, "whole models": float(loading)}, plan.host, spread=spread)
    networks = 2 if plan.critic else 1
    model = plan.weight_bytes * parameters * min(here, plan.ranks) / plan.ranks * copies
    adam = plan.share(3 if on_host or plan.offload_all else 2) * here * networks
    parts = {
        "reference": model if plan.reference and not plan.lora else 0.0,
        "weights": model * networks if on_host or plan.offload_params or plan.offload_all else 0.0,
        "gradients and moments": adam if on_host or plan.offload_all or plan.offload_optimizer else 0.0,
        "model being saved": float(FULL * parameters),
    }
    if on_host:
        backward = _backward(plan)
        parts["activations"] = (backward["activations"] * FULL / HALF + backward["logits"]) * here
        parts["vLLM"] = float(FULL * parameters * here)
    yield Phase(HOST, {**processes, **parts}, plan.host, spread=spread)


def vllm_cache(plan: MemoryPlan) -> tuple[float, float]:
    """Bytes that vLLM's share leaves for its cache on a GPU, and bytes of the cache for one token there."""
    shape = plan.shape
    work = plan.batched_tokens * HALF * (4 * shape.hidden + 3 * shape.intermediate) / plan.tensor
    logits = plan.sequences * shape.vocabulary * 2 * FULL
    graphs = 0 if plan.eager else GRAPHS
    weights = HALF * shape.parameters / plan.tensor
    return plan.utilization * (plan.gpu or 0) - weights - work - logits - graphs, (
        2 * HALF * shape.layers * shape.keys / plan.tensor
    )


def plan_of(recipe: Recipe, gpu: int | None = None) -> MemoryPlan | None:
    """The plan of a recipe; None where the model's shape is not known.

    Args:
        gpu: bytes of one GPU; None: those of this machine's.
    """
    actor, rollout, model = recipe.worker.actor, recipe.worker.rollout, recipe.worker.actor.model
    name = str(model.model_path or "")
    shape = memory.shape(local_model(name)) or memory.published_shape(name)
    gpu = (gpu or gpu_memory()) if recipe.hardware == "gpu" else None
    if shape is None or (recipe.hardware == "gpu" and gpu is None):
        return None
    longest, here = recipe.longest, recipe.trainer.n_gpus_per_node
    sharing = actor.fsdp.fsdp_size if 0 < actor.fsdp.fsdp_size < recipe.n_gpus else recipe.n_gpus

    def tokens(budget: int | None, responses: int) -> int:
        filled = budget if actor.dynamic_batching and budget else responses * -(-longest // actor.ulysses_size)
        return int(filled)

    update = tokens(actor.max_token_len_per_device, actor.micro_batch_size_per_device_for_update)
    each = actor.global_batch_size * rollout.n * longest // max(1, recipe.n_gpus)
    return MemoryPlan(
        shape=shape,
        gpu=gpu,
        host=host_memory(),
        ranks=sharing,
        ranks_here=here,
        update_tokens=update,
        forward_tokens=tokens(
            actor.max_token_len_per_device_for_experience or actor.max_token_len_per_device,
            actor.micro_batch_size_per_device_for_experience,
        ),
        longest=longest,
        dynamic=actor.dynamic_batching,
        image_share=recipe.data.max_prompt_length / longest if rollout.limit_images else 0.0,
        recompute=model.enable_gradient_checkpointing,
        liger=model.use_liger,
        fused=actor.use_fused_kernels,
        weight_bytes=HALF if actor.fsdp.torch_dtype in ("bf16", "fp16") else FULL,
        compute_bytes=FULL if actor.fsdp.mp_param_dtype == "fp32" else HALF,
        lora=model.lora.rank,
        reference=kl.in_reward(recipe) is not None or kl.in_loss(recipe) is not None,
        critic=recipe.has_critic,
        offload_params=actor.offload.offload_params,
        offload_optimizer=actor.offload.offload_optimizer,
        offload_all=actor.fsdp.enable_cpu_offload,
        accumulates=each > update,
        tensor=rollout.tensor_parallel_size,
        utilization=rollout.gpu_memory_utilization if recipe.hardware == "gpu" else 0.0,
        sequences=rollout.max_num_seqs or 256,
        batched_tokens=rollout.max_num_batched_tokens,
        eager=rollout.enforce_eager,
    )


CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_memory() -> int:
    """Bytes that this machine, or its container, has."""
    limits = [psutil.virtual_memory().total]
    for file in CGROUP_LIMITS:
        text = Path(file).read_text(encoding="ascii").strip() if Path(file).is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    return min(limits)


MemoryReduction = tuple[str, MemoryPlan]
"""A setting that needs less memory, and the plan with it."""


def memory_reductions(plan: MemoryPlan, phase: str, gpus: int) -> Iterator[MemoryReduction]:
    """Settings that reduce the memory of a phase, cheapest first.

    Args:
        gpus: GPUs of this machine.
    """
    updates = phase == BACKWARD or (phase == HOST and plan.gpu is None)
    if phase == GENERATE:
        yield from _generation_reductions(plan)
    if phase == BACKWARD and not plan.fused and plan.shape.hidden % FUSED_WIDTH == 0:
        yield f"{ACTOR}.use_fused_kernels=true", replace(plan, fused=True)
    if updates and not plan.recompute:
        yield f"{ACTOR}.model.enable_gradient_checkpointing=true", replace(plan, recompute=True)
    if updates or phase == FORWARD:
        field, suffix = ("update_tokens", "") if updates else ("forward_tokens", "_for_experience")
        tokens = getattr(plan, field)
        if plan.dynamic:
            fewer, setting = max(plan.longest, tokens // 4), f"{ACTOR}.max_token_len_per_device{suffix}="
        else:
            fewer, setting = plan.longest, f"MICRO_BATCH_SIZE{suffix.upper()}="
        if fewer < tokens:
            yield f"{setting}{fewer if plan.dynamic else 1}", replace(plan, **{field: fewer})
    if phase in (BACKWARD, STEP) and not plan.offload_all:
        yield f"{ACTOR}.strategy=fsdp2 {ACTOR}.fsdp.enable_cpu_offload=true", replace(plan, offload_all=True)
    more = plan.ranks * 2
    while more <= MAX_RANKS and phase not in (LOAD, HOST):
        bigger = replace(plan, ranks=more)
        if _phase(bigger, phase).fits or more == MAX_RANKS:
            nodes = -(-more // max(1, gpus, plan.ranks_here))
            yield (f"GPUS_PER_NODE={more}" if nodes == 1 else f"NNODES={nodes}"), bigger
            break
        more *= 2
    if not plan.lora:
        yield f"LORA_RANK={LORA_RANK}", replace(plan, lora=LORA_RANK)
    if phase in (LOAD, HOST) and plan.ranks_here > 1:
        half = plan.ranks_here // 2
        yield f"GPUS_PER_NODE={half}", replace(plan, ranks_here=half)


def _generation_reductions(plan: MemoryPlan) -> Iterator[MemoryReduction]:
    room = ((plan.gpu or 0) - GIGABYTE - SYNC - _phase(plan, GENERATE).need) / (plan.gpu or 1) + plan.utilization
    rounded = int(room * 20) / 20
    if 0 < rounded < plan.utilization and vllm_cache(replace(plan, utilization=rounded))[0] > 0:
        yield f"GPU_MEMORY_UTILIZATION={rounded:g}", replace(plan, utilization=rounded)
    if plan.offload_all:
        return
    if not plan.offload_optimizer:
        yield f"{ACTOR}.offload.offload_optimizer=true", replace(plan, offload_optimizer=True)
    both = replace(plan, offload_optimizer=True, offload_params=True)
    yield f"{ACTOR}.offload.offload_params=true {ACTOR}.offload.offload_optimizer=true", both


def _phase(plan: MemoryPlan, name: str) -> Phase:
    return next((phase for phase in phases(plan) if phase.name == name), Phase(name, {}, plan.gpu))


def advice(plan: MemoryPlan, phase: Phase, gpus: int) -> list[str]:
    """The two changes that help most: those that make it fit before others, the cheap ones first."""
    tried = [(text, _phase(changed, phase.name)) for text, changed in memory_reductions(plan, phase.name, gpus)]
    useful = [(text, after) for text, after in tried if after.need < 0.98 * phase.need]
    useful.sort(key=lambda each: (not each[1].fits, 0 if each[1].fits else each[1].need))
    return [f"{text} ({after.need / GIGABYTE:.1f} GB)" if after.need else text for text, after in useful[:2]]


def check_memory(recipe: Recipe) -> list[str]:
    """Raise where a phase surely does not fit; remark on the estimate of every phase, and on what is close.

    Raises:
        RecipeError: names the phase that lacks most, and the two changes that help most.
    """
    plan = plan_of(recipe)
    name = recipe.worker.actor.model.model_path
    if plan is None:
        if recipe.hardware == "cpu":
            return [f"memory is not estimated: the shape of {name} is not known before it is fetched"]
        reason = "the GPU's memory is not known" if gpu_memory() is None else f"the shape of {name} is not known"
        return [f"memory is not estimated: {reason}"]
    gpus = visible_gpus() if recipe.hardware == "gpu" else 0
    every = phases(plan)
    failing = [phase for phase in every if not phase.fits]
    if failing:
        worst = max(failing, key=lambda phase: phase.need / (phase.limit or 1))
        others = [phase.name for phase in failing if phase is not worst]
        raise recipe.error(
            f"{name} does not fit: {worst}" + (f"; nor does {', '.join(others)}" if others else ""),
            "; or ".join(advice(plan, worst, gpus)) or "a smaller model, set by MODEL_PATH, or larger machines",
            "worker.actor.model.model_path",
        )
    lines = []
    if plan.gpu:
        most, *rest = sorted(gpu_phases(plan), key=lambda phase: -phase.need)
        others = ", ".join(f"{phase.name} {phase.need / GIGABYTE:.1f}" for phase in rest)
        lines += [f"memory of a GPU, estimated: {most}; {others}", *_cache_lines(recipe, plan)]
    host = max(host_phases(plan), key=lambda phase: phase.need)
    lines.append(f"memory of the host, estimated: {host}")
    for phase in every:
        if phase.is_close:
            close = "; or ".join(advice(plan, phase, gpus))
            lines.append(f"{phase.name} comes close to the limit" + (f"; if memory runs out: {close}" if close else ""))
    return lines


def _cache_lines(recipe: Recipe, plan: MemoryPlan) -> list[str]:
    """How many responses of full length vLLM's cache holds. Raises RecipeError where it holds none."""
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
"""What was measured: `what`, `gigabytes`, the `model` on the hub or folder here, and what differs from `MemoryPlan`."""


def held_against_measurements() -> list[tuple[str, float, float]]:
    """What was measured, in GB, beside its estimate; a table in docs/MEMORY.md."""
    rows = []
    for each in json.loads(MEASUREMENTS.read_text(encoding="utf-8")):
        shape = memory.shape(ROOT / each["model"]) or memory.published_shape(each["model"])
        plan = MemoryPlan(shape, **each["plan"])
        update = [phase for phase in phases(plan) if phase.name in ((HOST,) if plan.gpu is None else (BACKWARD, STEP))]
        rows.append((each["what"], each["gigabytes"], max(phase.need for phase in update) / GIGABYTE))
    return rows
