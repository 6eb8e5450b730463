"""The result of an evaluation, and its report: one HTML file that needs nothing else, and the JSON of the result."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.drawing import STYLE_SHEET, templates
from recipes.errors import counted
from recipes.evaluation.comparison import Comparison, Headline
from recipes.evaluation.figures import Figure
from recipes.evaluation.metrics import PassSummary, main_metric, metric_of
from recipes.evaluation.probe import Filtered, Probe, Verdict
from recipes.evaluation.samples import Sample
from recipes.files import write_whole
from recipes.statistics import Interval, counted_questions
from recipes.yaml_text import shown_path

HERE = Path(__file__).parent
TITLES = {"analyse": "Signal probe", "evaluation": "Evaluation", "comparison": "Base against trained"}
# Style of a metric -> factor, format of a value, format of a difference.
FORMATS = {
    "percent": (100, "{:.1f}%", "{:+.1f} points"),
    "decimal": (1, "{:.3f}", "{:+.3f}"),
    "tokens": (1, "{:.1f}", "{:+.1f}"),
}
ABSENT = "–"
LONGEST_TEXT = 20_000
# Control characters are not valid HTML, and those that change the direction of text can disguise it.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


@dataclass(frozen=True)
class ModelResult:
    """A model with its passes, "greedy" and "sampled"; the other fields are those of its `EvaluatedModel`."""

    name: str
    hash: str
    generator: str
    source: str
    note: str
    passes: dict[str, PassSummary]


@dataclass(frozen=True)
class Result:
    """A finished evaluation; `probe`, `comparison` and `filtered` are None where they were not made."""

    kind: str  # "analyse", "evaluation" or "comparison"
    task: str
    identity: dict[str, Any]  # everything that decides the figures, see `EvaluationPlan.identity`
    made_by: dict[str, Any]  # command, commit, and time in UTC
    models: dict[str, ModelResult]  # by label: "model", or "base" and "trained"
    headline: Headline  # the one sentence at the top
    probe: Probe | None  # result of the signal probe
    comparison: Comparison | None  # of two models
    filtered: Filtered | None  # the rows that the signal probe kept

    @property
    def sampled(self) -> PassSummary:
        """The sampled pass of the first model."""
        return next(iter(self.models.values())).passes["sampled"]

    @property
    def counted_questions(self) -> str:
        """The number of questions, and of different ones where some repeat."""
        return counted_questions(self.sampled.questions, self.sampled.different)

    @property
    def scored(self) -> bool:
        """Return whether the score is the measure, since the reward states no accuracy."""
        return any(summary.measure == "score" for model in self.models.values() for summary in model.passes.values())

    @property
    def notes(self) -> list[str]:
        """What the figures do not say: data, the probe's groups, responses that could not be judged, filtered rows."""
        data = self.identity["data"]
        made = f", made from {data['made_from']}" if data["made_from"] else ""
        notes = [f"data: {shown_path(Path(data['path']))}, {counted(data['rows'], 'row')}{made}"]
        if unasked := data["rows"] - self.sampled.questions:
            notes.append(
                f"not asked: {counted(unasked, 'row')} with a prompt above data.max_prompt_length, as in training"
            )
        if self.probe:
            shares = [f"{count / self.sampled.questions:.1%} {name}" for name, count in self.sampled.groups.items()]
            notes.append(f"groups: {', '.join(shares)}")
        for label, model in self.models.items():
            notes += [
                f"the reward could not judge {counted(summary.failures, 'response')} ({label}, {name}), counted as "
                f"failed with the lowest score, or 0 if none is below; the first: {summary.first_failure}"
                for name, summary in model.passes.items()
                if summary.failures
            ]
        if kept := self.filtered:
            counts = f"{kept.dropped} dropped ({kept.not_probed} kept without a probe)"
            notes.append(f"filtered: {kept.path}, {counted(kept.kept, 'row')} kept, {counts}")
        return notes


