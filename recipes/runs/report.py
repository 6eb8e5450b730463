"""The report of a run, and of several compared: one HTML file without scripts and without the network."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from recipes.drawing import BAD, BLUE, GOOD, INK, SLATE, STYLE, WEAK, draw_means, inline, templates
from recipes.errors import counted
from recipes.files import write_whole
from recipes.responses.files import ScoredFile
from recipes.responses.measures import ScoredResponse
from recipes.rewards.metrics import PART, REWARD_STD, TRAINING_ACCURACY, ZERO_VARIANCE, logged_parts
from recipes.runs.compare import Compared, Side, shown
from recipes.runs.folder import Run, RunFiles, read, read_changes
from recipes.runs.health import findings_of, truncated
from recipes.runs.metrics import KL, Series, duration, number, read_validations, seconds, series
from recipes.statistics import Interval

MOST_CHARACTERS = 1500
"""The most characters that are shown of a prompt or a response: its last ones."""
MOST_POINTS, MOST_VALIDATIONS = 400, 100
"""The most points of a curve, and the most validations that are read for one."""
MARKED = 60
"""Curves of at most so many points have a marker at each."""
COLOURS, STYLES = (BLUE, WEAK, SLATE, BAD, GOOD, INK), ("-", "--", ":")


def write(folder: Path, output: Path) -> Path:
    """Write the report of the run in `folder` to `output`, whole or not at all. Returns its absolute path."""
    run = read(folder)
    validations, notes = read_validations(folder, run.recipe, run.since, MOST_VALIDATIONS)
    curve = {step: file.measures.mean for step, file in validations.items()}
    measure = next((file.measure for file in validations.values()), run.measure)
    found = findings_of(run)
    alarms = [finding for finding in found if finding.alarming]
    config = RunFiles(folder).config
    page = templates(Path(__file__).parent).get_template("report.html.j2")
    text = page.render(
        run=run,
        notes=[*run.notes, *notes],
        written=datetime.now().astimezone().isoformat(timespec="minutes"),
        tone="bad" if any(each.status == "failure" for each in alarms) else "weak" if alarms else "good",
        alarms=alarms,
        tiles=_tiles(run, curve, measure),
        findings=found,
        unknown=sum(finding.status == "unknown" for finding in found),
        curves=curves({"": run}, [curve], measure),
        samples=_samples(validations),
        counted=counted,
        changed=read_changes(folder),
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "there is none",
    )
    write_whole(output, text, "--output")
    return output.absolute()


def _tiles(run: Run, curve: dict[int, Interval], measure: str) -> list[tuple[str, str, str]]:
    unit = " %" if curve and measure == "accuracy" else ""
    ends = [curve[step] for step in sorted({min(curve), max(curve)})] if curve else []
    held_out = ends[-1].value if ends else run.validated.value if run.validated else None
    left = f"{duration(run.left_s)} to go" if run.left_s else "in steps and validations"
    return [
        ("steps", str(run.step), f"of {run.total}" if run.total else "total not known"),
        (f"held-out {measure}", number(held_out), " → ".join(shown(each, measure) for each in ends) + unit),
        ("best kept", number(run.best.value if run.best else None), f"step {run.best.step}" if run.best else ""),
        ("checkpoint", f"{run.checkpoint.step}" if run.checkpoint else "-", "last saved step"),
        ("time", duration(sum(map(seconds, run.history))), left),
    ]


def _figures(run: Run, measure: str) -> dict[str, dict[str, Series]]:
    """Title of a figure -> label and points of its curves."""
    limit = run.recipe.data.max_response_length if run.recipe else 0
    shares = series(run.history, lambda step: truncated(step, limit))
    parts = dict.fromkeys(name for step in run.history for name in logged_parts(step.data))
    return {
        f"held-out {measure} and training score": {"training score": run.series("critic/score/mean")},
        "each reward, mean of the responses": {name.removeprefix(PART): run.series(name) for name in parts},
        "standard deviation of the rewards in a group": {"": run.series(REWARD_STD)},
        "entropy, nats a token": {"": run.series("actor/entropy")},
        "KL to the reference, nats a token": {"": run.series(*KL)},
        "norm of the gradient": {"": run.series("actor/grad_norm")},
        "groups with one score, and accuracy of the training responses": {
            "zero variance": run.series(ZERO_VARIANCE),
            "accuracy": run.series(TRAINING_ACCURACY),
        },
        "response length, tokens": {"": run.series("response_length/mean")},
        "share of responses cut at the limit": {"": shares},
        "vLLM against trainer, nats a token": {"": run.series("rollout_corr/kl")},
        "seconds a step": {"": run.series("timing_s/step")},
    }


def curves(
    runs: Mapping[str, Run], held_out: Sequence[dict[int, Interval]], measure: str
) -> Iterator[tuple[str, Markup]]:
    """Title and SVG of each figure that runs have numbers for, by the names of their curves.

    The first has the held-out results, means by step for each run.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figures = [_figures(run, measure) for run in runs.values()]
    with mpl.rc_context(STYLE):
        for title in figures[0]:
            figure = Figure(figsize=(4.7, 2.7))
            axes = figure.subplots()
            for place, (name, run) in enumerate(runs.items()):
                lines = {label: points for label, points in figures[place][title].items() if points}
                for line, (label, points) in enumerate(lines.items()):
                    hue, dash = (line, 0) if len(runs) == 1 else (place, line)
                    look: dict[str, Any] = {"marker": "o" if len(points) <= MARKED else "", "markersize": 2}
                    look |= {"color": COLOURS[hue % len(COLOURS)], "linestyle": STYLES[dash % len(STYLES)]}
                    before = [point for point in points if point[0] <= run.since]
                    for part in filter(None, (before, points[len(before) :])):  # a changed reward breaks the line
                        axes.plot(*zip(*thinned(part), strict=True), **look)
                    axes.lines[-1].set_label(": ".join(filter(None, (name, label))))
                if title == next(iter(figures[0])) and held_out[place]:
                    colour = GOOD if len(runs) == 1 else COLOURS[place % len(COLOURS)]
                    label = f"held-out {measure}, 95% interval"
                    draw_means(axes, held_out[place], colour, ": ".join(filter(None, (name, label))))
            if not axes.has_data():
                continue
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
            axes.set(xlabel="step")
            if any(axes.get_legend_handles_labels()[1]):
                axes.legend()
            yield title, Markup(inline(figure, re.sub(r"\W+", "-", title), title))


