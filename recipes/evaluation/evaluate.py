"""From a plan to a folder with the report: the signal probe, one model, or base against trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.evaluation import probe, statistics
from recipes.evaluation.cache import hash_file, made_by, whole_folder
from recipes.evaluation.generation import Pass, draw
from recipes.evaluation.plan import Plan, identity, target_folder
from recipes.evaluation.probe import write_filtered
from recipes.evaluation.questions import Question, load_questions
from recipes.evaluation.records import JsonLines
from recipes.evaluation.report import write_report
from recipes.evaluation.report.figures import draw_all
from recipes.evaluation.report.page import Picker, outcome_of, sample_entry

# A function that shows progress: given a text and a total it returns a context whose value takes increments.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class Result:
    """A finished evaluation: the report's content and the folder that holds it."""

    report: dict[str, Any]
    folder: Path


def run(plan: Plan, progress: Progress) -> Result:
    """Generate what is missing, score, judge and write the report; before it is whole only the cache changes."""
    questions = load_questions(plan.data, limit=plan.limit, sample_seed=plan.sample_seed)
    what = identity(plan, len(questions))
    target = target_folder(plan, what)
    passes = _passes(plan)
    clock = Clock()
    with clock("generate"):
        asked = _draw(plan, passes, questions, progress)
    with whole_folder(target) as folder:
        with clock("score"), progress("score", len(questions)) as advance:
            rows = _score(plan, passes, questions, folder, advance)
        with clock("statistics"):
            report = {"kind": plan.kind, "task": plan.task, "identity": what, "made_by": made_by(), "generated": asked}
            report |= _figures(plan, passes, questions)
        if plan.filter_out is not None:
            origin = {"report": str(target), **what}
            report["filtered"] = write_filtered(
                plan.data, plan.filter_out, questions, passes[0].collector, origin, overwrite=plan.overwrite
            )
        with clock("figures"):
            samples, figures = _samples(plan, passes, questions, rows), draw_all(report)
        report["seconds"] = clock.seconds
        write_report(folder, report, samples, figures)
    for each in passes:
        each.store.close()
    return Result(report, target)


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a block."""
        begin = time.perf_counter()
        yield
        self.seconds[stage] = round(time.perf_counter() - begin, 3)


def _passes(plan: Plan) -> list[Pass]:
    data_hash = hash_file(plan.data)
    samplings = {"greedy": plan.greedy, "sampled": plan.sampled}
    passes = [
        Pass(subject, name, sampling, data_hash, plan.engine)
        for subject in plan.subjects
        for name, sampling in samplings.items()
        if sampling is not None
    ]
    if plan.fresh:
        for each in passes:
            each.forget()
    return passes


def _draw(plan: Plan, passes: Sequence[Pass], questions: Sequence[Question], progress: Progress) -> dict[str, int]:
    """One subject after the other, so that one model at a time is in memory; returns what was not in the cache."""
    asked: dict[str, int] = {}
    for subject in plan.subjects:
        mine = [each for each in passes if each.subject is subject]
        with progress(f"generate: {subject.name}", len(questions) * len(mine)) as advance:
            asked |= draw(mine, questions, plan.engine, advance)
    return asked


def _score(
    plan: Plan, passes: Sequence[Pass], questions: Sequence[Question], folder: Path, advance: Callable[[int], None]
) -> list[int]:
    """Score every question under every pass, write the logs, and return the rows that the report shows."""
    picker = Picker()
    table = JsonLines(folder / "questions.jsonl")
    for each in passes:
        each.open_log(folder / "completions")
    for question in questions:
        scored = {each.key: each.take(question, plan.reward) for each in passes}
        table.write({"row": question.row, "passes": {key: asdict(one.stats) for key, one in scored.items()}})
        picker.offer(question.row, *outcome_of(plan.kind, scored))
        advance(1)
    table.close()
    return picker.rows(plan.shown)


def _figures(plan: Plan, passes: Sequence[Pass], questions: Sequence[Question]) -> dict[str, Any]:
    """`models` with their passes, `headline`, and `probe` or `comparison` by kind."""
    models = {subject.label: subject.as_dict() | {"passes": {}} for subject in plan.subjects}
    for each in passes:
        models[each.subject.label]["passes"][each.name] = each.finish(plan.sampled.seed)
    if plan.kind == "analyse":
        judged = probe.probe(models["model"]["passes"]["sampled"], plan.batch)
        return {"models": models, "headline": judged["recommendation"], "probe": judged}
    if plan.kind == "evaluation":
        return {"models": models, "headline": _plain_words(models["model"]["passes"])}
    return {"models": models} | _comparison(plan, passes, questions, models)


def _comparison(
    plan: Plan, passes: Sequence[Pass], questions: Sequence[Question], models: dict[str, Any]
) -> dict[str, Any]:
    seed = plan.sampled.seed
    collectors = {each.key: each.collector for each in passes}
    sampled = statistics.differences(collectors["base_sampled"], collectors["trained_sampled"], seed)
    greedy = statistics.differences(collectors["base_greedy"], collectors["trained_greedy"], seed)
    rows = [question.row for question in questions]
    changes = statistics.won_and_lost(collectors["base_greedy"], collectors["trained_greedy"], rows)
    headline = statistics.conclusion(sampled["accuracy"], greedy["pass_at_1"], changes["mcnemar"]["p_value"])
    worst = max((models[label]["passes"]["sampled"] for label in models), key=lambda one: one["truncated"]["value"])
    headline["words"] += _cut_off(worst)
    return {"headline": headline, "comparison": {"sampled": sampled, "greedy": greedy, "changes": changes}}


def _plain_words(passes: dict[str, Any]) -> dict[str, str]:
    sampled, first = passes["sampled"], passes["greedy"]["pass_at"]["1"]
    accuracy = sampled["accuracy"]
    span = "" if accuracy["low"] is None else f" (95% interval {accuracy['low']:.1%} to {accuracy['high']:.1%})"
    words = (
        f"Accuracy {accuracy['value']:.1%}{span} over {sampled['questions']} questions x {sampled['n']} answers; "
        f"greedy pass@1 {first['value']:.1%}."
    )
    return {"level": "plain", "words": words + _cut_off(sampled)}


def _cut_off(sampled: dict[str, Any]) -> str:
    share = sampled["truncated"]["value"]
    if share <= probe.TRUNCATION_HARMS:
        return ""
    return f" The limit on tokens cut off {share:.1%} of the sampled answers, which may be better than they score."


def _samples(
    plan: Plan, passes: Sequence[Pass], questions: Sequence[Question], rows: list[int]
) -> list[dict[str, Any]]:
    by_row = {question.row: question for question in questions}
    return [
        sample_entry(plan.kind, by_row[row], {each.key: each.scored(by_row[row], plan.reward) for each in passes})
        for row in rows
    ]
