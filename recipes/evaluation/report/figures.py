"""Figures of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipes.drawing import BAD, BLUE, CARD, GOOD, INK, LINE, MUTED, SLATE, STYLE, inline
from recipes.evaluation.comparison import Comparison, Primary
from recipes.evaluation.metrics import PassSummary

if TYPE_CHECKING:
    from recipes.evaluation.evaluate import Result

# Small enough that the text can be read where a phone shrinks it, in inches.
SIZE = (4.7, 3.0)
MOST_REASONS = 10
OTHERS = "others"
Series = list[tuple[str, str, PassSummary]]  # label, colour, figures


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

    colours = {"model": BLUE, "base": SLATE, "trained": BLUE}
    sampled = [(label, colours[label], model.passes["sampled"]) for label, model in result.models.items()]
    figures = []
    with mpl.rc_context(STYLE):
        for name, title, caption, painter in _painters(result.comparison, sampled):
            canvas = Canvas(figsize=SIZE)
            painter(canvas)
            figures.append(Figure(name, title, caption, inline(canvas, name, f"{title}. {caption}")))
    return figures


Painter = tuple[str, str, str, Callable[[Any], None]]


def _painters(comparison: Comparison | None, sampled: Series) -> list[Painter]:
    summary = sampled[0][2]
    grouped = summary.groups is not None
    found: list[Painter] = [
        (
            "accuracy",
            "pass@k with 95% intervals",
            "Share of questions with a right answer among k sampled ones; bars are intervals over questions.",
            lambda canvas: _pass_at_k(canvas, sampled),
        )
    ]
    if comparison:
        found += [
            (
                "differences",
                "What training changed",
                "Trained minus base on the same questions, with paired 95% intervals; one that holds 0 shows nothing.",
                lambda canvas: _differences(canvas, comparison),
            ),
            (
                "changes",
                "Questions won and lost",
                "Greedy answers that are right, by model; only what changed sides enters McNemar's test.",
                lambda canvas: _changes(canvas, comparison.primary),
            ),
        ]
    if grouped:
        found += [
            (
                "means",
                "Distribution of group means",
                "A group at either end has no variance and gives no signal; the signal is in between.",
                lambda canvas: _histograms(canvas, sampled, "mean_score", "mean score of a group"),
            ),
            (
                "variance",
                "Variance against accuracy",
                "One dot per kind of question, its area the number of questions; the line is the most that right "
                "or wrong can vary.",
                lambda canvas: _variance(canvas, sampled),
            ),
            (
                "entropy",
                "Entropy",
                "Left: of a group's mean accuracy, 1 where half is right. Right: per token, near 0 where a model "
                "always says the same.",
                lambda canvas: _entropies(canvas, sampled),
            ),
        ]
    if summary.histograms["tokens"] is not None:
        caption = "A pile at the right edge is answers that the limit cut off."
        found.append(("lengths", "Response lengths", caption, lambda canvas: _lengths(canvas, sampled)))
    found.append(
        (
            "reasons",
            "Reasons",
            "The reward's code for each response; docs of the rewards explain them.",
            lambda canvas: _reasons(canvas, sampled),
        )
    )
    return found


def _percent_axis(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")


def _legend(axes: Any) -> Any:
    """Above the axes, where it hides nothing."""
    return axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, borderaxespad=0.0)


def _pass_at_k(canvas: Any, series: Series) -> None:
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
    names = list(points)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(0, 1.02)
    axes.grid(axis="x", visible=False)
    _percent_axis(axes.yaxis)
    if len(series) > 1:
        _legend(axes)


def _differences(canvas: Any, comparison: Comparison) -> None:
    sampled = comparison.differences["sampled"]
    rows = [("pass@1, greedy", comparison.primary.difference), ("accuracy", sampled["accuracy"])]
    rows += [(name, figure) for name, figure in sampled.items() if name.startswith("pass@")]
    rows.append(("truncated", sampled["truncated"]))
    axes = canvas.subplots()
    axes.axvline(0, color=MUTED, linewidth=1, zorder=1)
    for place, (_, interval) in enumerate(rows):
        colour = BLUE if interval.excludes_zero else SLATE
        if interval.low is not None:
            axes.hlines(place, interval.low, interval.high, color=colour, linewidth=2.6, alpha=0.45)
        axes.plot(interval.value, place, "o", color=colour, markersize=6)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.3g}" if value else "0")
    axes.set_xlabel("trained minus base, in points")


def _changes(canvas: Any, primary: Primary) -> None:
    rows = [
        ("both right", primary.both_right, SLATE),
        ("won", len(primary.won), GOOD),
        ("lost", len(primary.lost), BAD),
        ("both wrong", primary.both_wrong, SLATE),
    ]
    _bars(canvas.subplots(), rows)


def _bars(axes: Any, rows: list[tuple[str, int, str]]) -> None:
    total = sum(count for _, count, _ in rows) or 1
    for place, (_, count, colour) in enumerate(rows):
        axes.barh(place, count, color=colour, height=0.62)
        axes.annotate(
            f"{count:,}  ({count / total:.1%})",
            (count, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.4,
            color=INK,
        )
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max(1, *(count for _, count, _ in rows)))
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])


def _histograms(canvas: Any, series: Series, name: str, label: str) -> None:
    _histogram(canvas.subplots(), series, name, label)


def _histogram(axes: Any, series: Series, name: str, label: str) -> None:
    for number, (who, colour, summary) in enumerate(series):
        histogram = summary.histograms.get(name)
        if histogram is None:
            continue
        total = sum(histogram["counts"]) or 1
        shares = [count / total for count in histogram["counts"]]
        filled = len(series) == 1 or number == 1
        axes.stairs(
            shares, histogram["edges"], fill=filled, color=colour, alpha=0.75 if filled else 1, label=who, linewidth=1.8
        )
    axes.set_xlabel(label)
    axes.set_ylabel("share of questions")
    axes.grid(axis="x", visible=False)
    _percent_axis(axes.yaxis)
    if len(series) > 1:
        _legend(axes)


def _variance(canvas: Any, series: Series) -> None:
    axes = canvas.subplots()
    curve = [step / 100 for step in range(101)]
    axes.plot(curve, [p * (1 - p) for p in curve], color=LINE, linewidth=1.6, zorder=1)
    for who, colour, summary in series:
        points = summary.variance_by_accuracy
        most = max(count for _, _, count in points)
        sizes = [14 + 260 * count / most for _, _, count in points]
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        axes.scatter(
            xs,
            ys,
            s=sizes,
            color=colour,
            alpha=0.6,
            edgecolors=CARD,
            linewidths=0.8,
            label=who,
            zorder=2,
            clip_on=False,
        )
    axes.set_xlim(-0.04, 1.04)
    axes.set_ylim(bottom=-0.012)
    axes.set_xlabel("accuracy of a group")
    axes.set_ylabel("variance of its scores")
    _percent_axis(axes.xaxis)
    if len(series) > 1:
        for handle in _legend(axes).legend_handles:
            handle.set_sizes([40])


def _entropies(canvas: Any, series: Series) -> None:
    left, right = canvas.subplots(1, 2)
    _histogram(left, series, "group_entropy_bits", "bits per group")
    _histogram(
        right,
        [one for one in series if one[2].histograms.get("token_entropy_nats")],
        "token_entropy_nats",
        "nats per token",
    )
    right.set_ylabel("")
    if not any(one[2].histograms.get("token_entropy_nats") for one in series):
        right.text(0.5, 0.5, "not known", transform=right.transAxes, ha="center", color=MUTED)
        right.set_yticks([])
        right.set_xticks([])
    if left.get_legend() is not None and right.get_legend() is not None:
        right.get_legend().remove()


def _lengths(canvas: Any, series: Series) -> None:
    axes = canvas.subplots()
    if len(series) == 1:
        histogram = series[0][2].histograms["tokens"]
        below = [0] * len(histogram["right"])
        for name, colour in (("right", GOOD), ("wrong", BAD)):
            top = [low + count for low, count in zip(below, histogram[name], strict=True)]
            axes.stairs(top, histogram["edges"], baseline=below, fill=True, color=colour, alpha=0.75, label=name)
            below = top
        axes.set_ylabel("responses")
    else:
        for number, (who, colour, summary) in enumerate(series):
            histogram = summary.histograms["tokens"]
            counts = [right + wrong for right, wrong in zip(histogram["right"], histogram["wrong"], strict=True)]
            shares = [count / (sum(counts) or 1) for count in counts]
            style = {"fill": number == 1, "alpha": 0.75 if number else 1, "linewidth": 1.8}
            axes.stairs(shares, histogram["edges"], color=colour, label=who, **style)
        axes.set_ylabel("share of responses")
        _percent_axis(axes.yaxis)
    axes.set_xlabel("tokens")
    axes.grid(axis="x", visible=False)
    _legend(axes)


def _reasons(canvas: Any, series: Series) -> None:
    axes = canvas.subplots()
    if len(series) == 1:
        counts = _most_frequent(series[0][2].reasons)
        _bars(axes, [(name, count, BLUE if name != OTHERS else SLATE) for name, count in counts.items()])
        return
    together: Counter[str] = Counter()
    for _, _, summary in series:
        together.update(summary.reasons)
    names = list(_most_frequent(dict(together.most_common())))
    height = 0.8 / len(series)
    for number, (who, colour, summary) in enumerate(series):
        places = [place + height * (number - (len(series) - 1) / 2) for place in range(len(names))]
        named = {name: summary.reasons.get(name, 0) for name in names}
        if OTHERS in names:
            named[OTHERS] = summary.responses - sum(named.values())
        shares = [named[name] / summary.responses for name in names]
        axes.barh(places, shares, height=height, color=colour, label=who)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    _percent_axis(axes.xaxis)
    _legend(axes)


def _most_frequent(reasons: dict[str, int]) -> dict[str, int]:
    """The first of `reasons`, which are sorted by count, with the sum of what does not fit as "others"."""
    if len(reasons) <= MOST_REASONS:
        return reasons
    ranked = list(reasons.items())
    return dict(ranked[: MOST_REASONS - 1]) | {OTHERS: sum(count for _, count in ranked[MOST_REASONS - 1 :])}
