"""The report's pages: the table of figures, the tiles, HTML and Markdown."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.drawing import STYLE_SHEET
from recipes.evaluation.metrics import METRICS, Metric, metrics_of
from recipes.evaluation.probe import SCALES
from recipes.evaluation.report.figures import Figure
from recipes.evaluation.report.samples import Sample
from recipes.evaluation.suspicious import RULES
from recipes.statistics import SIGNIFICANCE, Interval

if TYPE_CHECKING:
    from recipes.evaluation.evaluate import Result

STYLES: dict[str, Callable[[float], str]] = {
    "percent": lambda value: f"{100 * value:.1f}%",
    "decimal": lambda value: f"{value:.3f}",
    "tokens": lambda value: f"{value:.1f}",
}
DIFFERENCE_STYLES: dict[str, Callable[[float], str]] = {
    "percent": lambda value: f"{100 * value:+.1f} points",
    "decimal": lambda value: f"{value:+.3f}",
    "tokens": lambda value: f"{value:+.1f}",
}
ABSENT = "–"
GREEDY_LABELS = {
    "pass@1": "pass@1, greedy",
    "accuracy": "Mean accuracy, greedy",
    "mean_tokens": "Response length, greedy (tokens)",
    "truncated": "Truncated responses, greedy",
}
VERDICT_LABELS = {metric.name: (metric.label, metric.style) for metric in METRICS if metric.name in SCALES}


@dataclass(frozen=True)
class Cell:
    """A figure as text; `low` and `high` are empty where there is no interval, `sure`: its interval excludes 0."""

    value: str
    low: str = ""
    high: str = ""
    sure: bool = False


@dataclass(frozen=True)
class Row:
    """A line of the table of figures: a cell per model, and one for the difference if there are two."""

    label: str
    cells: list[Cell]


def table(result: Result) -> list[Row]:
    """The table of figures: the greedy pass's pass@1, the sampled pass, and what else the greedy pass has."""
    first = next(iter(result.models.values())).passes
    rows = [_row(result, "sampled", metric, metric.label) for metric in metrics_of(first["sampled"].sampling.n)]
    if "greedy" not in first:
        return rows
    greedy = {metric.name: metric for metric in metrics_of(1)}
    lines = [_row(result, "greedy", greedy[name], label) for name, label in GREEDY_LABELS.items()]
    return [lines[0], *rows, *lines[1:]]


def _row(result: Result, decoding: str, metric: Metric, label: str) -> Row:
    intervals = [model.passes[decoding].figures[metric.name] for model in result.models.values()]
    cells = [cell(interval, STYLES[metric.style]) for interval in intervals]
    if result.comparison:
        difference = result.comparison.differences[decoding][metric.name]
        cells.append(cell(difference, DIFFERENCE_STYLES[metric.style]))
    return Row(label, cells)


def cell(interval: Interval | None, style: Callable[[float], str]) -> Cell:
    """An interval as text; the unit stands behind the value alone."""
    if interval is None:
        return Cell(ABSENT)
    if interval.low is None or interval.high is None:
        return Cell(style(interval.value))
    low, high = (style(end).removesuffix(" points") for end in (interval.low, interval.high))
    return Cell(style(interval.value), low, high, interval.excludes_zero)


@dataclass(frozen=True)
class Tile:
    """One large figure at the top."""

    label: str
    value: str
    note: str
    level: str = "plain"


def tiles(result: Result) -> list[Tile]:
    """The six figures that a reader wants first."""
    if result.comparison:
        return _comparison_tiles(result)
    passes = result.models["model"].passes
    sampled = passes["sampled"]
    n = sampled.sampling.n

    def tile(label: str, metric: str, style: str, note: str, level: str = "plain") -> Tile:
        return Tile(label, cell(sampled.figures[metric], STYLES[style]).value, note, level)

    reach = tile(f"pass@{n}", f"pass@{n}", "percent", f"at least one of {n} answers right")
    truncated = tile("Truncated", "truncated", "percent", "cut off at the limit")
    if result.probe is None:
        first = cell(passes["greedy"].figures["pass@1"], STYLES["percent"])
        return [
            Tile("pass@1, greedy", first.value, "right at temperature 0"),
            tile("Accuracy", "accuracy", "percent", f"mean over {n} sampled answers"),
            reach,
            tile("Length", "mean_tokens", "tokens", "tokens per response"),
            tile("Token entropy", "token_entropy_nats", "decimal", "nats per token"),
            truncated,
        ]
    probe = result.probe
    levels = {verdict.metric: verdict.level for verdict in probe.verdicts}
    kept = Tile("Groups without variance", STYLES["percent"](probe.zero_variance_share), "carry no signal")
    if probe.kept is not None:
        kept = Tile("Batch left", f"{probe.kept:.0f}", f"of {probe.prompts} prompts a step carry a signal")
    return [
        tile("Accuracy", "accuracy", "percent", f"mean over {n} answers", levels["accuracy"]),
        tile("Variance", "score_variance", "decimal", "within a group", levels["score_variance"]),
        tile("Group entropy", "group_entropy_bits", "decimal", "bits", levels["group_entropy_bits"]),
        kept,
        reach,
        truncated,
    ]


