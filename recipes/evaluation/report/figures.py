"""Figures of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recipes.drawing import BAD, BLUE, GOOD, MUTED, SLATE, STYLE, inline
from recipes.evaluation.metrics import Histogram, PassSummary
from recipes.evaluation.result import Result
from recipes.statistics import Interval

# Small enough that the text can be read where a phone shrinks it, in inches.
SIZE = (4.7, 3.0)
COLOURS = {"model": BLUE, "base": SLATE, "trained": BLUE}
MOST_REASONS = 10
Series = list[tuple[str, str, PassSummary]]  # label, colour, figures of the sampled pass


@dataclass(frozen=True)
class Figure:
    """A figure with its heading and one sentence on how to read it."""

    name: str
    title: str
    caption: str
    svg: str


def draw_all(result: Result) -> list[Figure]:
    """Every figure that the result has numbers for."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    series = [(label, COLOURS[label], model.passes["sampled"]) for label, model in result.models.items()]
    first = series[0][2]
    left_out = set() if result.comparison else {"differences"}
    left_out |= set() if first.measure == "accuracy" else {"accuracy"}
    left_out |= set() if first.groups else {"means"}
    left_out |= set() if first.histograms.tokens else {"lengths"}
    figures = []
    with mpl.rc_context(STYLE):
        for name, (title, caption, draw) in FIGURES.items():
            if name not in left_out:
                canvas = Canvas(figsize=SIZE)
                draw(canvas, series, result)
                figures.append(Figure(name, title, caption, inline(canvas, name, f"{title}. {caption}")))
    return figures


def _pass_at_k(canvas: Any, series: Series, _: Result) -> None:
    axes = canvas.subplots()
    for number, (label, colour, summary) in enumerate(series):
        points = {name: figure for name, figure in summary.figures.items() if figure and name.startswith("pass@")}
        # Models side by side, so that intervals do not hide each other.
        places = [place + 0.14 * (number - (len(series) - 1) / 2) for place in range(len(points))]
        values = [point.value for point in points.values()]
        axes.plot(places, values, color=colour, linewidth=1.6, marker="o", markersize=5, label=label, zorder=3)
        for place, point in zip(places, points.values(), strict=True):
            if point.low is not None:
                axes.vlines(place, point.low, point.high, color=colour, linewidth=2.6, alpha=0.45)
    axes.set_xticks(range(len(points)), list(points))
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_ylim(0, 1.02)
    axes.grid(axis="x", visible=False)
    _percent_axis(axes.yaxis)
    _legend(axes, series)


def _differences(canvas: Any, _: Series, result: Result) -> None:
    if result.comparison is None:
        raise ValueError("one model has no differences")
    sampled = result.comparison.differences["sampled"]
    primary = result.comparison.primary
    factor, unit = (100, "points") if primary.measure == "pass@1" else (1, "score")
    rows: dict[str, Interval | None] = {f"{primary.measure}, greedy": primary.paired.difference}
    shown = ("accuracy", "truncated") if factor == 100 else ("mean_score",)
    rows |= {name: figure for name, figure in sampled.items() if name.startswith("pass@") or name in shown}
    if rows.get("accuracy") == rows.get("pass@1"):
        rows.pop("accuracy", None)
    axes = canvas.subplots()
    axes.axvline(0, color=MUTED, linewidth=1, zorder=1)
    known = {name.replace("_", " "): interval for name, interval in rows.items() if interval}
    for place, interval in enumerate(known.values()):
        colour = BLUE if interval.excludes_zero else SLATE
        if interval.low is not None:
            axes.hlines(place, interval.low, interval.high, color=colour, linewidth=2.6, alpha=0.45)
        axes.plot(interval.value, place, "o", color=colour, markersize=6)
    axes.set_yticks(range(len(known)), list(known))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{factor * value:+.3g}" if value else "0")
    axes.set_xlabel(f"trained minus base, in {unit}")


