"""The result of an evaluation, its table of figures, and its page: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from recipes.drawing import BLUE, SLATE, STYLE, draw_means, inline, templates
from recipes.errors import counted, printable
from recipes.evaluation.questions import Question, data_url, with_images
from recipes.evaluation.verdicts import Comparison, Filtered, Headline, Probe
from recipes.responses.measures import Cell, Measures, ScoredResponse, Summary, main_metric, metric_of
from recipes.statistics import NOISE, counted_questions
from recipes.yaml_text import shown_path

HERE = Path(__file__).parent
TITLES = {"analyse": "Signal probe", "evaluation": "Evaluation", "comparison": "Base against trained"}
LONGEST_TEXT = 20_000


@dataclass(frozen=True)
class ModelResult:
    """A model with its passes, "greedy" and "sampled"; the other fields are those of its `EvaluatedModel`."""

    name: str
    hash: str
    generator: str
    source: str
    note: str
    passes: dict[str, Summary]


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        """The main figures of each model, with the difference of two, and the conclusion."""
        columns = [*self.models, *["difference"] * (self.comparison is not None)]
        lines = [f"{self.kind} of {self.task}, {self.counted_questions}: {' | '.join(columns)}"]
        lines += [f"{line.label}: {' | '.join(each.value for each in line.cells)}" for line in table(self)[:3]]
        return "\n".join([*lines, self.headline.text])

    @property
    def sampled(self) -> Summary:
        """The sampled pass of the first model."""
        return next(iter(self.models.values())).passes["sampled"]

    @property
    def counted_questions(self) -> str:
        """The number of questions, and of different ones where some repeat."""
        return counted_questions(self.sampled.questions, self.sampled.different)

    @property
    def notes(self) -> list[str]:
        """Data, the probe's groups, responses that could not be judged, filtered rows: beside the figures."""
        data = self.identity["data"]
        made = f", made from {data['made_from']}" if data["made_from"] else ""
        notes = [f"data: {shown_path(Path(data['path']))}, {counted(data['rows'], 'row')}{made}"]
        if unasked := data["questions"] - self.sampled.questions:
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
    for decoding in [name for name in ("sampled", "greedy") if name in passes[0]]:
        summaries = [each[decoding] for each in passes]
        for name in dict.fromkeys(name for summary in summaries for name in summary.figures):
            figures = [summary.figures.get(name) for summary in summaries]
            if name == "accuracy" and not any(summary.graded for summary in summaries):
                continue
            metric = metric_of(name)
            cells = [metric.cell(figure) for figure in figures]
            if compared:
                cells.append(metric.cell(compared.differences[decoding].get(name), difference=True))
            label = metric.label + (", greedy" if decoding == "greedy" else "")
            lines[decoding, name] = Line(label, cells, p_values.get((decoding, name), ""))
    first = lines.pop(("greedy", main_metric(each["greedy"] for each in passes if "greedy" in each)), None)
    return [first, *lines.values()] if first else [*lines.values()]


