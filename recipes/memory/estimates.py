"""Memory estimates by phase, for a GPU and for the host, from a model's sizes and a run's settings.

`shape.py` gives the bytes of a token; this module adds up what is in memory at the same time. An update has two
peaks: the backward pass (state, activations, gathered layers), and Adam's step, for which torch makes one more copy of
the weights. While vLLM generates, its share of the GPU lies beside weights and moments; in the other phases it sleeps.
docs/MEMORY.md compares the estimates with measurements.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from recipes.memory.shape import Shape

GIGABYTE = 10**9


@dataclass(frozen=True)
class Kept:
    """Bytes kept free of estimates: `first`, and a fraction of the GPU's free memory, but not more than `most`."""

    first: int
    fraction: float
    most: int

    def of(self, free: int) -> int:
        """Bytes on a GPU with so much free memory."""
        return int(min(self.most, self.first + self.fraction * max(0, free)))


RESERVED = Kept(2_400_000_000, 0.042, 6 * GIGABYTE)
"""GPU memory of sleeping vLLM and of the CUDA contexts: on an H200 capped to 24 GB 1.3 GB asleep, and 1.4 GB of the
trainer's beside what PyTorch reserved."""

HALF, FULL = 2, 4
"""Bytes of a number in 16 and in 32 bits."""
LOGIT_BYTES = 8
"""Upper bound of the bytes of each logit of an update without the fused head: the logit and its gradient in 16 bits, a
copy in float32."""
GRAPHS = GIGABYTE
"""vLLM's CUDA graphs and compiled kernels; asleep it holds 1.3 GB, its CUDA context among them."""
GROWTH = Kept(2_400_000_000, 0.02, 5 * GIGABYTE)
"""CUDA contexts while vLLM generates (the trainer's 1.3 to 1.7 GB on an H200, vLLM's 0.5), and growth after the first
step: kernels' code, fragments of PyTorch's allocator, NCCL's buffers.

SmolLM2-135M's trainer held 1.7 GB beside its state before the first update and 2.1 afterwards. Between the third step
of one trial and the sixth of another the peak rose by 3.4 GB (docs/MEMORY.md)."""
SAMPLING = 4 * FULL
"""Bytes of a logit while vLLM samples, beyond its share: its profile leaves out temperature, top-p and
log-probabilities (vllm/v1/worker/gpu/model_runner.py, `_dummy_sampler_run`). With 1,024 responses of SmolLM2-135M at
once it held 1.3 GB more than its share, with 128 of Qwen2.5-0.5B 0.8."""
BUCKET = 2 << 30
"""verl sends weights to vLLM in buckets of this size (`update_weights_bucket_megabytes`)."""
ESTIMATE_TOLERANCE = 0.16
"""Fraction by which estimates of activations may exceed the measured bytes (docs/MEMORY.md)."""
PROCESSES = {"cpu": (2_000 << 20, 780 << 20), "gpu": (4_900 << 20, 1_800 << 20)}
"""Host memory of all processes (driver, Ray, reward, trainer, vLLM) with one rank, and of each further rank: PSS on
CPUs with the tiny model; "gpu" is without the fork server, which shares imports. CUDA's libraries come on top."""


def number_bytes(precision: str | None) -> int:
    """Bytes of a number of a dtype, the value of `torch_dtype` or `mp_param_dtype`; null is float32."""
    return HALF if precision in ("bf16", "fp16") else FULL


