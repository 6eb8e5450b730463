"""The report of a run: one HTML file without scripts and without the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

from recipes import official
from recipes.config import Recipe
from recipes.drawing import BLUE, GOOD, SLATE, STYLE, STYLE_SHEET, WEAK, draw_accuracy, inline, templates
from recipes.engines.reward_metrics import PART, REWARD_STD, logged_parts
from recipes.errors import RecipeError, counted
from recipes.files import write_whole
from recipes.paths import ROOT
from recipes.runs.changes import read_changes
from recipes.runs.compare import percent
from recipes.runs.dumps import Dump, Response, read_dump, validation_files
from recipes.runs.folder import ATTEMPT, Run, RunFiles, read
from recipes.runs.groups import Rollouts
from recipes.runs.health import Finding, findings_of, truncated
from recipes.runs.log import LogReader, first_error
from recipes.runs.metrics import KL, duration, number
from recipes.runs.validations import accuracy
from recipes.statistics import Interval

Validations = dict[int, Dump]
TEMPLATE = "report.html.j2"
AGAINST = ("verl", "easyr1")
MOST_CHARACTERS = 1500
"""Of a prompt or a response."""
MOST_VALIDATIONS = 5


def write(folder: Path, output: Path) -> Path:
    """Write the report of the run in `folder` to `output`, whole or not at all. Returns its absolute path."""
    run = read(folder)
    responses = run.responses()
    findings = findings_of(run, responses)
    validations, notes = _validations(run)
    page = _page(run, findings, validations, responses.training, notes)
    write_whole(output, page)
    return output.absolute()


def _page(run: Run, findings: list[Finding], validations: Validations, rollouts: Rollouts, notes: list[str]) -> str:
    from markupsafe import Markup

    curve = {step: accuracy(dump) for step, dump in validations.items()}
    alarms = [finding for finding in findings if finding.alarming]
    tone = "bad" if any(finding.status == "failure" for finding in alarms) else "weak" if alarms else "good"
    different, heads, more = _against_official(run)
    config = RunFiles(run.folder).config
    return (
        templates(Path(__file__).parent)
        .get_template(TEMPLATE)
        .render(
            run=run,
            notes=[*run.notes, *notes, *more],
            style=Markup(STYLE_SHEET.read_text(encoding="utf-8")),
            task=run.recipe.name if run.recipe else "unknown recipe",
            written=datetime.now().astimezone().isoformat(timespec="minutes"),
            tone=tone,
            alarms=alarms,
            tiles=_tiles(run, curve),
            findings=findings,
            unknown=sum(finding.status == "unknown" for finding in findings),
            curves=[(title, Markup(svg)) for title, svg in _curves(run, curve, rollouts)],
            samples=_samples(validations),
            different=different,
            counted=counted,
            zip=zip,
            heads=heads,
            error=_error(run),
            changed=read_changes(run.folder),
            config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "there is none",
        )
    )


def _validations(run: Run) -> tuple[Validations, list[str]]:
    """Step -> its validation, and what is wrong with any of them."""
    validations, notes = {}, []
    for step, file in validation_files(run.folder).items():
        try:
            validations[step] = read_dump(file)
        except RecipeError as error:
            notes.append(f"validation of step {step} left out: {error.what}")
    by_note: dict[str, list[int]] = {}
    for step, dump in validations.items():
        for note in dump.notes:
            by_note.setdefault(note, []).append(step)
    return validations, notes + [f"validation of step {_listed(steps)}: {note}" for note, steps in by_note.items()]


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")


def _tiles(run: Run, curve: dict[int, Interval]) -> list[tuple[str, str, str]]:
    first, last = (curve[min(curve)], curve[max(curve)]) if curve else (None, None)
    seconds = sum((step.get("timing_s/step") or 0) + (step.get("timing_s/testing") or 0) for step in run.history)
    return [
        ("steps", str(run.step), f"of {run.total}" if run.total else "total not known"),
        ("held-out accuracy", number(run.accuracy), f"{percent(first)} → {percent(last)} %" if curve else ""),
        ("best kept", number(run.best.value) if run.best else "-", f"step {run.best.step}" if run.best else ""),
        ("checkpoint", f"{run.checkpoint.step}" if run.checkpoint else "-", "last saved step"),
        ("time", duration(seconds), f"{duration(run.left_s)} to go" if run.left_s else "in steps and validations"),
    ]


def _curves(run: Run, curve: dict[int, Interval], rollouts: Rollouts) -> Iterator[tuple[str, str]]:
    """Title and SVG of each figure that the run has numbers for."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    trained = [step for step in run.history if step.step]
    groups = rollouts.among([step.step for step in trained])

    def series(*names: str) -> tuple[list[int], list[float]]:
        points = [(step.step, value) for step in trained if (value := step.get(*names)) is not None]
        return [step for step, _ in points], [value for _, value in points]

    def line(axes: Any, points: tuple[list[int], list[float]], colour: str, label: str | None = None) -> None:
        alone = len(points[0]) == 1  # a line of one point is nothing
        axes.plot(*points, color=colour, label=label, marker="o" if alone else None)

    limit = run.recipe.data.max_response_length if run.recipe else 0
    names = dict.fromkeys(name for step in trained for name in logged_parts(step.data))
    rewards = list(zip(names, cycle((BLUE, GOOD, WEAK, SLATE)), strict=False))
    shares = {step.step: share for step in trained if (share := truncated(step, limit)) is not None}
    panels = [
        (
            "each reward, mean of the responses",
            [(name.removeprefix(PART), colour, series(name)) for name, colour in rewards],
        ),
        ("standard deviation of the rewards in a group", [("", BLUE, series(REWARD_STD))]),
        ("entropy, nats a token", [("", BLUE, series("actor/entropy"))]),
        ("KL to the reference, nats a token", [("", BLUE, series(*KL))]),
        ("norm of the gradient", [("", BLUE, series("actor/grad_norm"))]),
        (
            "groups with one score, and right training responses",
            [
                ("zero variance", WEAK, (list(groups), [each.zero_variance_share for each in groups.values()])),
                ("right", GOOD, (list(groups), [each.accuracy for each in groups.values()])),
            ],
        ),
        ("response length, tokens", [("", BLUE, series("response_length/mean"))]),
        ("share of responses cut at the limit", [("", BLUE, (list(shares), list(shares.values())))]),
        ("vLLM against trainer, nats a token", [("", BLUE, series("rollout_corr/kl"))]),
        ("seconds a step", [("", BLUE, series("timing_s/step"))]),
    ]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.7, 3.0))
        axes = figure.subplots()
        score = series("critic/score/mean")
        line(axes, score, SLATE, "training score")
        if curve:
            draw_accuracy(axes, curve, BLUE, "held-out accuracy, 95% interval")
        _whole_steps(axes)
        axes.set(xlabel="step")
        if score[0] or curve:
            axes.legend()
            title = "held-out accuracy and training score"
            yield title, inline(figure, "accuracy", title)
        for index, (title, lines) in enumerate(panels):
            if not any(values for _, _, (_, values) in lines):
                continue
            figure = Figure(figsize=(4.7, 2.4))
            axes = figure.subplots()
            for label, colour, points in lines:
                line(axes, points, colour, label or None)
            _whole_steps(axes)
            if len(lines) > 1:
                axes.legend()
            axes.set(xlabel="step")
            yield title, inline(figure, f"curve{index}", title)


