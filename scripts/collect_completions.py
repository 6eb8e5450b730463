"""Sort training or validation rollouts into `*_success.jsonl` and `*_fail.jsonl`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.errors import reported_errors

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    rollouts: Annotated[
        Path, typer.Argument(help="a run's rollouts/ or validation/ folder, or one <step>.jsonl in it")
    ],
    task: Annotated[
        str, typer.Option("--task", help="its reward file gives the reasons, which training dumps lack")
    ] = "",
    reward_path: Annotated[str, typer.Option("--reward_path", help="reward file, or file:function, in its stead")] = "",
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="default: completions/ beside the rollouts", show_default=False)
    ] = None,
) -> None:
    """Make completion logs from the rollouts that verl wrote during training."""
    from recipes.evaluation.cli import collect

    with reported_errors():
        collect(rollouts, task, reward_path, output_dir)


if __name__ == "__main__":
    app()
