"""The fastest settings that fit the free memory of a GPU: recomputation, tokens of a pass, vLLM's share, passes and
responses at once, offloading.

A token keeps `Shape.activations` until the backward pass: at the Qwen3-4B shape with liger 4.41 MB, 0.327 MB with
recomputation; measured on an H200 between 8,192 and 20,480 tokens 4.44 MB, between 16,384 and 32,768 tokens 0.323 MB.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from recipes.memory import estimates
from recipes.memory.estimates import MemoryPlan
from recipes.memory.shape import published, published_shape

USABLE_FRACTION = 0.9
"""Usable part of a GPU's memory: verl balances micro-batches by work, so that some exceed the token budget."""

MAX_UPDATE_TOKENS = 32_768
"""Tokens of one update pass; more is no faster: 376 TFLOP/s at 16,384 tokens, 382 at 32,768 (Qwen3-4B shape, H200)."""
MIN_TOKENS_WITHOUT_RECOMPUTE = 8_192
"""Below this budget activations are recomputed: 382 TFLOP/s with recomputation; without, 442 at 8,192 tokens, 459 at
16,384."""
MAX_FORWARD_TOKENS = 65_536
"""Tokens of one pass without gradients; 478 TFLOP/s at 32,768 tokens, 483 at 65,536."""
SMALL_MODEL = 200_000_000
"""Below this many parameters kernels take longer to launch than to run, so a pass may have twice as many tokens:
SmolLM2-135M on an H100, 1,024 rows updated in 1.71 s at 32,768 tokens and 1.22 s at 65,536."""
TOKENS_OF_UNKNOWN_MODEL = 16_384
"""Tokens of a pass for a model whose shape or GPU is not known, with recomputation."""
TOKEN_MULTIPLE = 1_024
"""Token budgets are multiples of this."""
USUAL_SHARE = 0.6
"""vLLM's share of a GPU where there is room for it."""
MIN_SHARE, MAX_SHARE = 0.01, 0.9
"""Bounds of vLLM's share: the least with little room, the most where its cache holds few responses at `USUAL_SHARE`."""
SPARE_FRACTION = 0.02
"""Part of a GPU's memory that is left free while vLLM generates."""
BATCHED_TOKENS = (16_384, 8_192, 4_096, 2_048)
"""Tokens of a pass of vLLM: the first that leaves room for the cache. Prompts in smaller passes delay decoding a little
more often."""
LEAST_AT_ONCE = 64
"""With less room vLLM decodes fewer responses at once, down to this number; few of them are of full length."""
ENOUGH_RESPONSES = 32
"""If vLLM's cache holds fewer responses of full length than this, moments and weights move to the host to make room."""
LEAST_RESPONSES = 4
"""A run whose cache holds fewer does not fit. A token of one response takes as long as one of each of 32, since vLLM
reads all weights for it: with 4 at once generation takes eight times as long."""
LORA_RANK = 64
"""The rank of adapters that is proposed where the training of all weights does not fit."""


KEYS = {
    "recompute": "worker.actor.model.enable_gradient_checkpointing",
    "update_tokens": "worker.actor.max_token_len_per_device",
    "forward_tokens": "worker.actor.max_token_len_per_device_for_experience",
    "fused_adam": "worker.actor.optim.fused",
    "utilization": "worker.rollout.gpu_memory_utilization",
    "offload_params": "worker.actor.offload.offload_params",
    "offload_optimizer": "worker.actor.offload.offload_optimizer",
    "batched_tokens": "worker.rollout.max_num_batched_tokens",
    "sequences": "worker.rollout.max_num_seqs",
    "offload_all": "worker.actor.fsdp.enable_cpu_offload",
}
"""Settings that `choose_settings` chooses, by their names in `MemoryPlan` -> the keys of a recipe that hold them."""
Explicit = Mapping[str, Any]
"""Those of them that were set; where one is missing or None, `choose_settings` chooses a value that fits."""
UNKNOWN = {name: getattr(MemoryPlan, name) for name in KEYS} | {
    "update_tokens": TOKENS_OF_UNKNOWN_MODEL,
    "forward_tokens": TOKENS_OF_UNKNOWN_MODEL,
    "utilization": USUAL_SHARE,
    "batched_tokens": BATCHED_TOKENS[0],
}
"""Settings where the model's sizes or the GPU's memory are not known: without offloading, with recomputation."""


