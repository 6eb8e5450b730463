"""The report: one HTML file that needs nothing else, and the JSON with every number."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.drawing import STYLE_SHEET, templates
from recipes.engines.reward_metrics import PART
from recipes.errors import counted
from recipes.evaluation.comparison import Comparison
from recipes.evaluation.metrics import METRICS, metrics_of, pass_name, reward_metric
from recipes.evaluation.probe import SCALES
from recipes.evaluation.report.figures import Figure
from recipes.evaluation.report.samples import Sample
from recipes.evaluation.result import Result
from recipes.evaluation.scoring import FLEXIBLE
from recipes.files import write_whole
from recipes.statistics import Interval

HERE = Path(__file__).parent
TITLES = {"analyse": "Signal probe", "evaluation": "Evaluation", "comparison": "Base against trained"}
# Style of a metric -> factor, format of a value, format of a difference.
FORMATS = {
    "percent": (100, "{:.1f}%", "{:+.1f} points"),
    "decimal": (1, "{:.3f}", "{:+.3f}"),
    "tokens": (1, "{:.1f}", "{:+.1f}"),
}
LABELS = {metric.name: metric.label for metric in METRICS}
GREEDY_LABELS = {
    "pass@1": "pass@1, greedy",
    "mean_score": "Mean score, greedy",
    "accuracy": "Mean accuracy, greedy",
    "flexible": "Mean accuracy, greedy, flexible",
    "mean_tokens": "Response length, greedy (tokens)",
    "truncated": "Truncated responses, greedy",
}
ABSENT = "–"
# Control characters are no HTML, and those that turn the direction of writing can disguise text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def write_report(folder: Path, result: Result, samples: list[Sample], figures: list[Figure]) -> None:
    """Write `report.json` and `report.html` into `folder`.

    Args:
        samples: questions with some answers, and `figures`: both for the page.
    """
    text = json.dumps(asdict(result), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(folder / "report.json", text + "\n")
    write_whole(folder / "report.html", html_page(result, samples, figures))


@dataclass(frozen=True)
class Cell:
    """A figure as text; `low` and `high` are empty where there is no interval, `sure`: its interval excludes 0."""

    value: str
    low: str = ""
    high: str = ""
    sure: bool = False


def cell(interval: Interval | None, style: str, *, difference: bool = False) -> Cell:
    """An interval as text; the unit stands behind the value alone."""
    if interval is None:
        return Cell(ABSENT)
    factor, *formats = FORMATS[style]
    form = formats[difference]
    value = form.format(factor * interval.value)
    if interval.low is None or interval.high is None:
        return Cell(value)
    low, high = (form.format(factor * end).removesuffix(" points") for end in (interval.low, interval.high))
    return Cell(value, low, high, interval.excludes_zero)


def table(result: Result) -> list[tuple[str, list[Cell]]]:
    """The table of figures: a label, with a cell for each model and one for the difference if there are two.

    First the greedy pass's pass@1, then the sampled pass, then what else the greedy pass has. Flexible accuracy has a
    row where the reward has that switch, mean accuracy where it is not pass@1 of the same pass.
    """
    first = next(iter(result.models.values())).passes
    sampled = first["sampled"]
    parts = [reward_metric(name) for name in sampled.figures if name.startswith(PART)]
    lines = [("sampled", metric, metric.label) for metric in (*metrics_of(sampled.sampling.n, sampled.measure), *parts)]
    if "greedy" in first:
        metrics = {metric.name: metric for metric in metrics_of(1, sampled.measure)}
        greedy = [("greedy", metrics[name], label) for name, label in GREEDY_LABELS.items() if name in metrics]
        lines = [greedy[0], *lines, *greedy[1:]]
    rows = []
    for decoding, metric, label in lines:
        values = [model.passes[decoding].figures.get(metric.name) for model in result.models.values()]
        if metric.name == FLEXIBLE and values.count(None) == len(values):
            continue
        cells = [cell(value, metric.style) for value in values]
        if result.comparison:
            difference = result.comparison.differences[decoding].get(metric.name)
            cells.append(cell(difference, metric.style, difference=True))
        rows.append((decoding, metric.name, label, cells))

    def values_of(cells: list[Cell]) -> list[str]:
        return [each.value for each in cells]

    right = {decoding: values_of(cells) for decoding, name, _, cells in rows if name == pass_name(1)}
    return [
        (label, cells)
        for decoding, name, label, cells in rows
        if name != "accuracy" or values_of(cells) != right.get(decoding)
    ]


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
        return _comparison_tiles(result.comparison)
    passes = result.models["model"].passes
    sampled, probe = passes["sampled"], result.probe
    n, measure = sampled.sampling.n, sampled.measure
    styles = {metric.name: metric.style for metric in metrics_of(n, measure)}
    levels = {verdict.metric: verdict.level for verdict in probe.verdicts} if probe else {}

    def tile(label: str, metric: str, note: str) -> Tile | None:
        if metric not in styles:
            return None
        return Tile(label, cell(sampled.figures[metric], styles[metric]).value, note, levels.get(metric, "plain"))

    of_samples = f"mean over {counted(n, 'sampled answer')}"
    accuracy = tile("Accuracy", "accuracy", of_samples) or tile("Score", "mean_score", of_samples)
    reach = tile(
        f"pass@{n}", f"pass@{n}", f"at least one of {n} answers right" if n > 1 else "the sampled answer is right"
    )
    truncated = tile("Truncated", "truncated", "cut off at the limit")
    if probe is None:
        greedy = passes["greedy"].figures
        first = (
            Tile("pass@1, greedy", cell(greedy["pass@1"], "percent").value, "right at temperature 0")
            if measure == "accuracy"
            else Tile("Score, greedy", cell(greedy["mean_score"], "decimal").value, "mean at temperature 0")
        )
        length = tile("Length", "mean_tokens", "tokens per response")
        entropy = tile("Token entropy", "token_entropy_nats", "nats per token")
        return [each for each in (first, accuracy, reach, length, entropy, truncated) if each]
    batch = (
        Tile("Groups without variance", f"{probe.zero_variance_share:.1%}", "carry no signal")
        if probe.kept is None
        else Tile("Batch left", f"{probe.kept:.0f}", f"of {probe.prompts} prompts a step carry a signal")
    )
    variance = tile("Variance", "score_variance", "within a group")
    entropy = tile("Group entropy", "group_entropy_bits", "bits")
    return [each for each in (accuracy, variance, entropy, batch, reach, truncated) if each]


def _comparison_tiles(comparison: Comparison) -> list[Tile]:
    primary, last, reach = comparison.primary, comparison.further[-1], comparison.reach
    paired, level = primary.paired, primary.verdict.replace("weak", "plain")
    further = ("plain", "good", "bad")[last.change]
    of_accuracy = primary.measure == "pass@1"
    style, name = ("percent", "pass@1, greedy") if of_accuracy else ("decimal", "Score, greedy")
    better = (
        ("only the trained model solves", "only the base model solves")
        if of_accuracy
        else ("with a higher score", "with a lower score")
    )
    tiles = [
        Tile(name, cell(paired.difference, style, difference=True).value, "the primary test", level),
        Tile(f"p, {paired.test}", f"{paired.p_value:.2g}", "were both equally good", level),
        Tile("Won", f"{paired.won:,}", f"question{'s' * (paired.won != 1)} {better[0]}"),
        Tile("Lost", f"{paired.lost:,}", f"question{'s' * (paired.lost != 1)} {better[1]}"),
        Tile(
            f"{LABELS.get(last.name, last.name)}, sampled",
            cell(last.difference, last.style, difference=True).value,
            f"p = {last.p_holm:.2g} after Holm",
            further,
        ),
    ]
    if reach:
        tiles.append(Tile("Newly solved", f"{len(reach.newly_solved):,}", f"by no base answer of {reach.n}"))
    return tiles


def printable(text: Any) -> str:
    """`text` with characters that a browser would hide or obey shown as their code."""
    return _UNPRINTABLE.sub(lambda match: f"[U+{ord(match.group()):04X}]", str(text))


def html_page(result: Result, samples: list[Sample], figures: list[Figure]) -> str:
    """One HTML document without any outside resource; its policy lets no script run but its own."""
    from markupsafe import Markup

    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    environment = templates(HERE)
    environment.filters |= {
        "printable": printable,
        "counted": counted,
        "label": lambda name: LABELS.get(name, name),
        "percent": "{:.1%}".format,
    }
    sampled = next(iter(result.models.values())).passes["sampled"]
    return environment.get_template("page.html.j2").render(
        result=result,
        title=TITLES[result.kind],
        name=" against ".join(model.name for model in reversed(result.models.values())),
        table=table(result),
        tiles=tiles(result),
        verdicts=_verdicts(result),
        groups=sampled.groups if result.probe else None,
        as_cell=cell,
        failures=_failures(result),
        different=sampled.different,
        questions=sampled.questions,
        facts=_facts(result),
        samples=samples,
        outcomes=sorted({sample.outcome for sample in samples}),
        reasons=sorted({reason for sample in samples for reason in sample.reasons}),
        figures=[(figure.name, figure.title, figure.caption, Markup(figure.svg)) for figure in figures],
        style=Markup(STYLE_SHEET.read_text(encoding="utf-8")),
        script=Markup(script),
        policy=f"{policy}script-src 'sha256-{digest}'",
    )


def _failures(result: Result) -> list[tuple[str, int, str]]:
    """Per pass in which the reward failed: its name, the number of responses, and the first error."""
    return [
        (f"{label}, {name}", summary.failures, summary.first_failure)
        for label, model in result.models.items()
        for name, summary in model.passes.items()
        if summary.failures
    ]


def _verdicts(result: Result) -> list[tuple[str, Cell, Any, dict[str, float]]]:
    """Per verdict of the probe: label, figure, verdict, and places on its scale in percent of the scale's length."""
    rows = []
    for verdict in result.probe.verdicts if result.probe else ():
        interval = result.models["model"].passes["sampled"].mean(verdict.metric)
        top, (good_from, good_to) = SCALES[verdict.metric]
        ends = {"good": good_from, "good_width": good_to - good_from, "mark": min(verdict.value, top)}
        if interval.low is not None and interval.high is not None:
            ends |= {"low": interval.low, "width": interval.high - interval.low}
        places = {name: 100 * end / top for name, end in ends.items()}
        style = "percent" if verdict.metric == "accuracy" else "decimal"
        rows.append((LABELS[verdict.metric], cell(interval, style), verdict, places))
    return rows


