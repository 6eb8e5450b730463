"""The tables on seconds of a step: the model beside what was measured, and more GPUs than were measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recipes.drawing import markdown
from recipes.memory.shape import published_shape
from recipes.paths import ROOT
from recipes.preflight import speed

MEASUREMENTS = ROOT / "docs" / "results" / "speed.json"
"""Measurements: `what`, `seconds` of a step, `model` on the hub, `card` of `CARDS`, and its `work`, for `Work`."""


def measurements() -> Iterator[tuple[dict[str, Any], speed.Seconds]]:
    """Yield each measurement with the model's seconds."""
    for each in json.loads(MEASUREMENTS.read_text(encoding="utf-8")):
        yield each, speed.seconds(work_of(each), speed.CARDS[each["card"]])


def work_of(measured: dict[str, Any]) -> speed.Work:
    """What decided the time of a measurement."""
    shape = published_shape(measured["model"])
    assert shape is not None, measured["model"]
    return speed.Work(shape, **measured["work"])


def measured_table() -> str:
    """Every measurement, the model's seconds, and the ratio of both."""
    rows = [
        (each["what"], f"{each['seconds']:.1f}", f"{found.step:.1f}", f"{found.step / each['seconds']:.2f}")
        for each, found in measurements()
    ]
    return markdown(("a step", "measured, s", "estimated", "ratio"), rows)


COUNTS = (1, 2, 4, 8, 16, 64)
PROMPTS_A_GPU = 32


def predicted_table() -> str:
    """Qwen3-4B on Countdown with 1 to 64 H200: the recipe's batch, and 32 prompts for each GPU."""
    own = work_of(next(each for each, _ in measurements() if each["work"]["rows"] == 1_024))
    n, rows = own.rows // own.prompts, []
    for name, per_gpu in (("64 x 16, the recipe's", None), (f"{PROMPTS_A_GPU} x 16 for each GPU", PROMPTS_A_GPU)):
        for count in COUNTS:
            prompts = per_gpu * count if per_gpu else own.prompts
            work = replace(own, prompts=prompts, rows=prompts * n, gpus=count, nodes=max(1, count // 8))
            found = speed.seconds(work, speed.CARDS["141"])
            each = work.rows * (own.prompt + own.response) / found.step / count
            rows.append((name, count, f"{found.step:.0f}", *(f"{phase:.1f}" for phase in found), f"{each:,.0f}"))
    heads = ("batch", "GPUs", "step, s", "generate", "reference", "update", "weights", "driver", "tokens/s/GPU")
    return markdown(heads, [tuple(map(str, row)) for row in rows])
