"""The table of docs/MEMORY.md: estimates of memory beside what was measured."""

from __future__ import annotations

import json

from recipes.drawing import markdown
from recipes.errors import RecipeError
from recipes.memory.estimates import BACKWARD, GIGABYTE, HOST, STEP, MemoryPlan, phases
from recipes.memory.shape import published_shape, shape
from recipes.paths import ROOT

MEASUREMENTS = ROOT / "docs" / "results" / "memory.json"
"""Measurements: `what`, `gigabytes`, the `model` on the hub or folder here, and what differs from `MemoryPlan`."""


def held_against_measurements() -> list[tuple[str, float, float]]:
    """Return what was measured, in GB, beside its estimate."""
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


def memory_table() -> str:
    """Every measurement with its estimate and the ratio of both."""
    return markdown(
        ("what", "measured", "estimated", "ratio"),
        [
            (what, f"{measured:.1f}", f"{estimated:.1f}", f"{estimated / measured:.2f}")
            for what, measured, estimated in held_against_measurements()
        ],
    )