def write_comparison(sides: Sequence[Side], output: Path) -> str:
    """Write a page with the curves of several runs over one another; return the comparison as text."""
    compared = Compared(sides)
    held_out = [{step: file.measures.mean for step, file in side.files.items()} for side in sides if side.run]
    runs = {name: side.run for name, side in zip(compared.names, sides, strict=True) if side.run}
    figures = curves(runs, held_out, compared.runs[0].measure) if runs else ()
    page = templates(Path(__file__).parent).get_template("compare.html.j2")
    write_whole(output, page.render(compared=compared, curves=figures, title=" | ".join(compared.names)), "--output")
    return compared.text()


def thinned(points: Series) -> Series:
    """At most `MOST_POINTS` of a curve: lowest and highest of each stretch of steps, so that no spike is lost."""
    size = math.ceil(2 * len(points) / MOST_POINTS)
    if len(points) <= MOST_POINTS:
        return points
    value = itemgetter(1)
    stretches = (points[at : at + size] for at in range(0, len(points), size))
    return [point for each in stretches for point in sorted({min(each, key=value), max(each, key=value)})]


class Sample(NamedTuple):
    """One held-out question with its answers: (step, verdict, text)."""

    title: str
    prompt: str
    answers: list[tuple[int, str, str]]


def _samples(validations: dict[int, ScoredFile]) -> list[Sample]:
    """A question that was won, one that was lost and one that was never right, at the first, middle and last step."""
    steps = sorted(validations)
    if len(steps) < 2:
        return []
    steps = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    answers = [validations[step].rows for step in steps]
    samples: dict[str, Sample] = {}
    for row in answers[0]:
        if not all(row in each for each in answers):
            continue
        given = [each[row][0] for each in answers]
        first, last = given[0].value, given[-1].value
        never = all(response.right is False for response in given)
        title = "won" if last > first else "lost" if first > last else "never right" if never else ""
        if title and title not in samples:
            verdicts = zip(steps, map(_verdict, given), [each.text[-MOST_CHARACTERS:] for each in given], strict=True)
            samples[title] = Sample(title, given[0].prompt[-MOST_CHARACTERS:], list(verdicts))
    return [samples[title] for title in ("won", "lost", "never right") if title in samples]


def _verdict(response: ScoredResponse) -> str:
    """ "right" or "wrong", or the score where the reward states no accuracy."""
    return f"score {response.score:.3g}" if response.right is None else "right" if response.right else "wrong"