def _whole_steps(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_xlim()
    if high - low < 1:  # one step
        middle = round((low + high) / 2)
        axes.set_xlim(middle - 1, middle + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


@dataclass(frozen=True)
class Sample:
    """One held-out question with its answers: (step, right, text)."""

    title: str
    prompt: str
    answers: list[tuple[int, str, str]]


def _samples(validations: Validations) -> list[Sample]:
    """A question that was won, one that was lost and one that was never right, with the answers of up to five steps."""
    steps = sorted(validations)
    if len(steps) < 2:
        return []
    if len(steps) > MOST_VALIDATIONS:
        steps = [steps[round(i * (len(steps) - 1) / (MOST_VALIDATIONS - 1))] for i in range(MOST_VALIDATIONS)]
    answers = [validations[step].answers for step in steps]
    samples: dict[str, Sample] = {}
    for row in answers[0]:
        if not all(row in each for each in answers):
            continue
        given = [each[row][0] for each in answers]
        first, last = given[0].value, given[-1].value
        never = all(response.right is False for response in given)
        title = "won" if last > first else "lost" if first > last else "never right" if never else ""
        if title and title not in samples:
            texts = [
                (step, _verdict(each), each.text[-MOST_CHARACTERS:]) for step, each in zip(steps, given, strict=True)
            ]
            samples[title] = Sample(title, given[0].prompt[-MOST_CHARACTERS:], texts)
    return [samples[title] for title in ("won", "lost", "never right") if title in samples]


def _verdict(response: Response) -> str:
    """ "right" or "wrong", or the score where the reward states no accuracy."""
    return f"score {response.score:.3g}" if response.right is None else "right" if response.right else "wrong"


def _against_official(run: Run) -> tuple[list[list[str]] | None, list[str], list[str]]:
    """Return the keys that differ from the official examples, the examples' titles, and what went wrong.

    A run without a GPU or of an embedded tiny model has no rows: nearly every size differs there, and says nothing.
    """
    if run.recipe is None or run.recipe.hardware == "cpu" or _is_embedded(run.recipe):
        return None, [], []
    try:
        compared = official.compare(str(RunFiles(run.folder).config), official.examples(AGAINST))
    except RecipeError as error:
        return None, [], [f"no comparison with the official examples: {error.what}"]
    rows = [official.cells(row)[:-1] for row in compared.rows if row.status != "aligned" and _is_official(row)]
    return rows, [each.title for each in compared.official], []


def _is_embedded(recipe: Recipe) -> bool:
    model = recipe.worker.actor.model.model_path
    return model is not None and Path(model).is_relative_to(ROOT / "recipes")


def _is_official(row: official.Row) -> bool:
    return any(value is not official.ABSENT for value in row.official)


def _error(run: Run) -> str:
    """The first real error of the last attempt; empty where the run goes on or has finished, or there is none."""
    log = RunFiles(run.folder).log
    if run.state != "ended early" or not log.is_file():
        return ""
    lines = LogReader(log, 0).read()
    begins = max((index for index, line in enumerate(lines) if ATTEMPT in str(line)), default=0)
    error = first_error(lines[begins:])
    if error is None or not error.error:
        return ""
    return "\n".join(part for part in (error.error, error.frame, error.hint) if part)