def choose_settings(plan: MemoryPlan, explicit: Explicit) -> MemoryPlan:
    """Return the plan with the fastest settings that fit its GPU, or with those that need least where none fits.

    Below adapters all weights may stay on the host as the last resort: each pass then moves them to the GPU layer by
    layer, and the adapters' Adam runs on the host, which is little work.
    """
    kept = explicit.get("offload_all")
    ways = [False, True] if kept is None and plan.lora else [bool(kept)]
    chosen = [_with_generation(_with_update(replace(plan, offload_all=way), explicit), explicit) for way in ways]
    return next((each for each in chosen if fits(each)), chosen[0])


def _with_update(plan: MemoryPlan, explicit: Explicit) -> MemoryPlan:
    """Choose the settings of an update: recomputation, tokens of a pass with and without gradients, Adam's kernel.

    Recomputing is slower (382 TFLOP/s against 459), so it is chosen only where too few tokens fit without it.
    """
    state = plan.weights() + (0.0 if plan.offload_all else plan.share(3))
    kept = plan.shape.gathered(plan.compute_bytes, trained=not plan.lora) + state
    free = USABLE_FRACTION * plan.free - estimates.RESERVED.of(plan.free) - kept
    logits = 0 if plan.fused else estimates.LOGIT_BYTES * plan.shape.vocabulary
    times = 2 if plan.shape.parameters < SMALL_MODEL else 1

    def fitting(most: int, recompute: bool) -> int:
        token, picture = plan.activations(recompute)
        tokens = int(max(0.0, (free - picture) / (token + logits)))
        return min(times * most, tokens // TOKEN_MULTIPLE * TOKEN_MULTIPLE)

    recompute, given, fused = (explicit.get(name) for name in ("recompute", "update_tokens", "fused_adam"))
    if recompute is None:
        least = max(MIN_TOKENS_WITHOUT_RECOMPUTE, 2 * plan.longest)
        recompute = fitting(MAX_UPDATE_TOKENS, recompute=False) < least
    update = given or max(plan.longest, fitting(MAX_UPDATE_TOKENS, recompute))
    # Without gradients only one layer's activations are alive at a time: fewer bytes than `fitting` counts.
    forward = given or max(plan.longest, fitting(MAX_FORWARD_TOKENS, recompute=True))
    plan = replace(
        plan,
        recompute=recompute,
        update_tokens=update,
        accumulates=not plan.tokens or plan.tokens > update,
        forward_tokens=explicit.get("forward_tokens") or forward,
        fused_adam=bool(fused),
    )
    return plan if fused is not None or _has_room(plan, estimates.STEP) else replace(plan, fused_adam=True)


def _with_generation(plan: MemoryPlan, explicit: Explicit) -> MemoryPlan:
    """Decide vLLM's share of a GPU, its passes and responses at once, and what moves to the host to make room for it.

    A smaller share costs least: computed for the Qwen3-4B shape, generating with half the cache takes a fifth longer.
    Then come smaller passes for prompts, and fewer responses at once. Moments move to the host and back once a step, 16
    bytes a weight; weights move several times, so they come last.
    """
    ways = [
        _with_share(
            replace(plan, offload_params=params, offload_optimizer=moments, batched_tokens=tokens, sequences=sequences),
            explicit.get("utilization"),
        )
        for params, moments in ((False, False), (False, True), (True, False), (True, True))
        if explicit.get("offload_params") in (None, params) and explicit.get("offload_optimizer") in (None, moments)
        for tokens, sequences in _passes_of_vllm(plan, explicit)
    ]
    possible = [way for way in ways if way.host is None or estimates.host_phase(way).need <= way.host] or ways
    for way in possible:
        if _has_room(way, estimates.GENERATE) and _holds_enough(way):
            return way
    return max(possible, key=lambda way: (_has_room(way, estimates.GENERATE), way.cached_responses))


def _passes_of_vllm(plan: MemoryPlan, explicit: Explicit) -> list[tuple[int, int]]:
    """Tokens of a pass of vLLM and responses at once: from the fastest to what needs least memory."""
    given, at_once = explicit.get("batched_tokens"), explicit.get("sequences")
    most = at_once or max_num_seqs(plan.responses)
    tokens = [given] if given else list(dict.fromkeys(max(size, plan.least_batched) for size in BATCHED_TOKENS))
    fewer = [] if at_once else [size for size in (256, 128, LEAST_AT_ONCE) if size < most]
    return [(size, most) for size in tokens] + [(tokens[-1], size) for size in fewer]


def _with_share(plan: MemoryPlan, explicit: float | None) -> MemoryPlan:
    if explicit is not None:
        return replace(plan, utilization=explicit)
    room = (1 - SPARE_FRACTION) * plan.free - sum(plan.resting().values()) - plan.sampling
    room -= estimates.GROWTH.of(plan.free)
    share = max(MIN_SHARE, math.floor(1_000 * room / (plan.gpu or 1)) / 1_000)
    usual = replace(plan, utilization=min(USUAL_SHARE, share))
    return usual if _holds_enough(usual) else replace(plan, utilization=min(MAX_SHARE, share))


def _has_room(plan: MemoryPlan, name: str) -> bool:
    return all(each.fits and not each.is_close for each in estimates.gpu_phases(plan) if each.name == name)


def _holds_enough(plan: MemoryPlan) -> bool:
    return plan.cached_responses >= min(ENOUGH_RESPONSES, plan.sequences or ENOUGH_RESPONSES)


def holds_too_few(plan: MemoryPlan) -> bool:
    """Return whether vLLM's cache holds too few responses for a run to be of use."""
    return plan.cached_responses < min(LEAST_RESPONSES, plan.responses)


def fits(plan: MemoryPlan) -> bool:
    """Return whether every phase fits a GPU without coming close to its limit, and the cache holds a few responses."""
    return all(each.fits and not each.is_close for each in estimates.gpu_phases(plan)) and not holds_too_few(plan)


@dataclass(frozen=True)
class Way:
    """Changes that make a run fit, as a user types them, what they cost, and the plan with them."""

    text: str
    cost: str
    plan: MemoryPlan


FASTER_LORA = 10
"""Learning rates of adapters are about this many times those of all weights (docs/ALGORITHMS.md)."""


@dataclass(frozen=True)
class Machine:
    """The machine and the run, as far as they decide which changes can be proposed."""

    gpus: int  # GPUs of this machine; a way that needs more says "N such GPUs"
    lr: float = 1e-6
    engine: str = "verl"
    number: str = "GPUS_PER_NODE={}"  # how a number of GPUs is typed
    responses: int = 0  # of an update, which divide over the GPUs
    tensors: tuple[int, ...] = (1, 2, 4, 8)  # numbers of GPUs over which an engine of vLLM can divide the model
    fixed: tuple[str, ...] = ("offload_all",)  # settings that no key of `KEYS` changes

    @property
    def adapters(self) -> str:
        """The variables that train adapters alone."""
        return f"LORA_RANK={LORA_RANK} LR={FASTER_LORA * self.lr:g}"


def ways_out(plan: MemoryPlan, explicit: Explicit, machine: Machine) -> list[Way]:
    """Return the nearest changes that make a plan fit, the cheapest first; each is enough by itself.

    Args:
        plan: one that does not fit.
        explicit: the settings that were set; the first way replaces them by what `choose_settings` chooses.
    """
    others = (_shorter(plan, explicit), _more_gpus(plan, explicit, machine), _smaller(plan, explicit))
    found: list[Way] = []
    for way in chain(_on_its_gpus(plan, explicit, machine), *others):
        known = {other.text.rstrip("248") for other in found}  # TENSOR_PARALLEL_SIZE=2 is nearer than 4
        is_more = any(set(other.text.split()) <= set(way.text.split()) for other in found)
        if fits(way.plan) and not is_more and way.text.rstrip("248") not in known:
            found.append(way)
    return found


def _on_its_gpus(plan: MemoryPlan, explicit: Explicit, machine: Machine) -> Iterator[Way]:
    """Yield what could make a plan fit on its own GPUs, the cheapest first."""
    chosen = choose_settings(plan, {name: value for name, value in explicit.items() if name in machine.fixed})
    new = {name: getattr(chosen, name) for name, value in explicit.items() if value is not None}
    text = " ".join(f"{KEYS[name]}={str(value).lower()}" for name, value in new.items() if value != explicit[name])
    if text:
        yield Way(text, "", chosen)
    tensors = [size for size in machine.tensors if plan.tensor < size and not plan.ranks % size]
    shared = {f"TENSOR_PARALLEL_SIZE={size}": replace(plan, tensor=size) for size in tensors}
    costs = "{tensor} GPUs share an engine of vLLM: fewer engines generate"
    for text, way in shared.items():
        yield Way(text, costs.format_map(vars(way)), choose_settings(way, explicit))
    if not plan.lora:
        # FSDP2 shards a model with adapters, so that its weights may stay on the host.
        kept = {**explicit, "offload_all": None} if machine.engine == "verl" else explicit
        cost = f"adapters alone are trained, at {FASTER_LORA} times the learning rate"
        for text, way in {"": plan, **shared}.items():
            after = choose_settings(replace(way, lora=LORA_RANK, keeps_weights_asleep=True), kept)
            more = f"; {costs.format_map(vars(way))}" if text else ""
            yield Way(f"{machine.adapters} {text}".strip(), cost + more, after)
    if not explicit.get("offload_all"):
        text = "worker.actor.strategy=fsdp2 " * (machine.engine == "verl") + "worker.actor.fsdp.enable_cpu_offload=true"
        way = choose_settings(plan, {**explicit, "offload_all": True})
        held = estimates.host_phase(way).need / estimates.GIGABYTE
        cost = f"weights and Adam on the host ({held:.0f} GB); Adam takes seconds for a billion weights there"
        yield Way(text, cost, way)
    if plan.weight_bytes > estimates.HALF and not plan.lora:
        text = "worker.actor.fsdp.torch_dtype=bf16"
        text += " worker.actor.optim.strategy=adamw_bf16" * (machine.engine == "easyr1")
        cost = f"weights move only where a step changes them by a 256th: at LR={machine.lr:g} hardly one does"
        yield Way(text, cost, choose_settings(replace(plan, weight_bytes=estimates.HALF), explicit))


def _shorter(plan: MemoryPlan, explicit: Explicit) -> Iterator[Way]:
    """Yield the longest response with which a plan fits, in eighths of the one that was asked for."""
    for eighth in range(7, 0, -1):
        response = (plan.longest - plan.prompt) * eighth // 8
        after = choose_settings(replace(plan, longest=plan.prompt + response), explicit)
        if response and fits(after):
            yield Way(f"MAX_RESPONSE_LENGTH={response}", "longer answers are cut", after)
            return


def _more_gpus(plan: MemoryPlan, explicit: Explicit, machine: Machine) -> Iterator[Way]:
    """Yield the fewest GPUs of this kind on which a plan fits, and a smaller number on which it fits with LoRA."""
    most = 65
    for lora in dict.fromkeys((plan.lora, plan.lora or LORA_RANK)):
        fitting = (1 << power for power in range(7) if not machine.responses % (1 << power))
        counts = (count for count in fitting if plan.ranks < count < most)
        tensors = [size for size in machine.tensors if size >= plan.tensor]
        for count, tensor in ((count, size) for count in counts for size in tensors if size <= count):
            more = replace(plan, ranks=count, ranks_here=min(8, count), host=None, lora=lora, tensor=tensor)
            if fits(after := choose_settings(more, explicit)):
                nodes = f"NNODES={max(1, count // 8)} " if count > 8 or plan.ranks > plan.ranks_here else ""
                text = nodes + machine.number.format(min(8, count))
                text += "" if tensor == plan.tensor else f" TENSOR_PARALLEL_SIZE={tensor}"
                text += "" if lora == plan.lora else f" {machine.adapters}"
                yield Way(text, "" if count <= machine.gpus else f"{count} such GPUs", after)
                most = count
                break


def _smaller(plan: MemoryPlan, explicit: Explicit) -> Iterator[Way]:
    """Yield the largest listed model that fits as this one is trained; it reads images if this one does."""
    shapes = {name: each for name in published() if (each := published_shape(name)) is not None}
    for name, shape in sorted(shapes.items(), key=lambda item: -item[1].parameters):
        is_alike = bool(shape.vision) == bool(plan.shape.vision) and not shape.heads % plan.tensor
        if shape.parameters >= plan.shape.parameters or not is_alike:
            continue
        if fits(after := choose_settings(replace(plan, shape=shape), explicit)):
            yield Way(f"MODEL_PATH={name}", "the largest listed model that fits", after)
            return


def max_num_seqs(responses: int) -> int:
    """Responses that one vLLM engine decodes at once: all its responses of a step, at least 256 (for validation) and at
    most 1,024."""
    return max(256, min(1_024, -(-responses // 64) * 64))


def graph_sizes(most: int) -> list[int]:
    """Batch sizes with a CUDA graph, up to `most`; for 512 responses vLLM by default captures 67 graphs, in 10 s.

    A batch between two sizes is padded to the larger; decoding is bound by reading the weights, so that costs little.
    """
    sizes = [1, 2, 4, 8, 16, *range(32, 257, 32), *range(320, 1_025, 64)]
    return [size for size in sizes if size < most] + [most]