def _facts(result: Result) -> list[tuple[str, str]]:
    """Return what made the report, as pairs of a name and a text."""
    identity, made, data = result.identity, result.made_by, result.identity.data
    facts = [("Command", made.command), ("Commit", made.commit), ("Time", made.time)]
    for label, model in result.models.items():
        source = f"{model.name} ({model.source}, sha256 {model.hash[:16]}, by {model.generator})"
        facts.append((label.capitalize(), source))
        if model.note:
            facts.append((f"{label.capitalize()}, note", model.note))
    chosen = "the first rows" if identity.sample_seed is None else f"rows drawn with seed {identity.sample_seed}"
    which = chosen if identity.limit else "all rows"
    different = next(iter(result.models.values())).passes["sampled"].different
    repeats = "" if different == data.questions else f", {different:,} of them different"
    asked = f"{counted(data.questions, 'question')}{repeats} ({which})"
    facts.append(("Data", f"{data.path}, {asked}, sha256 {data.sha256[:16]}"))
    facts.append(("Reward", f"{identity.reward.path}, sha256 {identity.reward.sha256[:16]}"))
    for name, sampling in (("greedy", identity.greedy), ("sampled", identity.sampled)):
        if sampling:
            facts.append((f"Sampling, {name}", _listed(asdict(sampling))))
    facts.append(("Versions", _listed(made.versions)))
    generated = sum(result.generated.values())
    spent = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    facts.append(("Time spent", f"{spent}; {counted(generated, 'group')} generated, the others from the cache"))
    return facts


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