def html_page(result: Result, samples: list[Sample], figures: list[Figure]) -> str:
    """One HTML document without any outside resource; its content security policy allows no script but its own."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    sampled = [model.passes["sampled"] for model in result.models.values()]
    codes = dict.fromkeys(name for one in sampled for name in one.reasons)
    environment = templates(HERE)
    environment.filters["printable"] = printable
    return environment.get_template("page.html.j2").render(
        result=result,
        title=TITLES[result.kind],
        name=" against ".join(model.name for model in reversed(result.models.values())),
        table=table(result),
        verdicts=[
            (metric_of(each.metric).label, metric_of(each.metric).cell(result.sampled.figures[each.metric]), each)
            for each in (result.probe.verdicts if result.probe else ())
        ],
        facts=_facts(result),
        reason_shares={name: [f"{one.reasons.get(name, 0) / one.responses:.1%}" for one in sampled] for name in codes},
        samples=samples,
        longest=LONGEST_TEXT,
        outcomes=sorted({sample.outcome for sample in samples}),
        reasons=sorted({reason for sample in samples for reason in sample.reasons}),
        charts=figures,
        script=script,
        policy=f"{policy}script-src 'sha256-{digest}'",
    )


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
            facts[f"Sampling, {name}"] = ", ".join(f"{key} {value}" for key, value in identity[name].items())
    return facts


# Outcomes that differ between the two models: readers of a comparison want to see these questions.
CHANGED = ("won", "lost")
# Kind of evaluation -> pass -> number of its answers that are shown.
SHOWN = {
    "analyse": {"model_sampled": 4},
    "evaluation": {"model_greedy": 1, "model_sampled": 2},
    "comparison": {"base_greedy": 1, "trained_greedy": 1},
}


@dataclass(frozen=True)
class Sample:
    """One question with some answers; texts are raw, and escaped where they are rendered."""

    question: Question
    outcome: str
    reasons: list[str]
    # For each sampled pass: name, number of right answers (None without an accuracy), number of answers, mean score.
    groups: list[tuple[str, int | None, int, float]]
    answers: list[tuple[str, ScoredResponse]]  # with model and pass, such as "model greedy"
    images: list[str] = field(default_factory=list)  # data URLs


class Samples:
    """Keeps the first `most` questions of every kind; a kind is an outcome with its reason codes."""

    def __init__(self, kind: str, most: int) -> None:
        self._kind, self._most = kind, most
        self._kept: dict[tuple[str, str], list[Sample]] = {}

    def add(self, question: Question, scored: Mapping[str, Sequence[ScoredResponse]]) -> None:
        """Keep one question, or drop it where its kind has enough."""
        sample = _sample(self._kind, question, scored)
        kept = self._kept.setdefault((sample.outcome, " ".join(sample.reasons)), [])
        if len(kept) < self._most:
            kept.append(sample)

    def entries(self, data: Path, questions: Sequence[Question]) -> list[Sample]:
        """At most `most` samples, in the file's order, with the images of `data`.

        Changed outcomes are picked first, then the other kinds in turn.
        """
        changed = [samples for (outcome, _), samples in self._kept.items() if outcome in CHANGED]
        others = [samples for (outcome, _), samples in self._kept.items() if outcome not in CHANGED]
        turns = filter(None, chain(*zip_longest(*changed), *zip_longest(*others)))
        picked = {sample.question.row: sample for sample in islice(turns, self._most)}
        return [
            replace(picked[question.row], images=[data_url(image) for image in question.images])
            for question in with_images(data, [question for question in questions if question.row in picked])
        ]


def _sample(kind: str, question: Question, scored: Mapping[str, Sequence[ScoredResponse]]) -> Sample:
    answers = [
        (name.replace("_", " "), scored[name][number])
        for name, most in SHOWN[kind].items()
        for number in _varied(scored[name], most)
    ]
    shown = [response for _, response in answers]
    if kind != "comparison":
        outcome = _outcome(scored[next(iter(SHOWN[kind]))])
    elif abs(shown[1].value - shown[0].value) <= NOISE:
        outcome = "same" if shown[0].right is None else "both right" if shown[0].right else "both wrong"
    else:
        outcome = "won" if shown[1].value > shown[0].value else "lost"
    groups = [
        (name.replace("_", " "), _right(group), len(group), fmean(each.score for each in group))
        for name, group in scored.items()
        if len(group) > 1
    ]
    return Sample(question, outcome, sorted({response.reason for response in shown}), groups, answers)


def _right(scores: Sequence[ScoredResponse]) -> int | None:
    return None if any(score.right is None for score in scores) else sum(score.right is True for score in scores)


def _outcome(scores: Sequence[ScoredResponse]) -> str:
    right = _right(scores)
    if right is None:
        return "scored"
    return "all right" if right == len(scores) else "mixed" if right else "all wrong"


def _varied(scores: Sequence[ScoredResponse], most: int) -> list[int]:
    """Indices of at most `most` answers, in the order of sampling: the first of each reason, then the first others."""
    first = {score.reason: number for number, score in reversed(list(enumerate(scores)))}
    return sorted(list(dict.fromkeys([*sorted(first.values()), *range(len(scores))]))[:most])


# In inches; small enough that the text stays legible when a phone shrinks the figure.
SIZE = (4.7, 3.0)
COLOURS = {"model": BLUE, "base": SLATE, "trained": BLUE}
BINS = 20
Passes = Mapping[str, Measures]  # model's label -> its sampled pass


Figure = tuple[str, str, str, str]  # name, heading, one sentence on how to read it, SVG


def draw_all(passes: Passes) -> list[Figure]:
    """The distribution of group means, and pass@k if the reward states an accuracy; no figures for groups of one."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import PercentFormatter

    if not all(one.summary.groups for one in passes.values()):
        return []
    figures = []
    with mpl.rc_context(STYLE):
        for name, title, caption, draw in FIGURES:
            if name == "accuracy" and any(one.measure != name for one in passes.values()):
                continue
            canvas = Canvas(figsize=SIZE)
            axes = canvas.subplots()
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            draw(axes, passes)
            if len(passes) > 1:  # above the axes, where it hides nothing
                axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, borderaxespad=0.0)
            figures.append((name, title, caption, inline(canvas, name, f"{title}. {caption}")))
    return figures


def _pass_at_k(axes: Any, passes: Passes) -> None:
    for label, measures in passes.items():
        figures = measures.summary.figures
        curve = {int(name[5:]): figures[name] for name in figures if name.startswith("pass@")}
        draw_means(axes, curve, COLOURS[label], label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(curve), [f"pass@{k}" for k in curve])
    axes.set_ylim(0, 1.02)


def _means(axes: Any, passes: Passes) -> None:
    """One histogram a model: base as an outline, any other filled."""
    values = {label: measures.columns["mean_score"] for label, measures in passes.items()}
    every = np.concatenate(list(values.values()))
    bins = np.linspace(min(every.min(), 0.0), max(every.max(), 1.0), BINS + 1)
    for name, each in values.items():
        style = {"histtype": "stepfilled", "alpha": 0.75} if name != "base" else {"histtype": "step", "linewidth": 1.8}
        axes.hist(each, bins, weights=np.full(len(each), 1 / len(each)), color=COLOURS[name], label=name, **style)
    axes.set_xlabel("mean score of a group")
    axes.set_ylabel("share of questions")
    axes.grid(axis="x", visible=False)


FIGURES = (
    (
        "accuracy",
        "pass@k with 95% intervals",
        "Share of questions with a right answer among k sampled ones; bars are intervals over questions.",
        _pass_at_k,
    ),
    (
        "means",
        "Distribution of group means",
        "A group at either end has no variance and gives no signal; the signal is in between.",
        _means,
    ),
)