@dataclass(frozen=True)
class MemoryPlan:
    """Everything that decides the memory of a run."""

    shape: Shape  # of policy and reference
    gpu: int | None  # bytes of one GPU; None without GPUs, where everything lies on the host
    in_use: int = 0  # bytes of a GPU that other processes use
    host: int | None = None  # free bytes of the machine; None where they are not known
    ranks: int = 1  # GPUs that share one copy of the weights
    ranks_here: int = 1  # GPUs of this machine
    update_tokens: int = 0  # tokens of one pass with gradients
    forward_tokens: int = 0  # tokens of one pass without gradients
    longest: int = 0  # tokens of prompt and response together
    prompt: int = 0  # tokens of the longest prompt
    tokens: int = 0  # tokens of an update on one GPU at full length; 0: not known, so that several passes are assumed
    image_share: float = 0.0  # share of the tokens that stand for images
    show_once: int = 1  # responses that follow one another and whose picture the vision tower sees once a pass
    recompute: bool = True  # the backward pass computes activations again (gradient checkpointing)
    liger: bool = False
    fused: bool = False  # the head keeps no logits
    weight_bytes: int = FULL  # bytes of a trained weight; its gradient and each of Adam's two moments take as many
    frozen_bytes: int = FULL  # bytes of a weight below adapters
    compute_bytes: int = HALF  # bytes of a number in forward and backward passes
    lora: int = 0  # rank of the adapters; 0 trains all weights
    reference: bool = False  # a reference model is loaded for the KL
    reference_bytes: int = FULL  # bytes of a weight of the reference
    saves: bool = True  # whole models are saved
    offload_params: bool = False  # weights rest on the host between their uses
    offload_optimizer: bool = False  # Adam's moments rest on the host between their uses
    offload_all: bool = False  # FSDP2 keeps weights, gradients and moments on the host, and Adam runs there
    accumulates: bool = True  # an update has several passes; the later ones begin with gradients in memory
    moments: bool = True  # Adam's moments are in memory: not in the first step, nor in trials without an optimiser
    adam: bool = True  # the run has an optimiser step
    fused_adam: bool = False  # Adam's step is one kernel, without a copy of the weights
    tensor: int = 1  # GPUs that share vLLM's weights
    keeps_weights_asleep: bool = False  # sleeping vLLM keeps its weights on the host (EasyR1, or LoRA)
    utilization: float = 0.0  # vLLM's share of a GPU
    responses: int = 256  # responses of a step that one vLLM engine makes
    sequences: int = 0  # responses that vLLM decodes at once
    batched_tokens: int = 0  # tokens of one forward pass of vLLM
    least_batched: int = 0  # tokens that vLLM must take in one pass: an image, or a prompt that is not split
    eager: bool = False  # vLLM runs without CUDA graphs

    @property
    def free(self) -> int:
        """Free bytes of a GPU, before the run starts."""
        return (self.gpu or 0) - self.in_use

    @property
    def trained(self) -> int:
        """Number of weights that have gradients."""
        return self.shape.adapter_parameters(self.lora) if self.lora else self.shape.parameters

    @property
    def whole(self) -> int:
        """Bytes of the whole model."""
        frozen = self.frozen_bytes * self.shape.parameters if self.lora else 0
        return frozen + self.weight_bytes * self.trained

    def activations(self, recompute: bool) -> tuple[float, float]:
        """Bytes that each token of a pass with gradients holds, and bytes of one picture more, which a pass has where
        responses of its first and of its last group are in other passes."""
        token = self.shape.activations(recompute, self.image_share / self.show_once, self.liger)
        cut = self.image_share * self.longest * self.shape.image_activations(recompute) if self.show_once > 1 else 0.0
        return token, cut

    def weights(self) -> float:
        """Bytes of one rank's share of the weights on its GPU while the trainer works."""
        return 0.0 if self.offload_all else self.whole / self.ranks

    def share(self, copies: int) -> float:
        """Bytes of one rank's share of `copies` numbers for each trained weight."""
        return copies * self.weight_bytes * self.trained / self.ranks

    def resting(self) -> dict[str, float]:
        """Bytes that the trainer keeps on a GPU while vLLM generates."""
        weights = 0.0 if self.offload_params else self.weights()
        moments = self.share(2) if self.moments and not (self.offload_optimizer or self.offload_all) else 0.0
        return {"weights": weights, "moments": moments}

    @property
    def sampling(self) -> float:
        """Bytes of vLLM's logits while it samples."""
        return float(SAMPLING * min(self.sequences or self.responses, self.responses) * self.shape.vocabulary)

    @property
    def cached_responses(self) -> int:
        """Responses of full length that vLLM's cache holds on a GPU, in what its share leaves."""
        shape = self.shape
        work = self.batched_tokens * HALF * (4 * shape.hidden + 3 * shape.intermediate) / self.tensor
        logits = self.sequences * shape.vocabulary * 2 * FULL
        weights = HALF * shape.parameters / self.tensor
        token = 2 * HALF * shape.layers * shape.keys / self.tensor
        left = self.utilization * (self.gpu or 0) - weights - work - logits - (0 if self.eager else GRAPHS)
        return max(0, int(left / token / self.longest))


