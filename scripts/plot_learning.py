"""Draw the learning curve of a run, or of several seeds with a band, and write its figures as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.errors import counted, reported_errors
from recipes.paths import relative_to_cwd
from recipes.statistics import Interval

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(help="runs' folders, such as artifacts/runs/countdown; one per seed")],
    output: Annotated[Path, typer.Option("--output", help="path without an ending; .json and .svg are written")],
    reports: Annotated[
        list[Path] | None, typer.Option("--report", help="report.json of an evaluation against the base; one per seed")
    ] = None,
    command: Annotated[str | None, typer.Option("--command", help="the command that made the runs")] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="where they were made")] = None,
    learned: Annotated[str | None, typer.Option("--learned", help="what was learned, in a sentence")] = None,
) -> None:
    """Held-out accuracy with intervals, KL wherever it acts, pass@k, and the last validation against the first.

    Command, machine and sentence stay as OUTPUT.json has them where they are not given.
    """
    from recipes.runs.learning import draw, learning

    with reported_errors():
        result = learning(runs, reports or ())
        output.parent.mkdir(parents=True, exist_ok=True)
        file = output.with_suffix(".json")
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        given = {"command": command, "machine": machine, "learned": learned}
        notes = {name: kept.get(name, "") if value is None else value for name, value in given.items()}
        file.write_text(json.dumps({**notes, **asdict(result)}, indent=1) + "\n", encoding="utf-8")
        draw(result, output.with_suffix(".svg"))
        print(f"wrote {relative_to_cwd(file.absolute())} and {relative_to_cwd(output.with_suffix('.svg').absolute())}")
    for curve in result.curves:
        for note in curve.notes:
            print(f"note: {curve.run}: {note}", file=sys.stderr)
        if curve.paired is None:
            continue
        paired, change = curve.paired, curve.paired.difference
        print(
            f"{curve.run}: step {paired.first} to {paired.last} on {counted(paired.questions, 'question')}: "
            f"{100 * change.value:+.1f} points ({span(change)}), McNemar p = {paired.mcnemar.p_value:.2g}"
        )
    if len(result.curves) > 1:
        mean = f"mean of {len(result.curves)} seeds: {100 * result.change.value:+.1f} points"
        print(f"{mean} ({span(result.change, ' over seeds')})")
    for k, each in result.pass_at_k.items():
        print(f"pass@{k}: {100 * each.before.value:.1f}% to {100 * each.after.value:.1f}% ({span(each.change)})")


def span(change: Interval, over: str = "") -> str:
    """The ends of an interval in points, or why there is none."""
    if change.low is None or change.high is None:
        return change.method
    return f"95% interval{over} {100 * change.low:+.1f} to {100 * change.high:+.1f}"


if __name__ == "__main__":
    app()
