#!/usr/bin/env python
"""Draw the learning curve of a run and write its figures as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.errors import reported_errors

app = typer.Typer(add_completion=False)


@app.command()
def main(
    run: Annotated[Path, typer.Argument(help="a run's folder, such as artifacts/runs/countdown")],
    output: Annotated[Path, typer.Option(help="path without an ending; .json and .svg are written")],
    command: Annotated[str, typer.Option(help="the command that made the run, kept in the JSON")] = "",
) -> None:
    """Validation accuracy with intervals, training metrics, and the last validation against the first."""
    from recipes.evaluation.learning import draw, learning_curve

    with reported_errors():
        curve = {"command": command, **learning_curve(run)}
        output.parent.mkdir(parents=True, exist_ok=True)
        output.with_suffix(".json").write_text(json.dumps(curve, indent=1) + "\n", encoding="utf-8")
        draw(curve, output.with_suffix(".svg"))
    paired = curve["paired"]
    change = paired["difference"]
    print(
        f"step {paired['first']} to {paired['last']} on {paired['problems']} problems: "
        f"{100 * change['value']:+.1f} points "
        f"(95% interval {100 * change['low']:+.1f} to {100 * change['high']:+.1f}), "
        f"McNemar p = {paired['mcnemar']['p_value']:.2g}"
    )


if __name__ == "__main__":
    app()