def _means(canvas: Any, series: Series, _: Result) -> None:
    bins = [summary.histograms.mean_score for *_, summary in series]
    _histogram(canvas.subplots(), series, bins, "mean score of a group")


def _lengths(canvas: Any, series: Series, _: Result) -> None:
    axes = canvas.subplots()
    tokens = [summary.histograms.tokens for *_, summary in series]
    if len(series) > 1 or series[0][2].measure == "score":
        _histogram(axes, series, [each.together if each else None for each in tokens], "tokens", "responses")
        return
    (lengths,) = tokens
    if lengths is None:
        raise ValueError("the length of a response is not known")
    both = lengths.together.counts
    for name, low, top, colour in (("right", 0, lengths.right, GOOD), ("wrong", lengths.right, both, BAD)):
        axes.stairs(top, lengths.edges, baseline=low, fill=True, color=colour, alpha=0.75, label=name)
    axes.set_xlabel("tokens")
    axes.set_ylabel("responses")
    axes.grid(axis="x", visible=False)
    _legend(axes, ["right", "wrong"])


def _reasons(canvas: Any, series: Series, __: Result) -> None:
    axes = canvas.subplots()
    together: Counter[str] = Counter()
    for _, _, summary in series:
        together.update(summary.reasons)
    fit = MOST_REASONS if len(together) <= MOST_REASONS else MOST_REASONS - 1
    names = [name for name, _ in together.most_common(fit)]
    height = 0.8 / len(series)
    for number, (label, colour, summary) in enumerate(series):
        counts = [summary.reasons.get(name, 0) for name in names]
        if len(together) > fit:
            counts.append(summary.responses - sum(counts))
        places = [place + height * (number - (len(series) - 1) / 2) for place in range(len(counts))]
        shares = [count / summary.responses for count in counts]
        bars = axes.barh(places, shares, height=height, color=colour, label=label)
        texts = [f"{count:,} ({share:.1%})" for count, share in zip(counts, shares, strict=True)]
        axes.bar_label(bars, texts, padding=4, fontsize=7.6)
    axes.set_yticks(range(len(counts)), [*names, "others"][: len(counts)])
    axes.invert_yaxis()
    axes.set_xlim(right=1.35 * axes.get_xlim()[1])
    axes.grid(axis="y", visible=False)
    _percent_axis(axes.xaxis)
    _legend(axes, series)


def _histogram(
    axes: Any, series: Series, bins: Sequence[Histogram | None], label: str, unit: str = "questions"
) -> None:
    """One outline a model, the last one filled; `bins` has None where a model has none."""
    for (name, colour, _), histogram in zip(series, bins, strict=True):
        if histogram is not None:
            shares = [count / (sum(histogram.counts) or 1) for count in histogram.counts]
            style = {"fill": True, "alpha": 0.75} if name == series[-1][0] else {"linewidth": 1.8}
            axes.stairs(shares, histogram.edges, color=colour, label=name, **style)
    axes.set_xlabel(label)
    axes.set_ylabel(f"share of {unit}")
    axes.grid(axis="x", visible=False)
    _percent_axis(axes.yaxis)
    _legend(axes, series)


def _percent_axis(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")


def _legend(axes: Any, entries: Sequence[Any]) -> None:
    """Above the axes, where it hides nothing; none for a single entry."""
    if len(entries) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, borderaxespad=0.0, markerscale=0.6)


FIGURES = {
    "accuracy": (
        "pass@k with 95% intervals",
        "Share of questions with a right answer among k sampled ones; bars are intervals over questions.",
        _pass_at_k,
    ),
    "differences": (
        "What training changed",
        "Trained minus base on the same questions, with paired 95% intervals; one that holds 0 shows nothing.",
        _differences,
    ),
    "means": (
        "Distribution of group means",
        "A group at either end has no variance and gives no signal; the signal is in between.",
        _means,
    ),
    "lengths": ("Response lengths", "A pile at the right edge is answers that the limit cut off.", _lengths),
    "reasons": ("Reasons", "The reward's code for each response; docs of the rewards explain them.", _reasons),
}
