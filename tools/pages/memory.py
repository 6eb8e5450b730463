"""The tables on memory: estimates beside what was measured, and published models on GPUs of usual sizes."""

from __future__ import annotations

import json

from recipes.config import load
from recipes.config.gpus import plan_of
from recipes.drawing import markdown
from recipes.memory import fit
from recipes.memory.estimates import BACKWARD, GIGABYTE, STEP, MemoryPlan, gpu_phases, host_phase
from recipes.memory.shape import published, published_shape, shape
from recipes.paths import ROOT

MEASUREMENTS = ROOT / "docs" / "results" / "memory.json"
"""Measurements: `what`, `gigabytes`, the `model` (name on the hub or folder here) and its `plan`, for `MemoryPlan`."""


def held_against_measurements() -> list[tuple[str, float, float]]:
    """Return (what was measured, the measurement in GB, its estimate in GB)."""
    rows = []
    for each in json.loads(MEASUREMENTS.read_text(encoding="utf-8")):
        sizes = shape(ROOT / each["model"]) or published_shape(each["model"])
        assert sizes is not None, each["model"]
        plan = MemoryPlan(sizes, **each["plan"])
        every = gpu_phases(plan) if plan.gpu else [host_phase(plan)]
        update = [phase for phase in every if plan.gpu is None or phase.name in (BACKWARD, STEP)]
        rows.append((each["what"], each["gigabytes"], max(phase.need for phase in update) / GIGABYTE))
    return rows


def memory_table() -> str:
    """Every measurement with its estimate and the ratio of both."""
    return markdown(
        ("what", "measured", "estimated", "ratio"),
        [
            (what, f"{measured:.1f}", f"{estimated:.1f}", f"{estimated / measured:.2f}")
            for what, measured, estimated in held_against_measurements()
        ],
    )


MODELS = {name.rpartition("/")[2]: name for name in published()}
"""Label -> name on the hub."""
SIZES = {8: (1, 2), 12: (1, 2), 16: (1, 2)} | dict.fromkeys((24, 48, 80, 141), (1, 2, 4, 8))
"""GB in a GPU's name -> numbers of them."""


def fits_table() -> str:
    """A table with all weights trained and one with adapters: what is chosen for each model and number of GPUs."""
    machines = [(count, size) for size, counts in SIZES.items() for count in counts]
    heads = ("model", *(f"{count} x {size}" for count, size in machines))
    parts = []
    for title, lora in (("All weights trained", 0), (f"LoRA of rank {fit.LORA_RANK}", fit.LORA_RANK)):
        rows = [(name, *(cell(name, *machine, lora) for machine in machines)) for name in MODELS]
        parts.append(f"### {title}: GPUs x GB\n\n" + markdown(heads, rows))
    return "\n\n".join(parts)


def cell(name: str, count: int, size: int, lora: int) -> str:
    """vLLM's share of the memory in percent, and a letter for each setting that saves memory; a dash: does not fit."""
    task = "number_game" if "-VL-" in name else "gsm8k"
    given = {"MODEL_PATH": MODELS[name], "LORA_RANK": str(lora)}
    plan = plan_of(load(task, arguments=["--gpus", f"{count}x{size}"], environ=given))
    if plan is None or not fit.fits(plan):
        return "—"
    return f"{100 * plan.utilization:.0f}{letters(plan)}"


def letters(plan: MemoryPlan) -> str:
    """Return the letters: `r` recomputes activations, `a` fuses Adam, `v` has smaller passes or fewer responses at once
    in vLLM, `m` offloads moments, `w` weights, and `h` keeps all weights on the host."""
    in_vllm = plan.batched_tokens < fit.BATCHED_TOKENS[0] or plan.sequences < fit.max_num_seqs(plan.responses)
    marks = {
        "r": plan.recompute,
        "a": plan.fused_adam,
        "v": in_vllm,
        "m": plan.offload_optimizer,
        "w": plan.offload_params,
        "h": plan.offload_all,
    }
    return "".join(letter for letter, is_on in marks.items() if is_on)