def _comparison_tiles(result: Result) -> list[Tile]:
    comparison = result.comparison
    primary, last = comparison.primary, comparison.pass_at_k[-1]
    test = primary.mcnemar
    sure = test.p_value < SIGNIFICANCE
    level = "plain" if not sure else "good" if test.won > test.lost else "bad"
    levels = {1: "good", 0: "plain", -1: "bad"}
    return [
        Tile("pass@1, greedy", f"{100 * primary.difference.value:+.1f}", "points; the primary test", level),
        Tile("McNemar p", f"{test.p_value:.2g}", "chance of so uneven a split", level),
        Tile("Won", f"{test.won:,}", "questions only the trained model solves"),
        Tile("Lost", f"{test.lost:,}", "questions only the base model solves"),
        Tile(
            f"pass@{last.k}, sampled",
            f"{100 * last.difference.value:+.1f}",
            f"points; p = {last.p_holm:.2g} after Holm",
            levels[last.change],
        ),
        Tile("Newly solved", f"{len(comparison.reach.newly_solved):,}", f"by no base answer of {comparison.reach.n}"),
    ]


HERE = Path(__file__).parent
TITLES = {"analyse": "Signal probe", "evaluation": "Evaluation", "comparison": "Base against trained"}
# Control characters are no HTML, and those that turn the direction of writing can disguise text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_ROWS_IN_MARKDOWN = 50


def html_page(result: Result, samples: list[Sample], figures: list[Figure]) -> str:
    """One HTML document without any outside resource; its policy lets no script run but its own."""
    from markupsafe import Markup

    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    return (
        _environment(autoescape=True)
        .get_template("page.html.j2")
        .render(
            **_common(result),
            samples=samples,
            outcomes=sorted({sample.outcome for sample in samples}),
            reasons=sorted({reason for sample in samples for reason in sample.reasons}),
            flags=sorted({flag for sample in samples for flag in sample.flags}),
            figures=[(figure.name, figure.title, figure.caption, Markup(figure.svg)) for figure in figures],
            style=Markup(STYLE_SHEET.read_text(encoding="utf-8")),
            script=Markup(script),
            policy=f"{policy}script-src 'sha256-{digest}'",
        )
    )


def markdown_page(result: Result) -> str:
    """The summary: headline, the table of figures, and what made it."""
    template = _environment(autoescape=False).get_template("summary.md.j2")
    text = template.render(**_common(result), most=_ROWS_IN_MARKDOWN)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def printable(text: Any) -> str:
    """`text` with characters that a browser would hide or obey shown as their code."""
    return _UNPRINTABLE.sub(lambda match: f"[U+{ord(match.group()):04X}]", str(text))


def _environment(*, autoescape: bool) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    environment.filters["cell"] = lambda text: printable(text).replace("|", "\\|").replace("\n", " ")
    return environment


def _common(result: Result) -> dict[str, Any]:
    """What both templates use."""
    passes = [
        (f"{label} {name}" if result.comparison else name, model.completions[name])
        for label, model in result.models.items()
        for name in model.passes
    ]
    return {
        "result": result,
        "title": TITLES[result.kind],
        "name": " against ".join(model.name for model in reversed(result.models.values())),
        "table": table(result),
        "tiles": tiles(result),
        "verdicts": _verdicts(result),
        "groups": result.models["model"].passes["sampled"].groups if result.probe else None,
        "pass_at_k": _pass_at_k(result),
        "rules": RULES,
        "logs": passes,
        "facts": _facts(result),
        "percent": STYLES["percent"],
    }


def _verdicts(result: Result) -> list[tuple[str, Cell, Any, dict[str, float]]]:
    """Per verdict of the probe: label, figure, verdict, and places on its scale in percent of the scale's length."""
    rows = []
    for verdict in result.probe.verdicts if result.probe else ():
        label, style = VERDICT_LABELS[verdict.metric]
        interval = result.models["model"].passes["sampled"].figures[verdict.metric]
        top, (good_from, good_to) = SCALES[verdict.metric]
        ends = {"good": good_from, "good_width": good_to - good_from, "mark": min(verdict.value, top)}
        if interval.low is not None:
            ends |= {"low": interval.low, "width": interval.high - interval.low}
        places = {name: 100 * end / top for name, end in ends.items()}
        rows.append((label, cell(interval, STYLES[style]), verdict, places))
    return rows


def _pass_at_k(result: Result) -> list[tuple[Any, list[Cell]]]:
    """Per k: the test, and the cells of base, trained and difference."""
    found = []
    for each in result.comparison.pass_at_k if result.comparison else ():
        cells = [cell(each.base, STYLES["percent"]), cell(each.trained, STYLES["percent"])]
        found.append((each, [*cells, cell(each.difference, DIFFERENCE_STYLES["percent"])]))
    return found


def _facts(result: Result) -> list[tuple[str, str]]:
    """What made the report, as pairs of a name and a text."""
    identity, made = result.identity, result.made_by
    facts = [("Command", made["command"]), ("Commit", made["commit"]), ("Time", made["time"])]
    for label, model in result.models.items():
        shown = f"{model.name} ({model.source}, sha256 {model.hash[:16]}, by {model.generator})"
        facts.append((label.capitalize(), shown))
        if model.note:
            facts.append((f"{label.capitalize()}, note", model.note))
    data = identity["data"]
    chosen = "the first rows" if identity["sample_seed"] is None else f"rows drawn with seed {identity['sample_seed']}"
    which = chosen if identity["limit"] else "all rows"
    facts.append(("Data", f"{data['path']}, {data['questions']} questions ({which}), sha256 {data['sha256'][:16]}"))
    facts.append(("Reward", f"{identity['reward']['path']}, sha256 {identity['reward']['sha256'][:16]}"))
    for name in ("greedy", "sampled"):
        if identity[name]:
            facts.append((f"Sampling, {name}", ", ".join(f"{key} {value}" for key, value in identity[name].items())))
    facts.append(("Versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())))
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    generated = sum(result.generated.values())
    facts.append(("Time spent", f"{seconds}; {generated} groups generated, the others from the cache"))
    return facts