@dataclass(frozen=True)
class Phase:
    """Contents of the memory at the peak of one phase."""

    name: str
    parts: dict[str, float]  # content -> bytes
    limit: int | None  # bytes available; None where that is not known
    aside: int = 0  # bytes kept for what `beside` names, which no trial of this size has measured
    beside: str = ""
    spread: float = 0.0  # fraction by which the estimate may be too high; infinite where nothing was measured

    @property
    def need(self) -> float:
        """Bytes of the parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Return False only if the parts surely exceed the limit."""
        return self.limit is None or self.need <= self.limit * (1 + self.spread)

    @property
    def is_close(self) -> bool:
        """Return whether the phase fits only if `aside` turns out smaller, or if the estimate is too high."""
        return self.fits and self.limit is not None and self.need + self.aside > self.limit

    @property
    def whole(self) -> float:
        """Bytes of the parts, and what is kept beside them."""
        return self.need + self.aside

    def __str__(self) -> str:
        parts = [*sorted(self.parts.items(), key=lambda part: -part[1]), (self.beside, float(self.aside))]
        listed = ", ".join(f"{name} {size / GIGABYTE:.1f}" for name, size in parts if size >= GIGABYTE / 20)
        of = "" if self.limit is None else f" of {self.limit / GIGABYTE:.1f}"
        return f"{self.name} {self.whole / GIGABYTE:.1f}{of} GB ({listed})"


ASLEEP, GROWING = "vLLM asleep and CUDA", "kept for growth"
GENERATE, FORWARD, BACKWARD, STEP = "generation", "log-probabilities", "backward pass", "optimiser step"
SYNC = "weights to vLLM"
HOST = "training"


def gpu_phases(plan: MemoryPlan) -> Iterator[Phase]:
    """Yield what one GPU holds at the peak of each phase."""
    shape, resting, weights = plan.shape, plan.resting(), plan.weights()
    forward = {
        **resting,
        "weights": weights,
        "gathered layers": shape.gathered(plan.compute_bytes, trained=False),
        "activations": plan.forward_tokens * (shape.layer_activations(plan.liger) + 8 * shape.hidden),
        "logits": 0.0 if plan.fused else plan.forward_tokens * shape.vocabulary * (HALF + FULL),
    }
    vllm = plan.utilization * (plan.gpu or 0)
    reserved, growth = RESERVED.of(plan.free), GROWTH.of(plan.free)
    yield Phase(GENERATE, {"vLLM": vllm, "sampling": plan.sampling, **resting}, plan.free, growth, GROWING)
    # The cache comes after the weights. For adapters too, verl loads an offloaded model back as a whole:
    # verl/workers/engine/fsdp/transformer_impl.py:989 (`fsdp_version(self.module) == 2 and not _is_peft`).
    sent = {**resting, "weights": weights, "vLLM's weights": HALF * shape.parameters / plan.tensor, "bucket": BUCKET}
    yield Phase(SYNC, sent, plan.free, growth, GROWING)
    for name, parts in ((FORWARD, forward), (BACKWARD, _backward(plan))):
        yield Phase(name, parts, plan.free, reserved, ASLEEP, ESTIMATE_TOLERANCE)
    if plan.adam and not plan.offload_all:
        state = {"weights": weights, "gradients": plan.share(1), "moments": plan.share(2)}
        state["Adam's copy"] = plan.share(0 if plan.fused_adam else 1)
        yield Phase(STEP, state, plan.free, reserved, ASLEEP)


def _backward(plan: MemoryPlan) -> dict[str, float]:
    """Gradients are allocated while activations are freed: an update of one pass holds only the larger of the two."""
    shape, tokens, (token, picture) = plan.shape, plan.update_tokens, plan.activations(plan.recompute)
    held = tokens * token + picture
    layer = tokens * shape.layer_activations(plan.liger) if plan.recompute else 0.0
    gradients = 0.0 if plan.offload_all else plan.share(1)
    if not plan.accumulates:
        held = max(held - layer, gradients) + layer - gradients
    return {
        "weights": plan.weights(),
        "gradients": gradients,
        "moments": plan.share(2) if plan.moments and not plan.offload_all else 0.0,
        "gathered layers": shape.gathered(plan.compute_bytes, trained=not plan.lora),
        "activations": held,
        "logits": 0.0 if plan.fused else tokens * shape.vocabulary * LOGIT_BYTES,
    }