def write_report(folder: Path, result: Result, samples: list[Sample], figures: list[Figure]) -> None:
    """Write `report.json` and `report.html` into `folder`.

    Args:
        samples, figures: questions with some answers, and charts; both go into the HTML page.
    """
    text = json.dumps(asdict(result), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(folder / "report.json", text + "\n")
    write_whole(folder / "report.html", html_page(result, samples, figures))


@dataclass(frozen=True)
class Cell:
    """A figure as text; `low` and `high` are empty without an interval; `sure` says that the interval excludes 0."""

    value: str
    low: str = ""
    high: str = ""
    sure: bool = False


def cell(interval: Interval | None, name: str, *, difference: bool = False) -> Cell:
    """An interval of the metric `name` as text; only the value, not `low` and `high`, has the unit "points"."""
    if interval is None:
        return Cell(ABSENT)
    factor, *formats = FORMATS[metric_of(name).style]
    form = formats[difference]
    value = form.format(factor * interval.value)
    if interval.low is None or interval.high is None:
        return Cell(value)
    low, high = (form.format(factor * end).removesuffix(" points") for end in (interval.low, interval.high))
    return Cell(value, low, high, interval.excludes_zero)


@dataclass(frozen=True)
class Line:
    """A line of the table of figures: a cell for each model, and for two models the difference and its p-value."""

    label: str
    cells: list[Cell]
    p: str = ""


def table(result: Result) -> list[Line]:
    """The table of figures: the main metric of the greedy pass, the sampled pass, the rest of the greedy pass.

    Mean accuracy has a line only where it is not pass@1 of the same pass, and is the greedy pass's main metric there.
    """
    passes = [model.passes for model in result.models.values()]
    compared = result.comparison
    p_values = {("sampled", name): f"{p:.2g}" for name, p in compared.p_values.items()} if compared else {}
    if compared:
        p_values["greedy", compared.measure] = f"{compared.primary.p_value:.2g}"
    lines = {}
    for decoding in [name for name in ("greedy", "sampled") if name in passes[0]]:
        summaries = [each[decoding] for each in passes]
        for name in dict.fromkeys(name for summary in summaries for name in summary.figures):
            figures = [summary.figures.get(name) for summary in summaries]
            if name == "accuracy" and not any(summary.graded for summary in summaries):
                continue
            cells = [cell(figure, name) for figure in figures]
            if compared:
                cells.append(cell(compared.differences[decoding].get(name), name, difference=True))
            label = metric_of(name).label + (", greedy" if decoding == "greedy" else "")
            lines[decoding, name] = Line(label, cells, p_values.get((decoding, name), ""))
    first = lines.pop(("greedy", main_metric(each["greedy"] for each in passes if "greedy" in each)), None)
    ordered = [line for wanted in ("sampled", "greedy") for (decoding, _), line in lines.items() if decoding == wanted]
    return [first, *ordered] if first else ordered


def printable(text: Any) -> str:
    """`text` with every character that a browser would hide or obey replaced by its code point."""
    return _UNPRINTABLE.sub(lambda match: f"[U+{ord(match.group()):04X}]", str(text))


def html_page(result: Result, samples: list[Sample], figures: list[Figure]) -> str:
    """One HTML document without any outside resource; its content security policy allows no script but its own."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    environment = templates(HERE)
    environment.filters["printable"] = printable
    return environment.get_template("page.html.j2").render(
        result=result,
        title=TITLES[result.kind],
        name=" against ".join(model.name for model in reversed(result.models.values())),
        table=table(result),
        verdicts=_verdicts(result),
        facts=_facts(result),
        reason_shares=_reasons(result),
        samples=samples,
        longest=LONGEST_TEXT,
        outcomes=sorted({sample.outcome for sample in samples}),
        reasons=sorted({reason for sample in samples for reason in sample.reasons}),
        charts=figures,
        style=STYLE_SHEET.read_text(encoding="utf-8"),
        script=script,
        policy=f"{policy}script-src 'sha256-{digest}'",
    )


def _verdicts(result: Result) -> list[tuple[str, Cell, Verdict]]:
    """Per verdict of the probe: label, figure, and the verdict."""
    figures = result.sampled.figures
    verdicts = result.probe.verdicts if result.probe else []
    return [(metric_of(each.metric).label, cell(figures[each.metric], each.metric), each) for each in verdicts]


def _reasons(result: Result) -> dict[str, list[str]]:
    """Reason -> its share of each model's sampled responses."""
    passes = [model.passes["sampled"] for model in result.models.values()]
    names = dict.fromkeys(name for one in passes for name in one.reasons)
    return {name: [f"{one.reasons.get(name, 0) / one.responses:.1%}" for one in passes] for name in names}


def _facts(result: Result) -> dict[str, str]:
    """Return the report's provenance: name -> text."""
    identity, made = result.identity, result.made_by
    facts = {name.capitalize(): text for name, text in made.items()}
    for label, model in result.models.items():
        facts[label.capitalize()] = f"{model.name} ({model.source}, sha256 {model.hash[:16]}, by {model.generator})"
        if model.note:
            facts[f"{label.capitalize()}, note"] = model.note
    data, which = identity["data"], "the first rows" if identity["limit"] else "all rows"
    facts["Data"] = f"{data['path']}, {result.counted_questions} ({which}), sha256 {data['sha256'][:16]}"
    facts["Reward"] = f"{identity['reward']['path']}, sha256 {identity['reward']['sha256'][:16]}"
    for name in ("greedy", "sampled"):
        if identity[name]:
            facts[f"Sampling, {name}"] = _listed(identity[name])
    return facts


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
