"""The result of an evaluation, and its table of figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import counted
from recipes.evaluation.comparison import Comparison, Headline
from recipes.evaluation.probe import Filtered, Probe
from recipes.responses.measures import Cell, Summary, main_metric, metric_of
from recipes.statistics import counted_questions
from recipes.yaml_text import shown_path


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
            metric = metric_of(name)
            cells = [metric.cell(figure) for figure in figures]
            if compared:
                cells.append(metric.cell(compared.differences[decoding].get(name), difference=True))
            label = metric.label + (", greedy" if decoding == "greedy" else "")
            lines[decoding, name] = Line(label, cells, p_values.get((decoding, name), ""))
    first = lines.pop(("greedy", main_metric(each["greedy"] for each in passes if "greedy" in each)), None)
    ordered = [line for wanted in ("sampled", "greedy") for (decoding, _), line in lines.items() if decoding == wanted]
    return [first, *ordered] if first else ordered
