"""The report of a run: one HTML file without scripts and without the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from recipes.drawing import BLUE, GOOD, SLATE, STYLE, STYLE_SHEET, WEAK, draw_means, inline, templates
from recipes.engines.reward_contract import PART, REWARD_STD, logged_parts
from recipes.errors import RecipeError, counted
from recipes.files import write_whole
from recipes.runs.compare import mean_of, shown
from recipes.runs.folder import ATTEMPT, Run, RunFiles, read, read_changes
from recipes.runs.health import Finding, findings_of, truncated
from recipes.runs.log import LogReader, first_error
from recipes.runs.metrics import KL, duration, number
from recipes.runs.responses import Dump, Response, Rollouts, read_dump, validation_files
from recipes.statistics import Interval

Validations = dict[int, Dump]
TEMPLATE = "report.html.j2"
MOST_CHARACTERS = 1500
"""Of a prompt or a response."""


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

    curve = {step: mean_of(dump) for step, dump in validations.items()}
    alarms = [finding for finding in findings if finding.alarming]
    tone = "bad" if any(finding.status == "failure" for finding in alarms) else "weak" if alarms else "good"
    config = RunFiles(run.folder).config
    return (
        templates(Path(__file__).parent)
        .get_template(TEMPLATE)
        .render(
            run=run,
            notes=[*run.notes, *notes],
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
            counted=counted,
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
    unit = " %" if curve and run.measure == "accuracy" else ""
    ends = [curve[step] for step in sorted({min(curve), max(curve)})] if curve else []
    seconds = sum((step.get("timing_s/step") or 0) + (step.get("timing_s/testing") or 0) for step in run.history)
    return [
        ("steps", str(run.step), f"of {run.total}" if run.total else "total not known"),
        (f"held-out {run.measure}", number(run.held_out), " → ".join(shown(each, run.measure) for each in ends) + unit),
        ("best kept", number(run.best.value) if run.best else "-", f"step {run.best.step}" if run.best else ""),
        ("checkpoint", f"{run.checkpoint.step}" if run.checkpoint else "-", "last saved step"),
        ("time", duration(seconds), f"{duration(run.left_s)} to go" if run.left_s else "in steps and validations"),
    ]


Line = tuple[str, str, Sequence[tuple[int, float]]]
"""Label, colour and points of a curve."""


def _lines(run: Run, rollouts: Rollouts) -> dict[str, list[Line]]:
    """Title of a figure -> its curves; those without points are left out."""
    groups = rollouts.among([step.step for step in run.history if step.step]).items()
    measure = next((each.measure for _, each in groups), "accuracy")
    limit = run.recipe.data.max_response_length if run.recipe else 0
    shares = [(step.step, share) for step in run.history if (share := truncated(step, limit)) is not None]
    parts = dict.fromkeys(name for step in run.history for name in logged_parts(step.data))
    figures: dict[str, list[Line]] = {
        "each reward, mean of the responses": [
            (name.removeprefix(PART), colour, run.series(name))
            for name, colour in zip(parts, cycle((BLUE, GOOD, WEAK, SLATE)), strict=False)
        ],
        "standard deviation of the rewards in a group": [("", BLUE, run.series(REWARD_STD))],
        "entropy, nats a token": [("", BLUE, run.series("actor/entropy"))],
        "KL to the reference, nats a token": [("", BLUE, run.series(*KL))],
        "norm of the gradient": [("", BLUE, run.series("actor/grad_norm"))],
        f"groups with one score, and {measure} of the training responses": [
            ("zero variance", WEAK, [(step, each.zero_variance / each.groups) for step, each in groups]),
            (measure, GOOD, [(step, each.value) for step, each in groups]),
        ],
        "response length, tokens": [("", BLUE, run.series("response_length/mean"))],
        "share of responses cut at the limit": [("", BLUE, shares)],
        "vLLM against trainer, nats a token": [("", BLUE, run.series("rollout_corr/kl"))],
        "seconds a step": [("", BLUE, run.series("timing_s/step"))],
    }
    return {title: lines for title, lines in figures.items() if any(points for _, _, points in lines)}


def _curves(run: Run, curve: dict[int, Interval], rollouts: Rollouts) -> Iterator[tuple[str, str]]:
    """Title and SVG of each figure that the run has numbers for."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    def drawn(title: str, lines: Iterable[Line], height: float, held_out: dict[int, Interval] | None = None) -> str:
        figure = Figure(figsize=(4.7, height))
        axes = figure.subplots()
        for label, colour, points in lines:  # a line of one point is nothing
            axes.plot(*zip(*points, strict=True), color=colour, label=label, marker="o" if len(points) == 1 else None)
        if held_out:
            draw_means(axes, held_out, BLUE, f"held-out {run.measure}, 95% interval")
        _whole_steps(axes)
        axes.set(xlabel="step")
        if axes.get_legend_handles_labels()[1] not in ([], [""]):
            axes.legend()
        return inline(figure, re.sub(r"\W+", "-", title), title)

    with mpl.rc_context(STYLE):
        scores = run.series("critic/score/mean")
        if scores or curve:
            title = f"held-out {run.measure} and training score"
            yield title, drawn(title, [("training score", SLATE, scores)] if scores else [], 3.0, curve)
        for title, lines in _lines(run, rollouts).items():
            yield title, drawn(title, [line for line in lines if line[2]], 2.4)


def _whole_steps(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_xlim()
    if high - low < 1:  # one step
        middle = round((low + high) / 2)
        axes.set_xlim(middle - 1, middle + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


class Sample(NamedTuple):
    """One held-out question with its answers: (step, right, text)."""

    title: str
    prompt: str
    answers: list[tuple[int, str, str]]


def _samples(validations: Validations) -> list[Sample]:
    """A question that was won, one that was lost and one that was never right, at the first, middle and last step."""
    steps = sorted(validations)
    if len(steps) < 2:
        return []
    steps = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
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