def host_phase(plan: MemoryPlan) -> Phase:
    """Return what all ranks of the machine hold on the host: whole models while they are loaded, or the training.

    With tied embeddings verl loads the whole model in each rank (`get_init_weight_context_manager`), else in one.
    """
    parameters, here, on_host = plan.shape.parameters, plan.ranks_here, plan.gpu is None
    copies = max(1, here // plan.ranks)
    part = min(here, plan.ranks) / plan.ranks * copies  # models that this machine holds
    all_here = on_host or plan.offload_all
    of_optimizer = 3 if all_here else 2 if plan.offload_optimizer else 0
    parts = {
        "reference": plan.reference_bytes * parameters * part if plan.reference and not plan.lora else 0.0,
        "weights": plan.whole * part if all_here or plan.offload_params else 0.0,
        "gradients and moments": plan.share(of_optimizer) * here,
        "model being saved": float(plan.whole) if plan.saves else 0.0,
        "vLLM asleep": HALF * parameters * here / plan.tensor if plan.keeps_weights_asleep and not on_host else 0.0,
    }
    if on_host:
        backward = _backward(plan)
        parts["activations"] = (backward["activations"] * FULL / HALF + backward["logits"]) * here
        parts["vLLM"] = float(FULL * parameters * here)
    loaded = float(plan.whole * (here if plan.shape.tied else copies))
    if loaded > sum(parts.values()):
        parts = {"models being loaded": loaded}
    first, each = PROCESSES["cpu" if on_host else "gpu"]
    parts["processes"] = float(first + each * (here - 1))
    return Phase(HOST, parts, plan.host, spread=ESTIMATE_TOLERANCE if on_host else math.inf)


CGROUPS = (
    (Path("/sys/fs/cgroup"), "", "memory.max", "memory.current", ""),
    (Path("/sys/fs/cgroup/memory"), "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""For cgroup v2 and v1: the folder, the controller in `OWN_CGROUPS`, the files of limit and usage, and the prefix
of names in `memory.stat`."""
OWN_CGROUPS = Path("/proc/self/cgroup")


def host_memory() -> int:
    """Bytes that this process may still use: of the machine, its container, its job; the page cache counts as free."""
    return max(0, min([psutil.virtual_memory().available, *(free for _, free, _ in memory_limits())]))


def memory_limit() -> str:
    """The tightest limit of this process's memory in words; empty where the machine is smaller."""
    most, _, folder = min(memory_limits(), default=(math.inf, 0, None))
    return f"{most / GIGABYTE:.1f} GB by {folder}" if most < psutil.virtual_memory().total else ""


def memory_limits() -> Iterator[tuple[int, int, Path]]:
    """Yield limit, free bytes and folder of each memory cgroup that this process is in, and of those around it.

    Slurm, systemd and a user's slice set limits in cgroups below the root. In a container the folders of the host's
    path are not there, and the root is the container's own.
    """
    lines = [line.split(":", 2) for line in OWN_CGROUPS.read_text().splitlines()] if OWN_CGROUPS.is_file() else []
    for root, controller, limit, current, prefix in CGROUPS:
        paths = [path for _, controllers, path in lines if controller in controllers.split(",")]
        own = root / (paths[0] if paths else "").lstrip("/")
        for folder in (own, *(above for above in own.parents if above.is_relative_to(root))):
            most, used = _number(folder / limit), _number(folder / current)
            if most is None or used is None:
                continue
            stat = folder / "memory.stat"
            sizes = (line.split() for line in (stat.read_text("ascii") if stat.is_file() else "").splitlines())
            cached = {f"{prefix}active_file", f"{prefix}inactive_file"}
            yield most, most - used + sum(int(size) for name, size in sizes if name in cached), folder


def _number(file: Path) -> int | None:
    """The number in a file; None where there is no such file, or where it holds a word such as `max`."""
    text = file.read_text(encoding="ascii").strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None
