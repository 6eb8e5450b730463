"""Figures of the report, drawn from the sampled passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.drawing import BLUE, SLATE, STYLE, draw_means, inline
from recipes.evaluation.metrics import Collector

# In inches; small enough that the text stays legible when a phone shrinks the figure.
SIZE = (4.7, 3.0)
COLOURS = {"model": BLUE, "base": SLATE, "trained": BLUE}
BINS = 20
Passes = Mapping[str, Collector]  # model's label -> its sampled pass


@dataclass(frozen=True)
class Figure:
    """A figure with its heading and one sentence on how to read it."""

    name: str
    title: str
    caption: str
    svg: str


def draw_all(passes: Passes) -> list[Figure]:
    """The distribution of group means, and pass@k if the reward states an accuracy; no figures for groups of one."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import PercentFormatter

    drawn = [name for name in FIGURES if name != "accuracy" or all(one.measure == name for one in passes.values())]
    figures = []
    with mpl.rc_context(STYLE):
        for name in drawn if all(one.sampling.n > 1 for one in passes.values()) else ():
            title, caption, draw = FIGURES[name]
            canvas = Canvas(figsize=SIZE)
            axes = canvas.subplots()
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            draw(axes, passes)
            if len(passes) > 1:
                # Above the axes, where it hides nothing.
                axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, borderaxespad=0.0)
            figures.append(Figure(name, title, caption, inline(canvas, name, f"{title}. {caption}")))
    return figures


def _pass_at_k(axes: Any, passes: Passes) -> None:
    for label, collector in passes.items():
        figures = collector.summary.figures
        curve = {int(name[5:]): figures[name] for name in figures if name.startswith("pass@")}
        draw_means(axes, curve, COLOURS[label], label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(curve), [f"pass@{k}" for k in curve])
    axes.set_ylim(0, 1.02)


def _means(axes: Any, passes: Passes) -> None:
    """One histogram a model: base as an outline, any other filled."""
    values = {label: collector.columns["mean_score"] for label, collector in passes.items()}
    every = np.concatenate(list(values.values()))
    bins = np.linspace(min(every.min(), 0.0), max(every.max(), 1.0), BINS + 1)
    for name, each in values.items():
        style = {"histtype": "stepfilled", "alpha": 0.75} if name != "base" else {"histtype": "step", "linewidth": 1.8}
        axes.hist(each, bins, weights=np.full(len(each), 1 / len(each)), color=COLOURS[name], label=name, **style)
    axes.set_xlabel("mean score of a group")
    axes.set_ylabel("share of questions")
    axes.grid(axis="x", visible=False)


FIGURES = {
    "accuracy": (
        "pass@k with 95% intervals",
        "Share of questions with a right answer among k sampled ones; bars are intervals over questions.",
        _pass_at_k,
    ),
    "means": (
        "Distribution of group means",
        "A group at either end has no variance and gives no signal; the signal is in between.",
        _means,
    ),
}
