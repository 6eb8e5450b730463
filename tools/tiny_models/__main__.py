"""`python -m tools.tiny_models TASK`: pretrain a tiny model, on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import print

from recipes.errors import RecipeError, reported_errors
from recipes.paths import artifacts, data_dir
from tools.tiny_models.countdown import Countdown
from tools.tiny_models.custom import Custom
from tools.tiny_models.gsm8k import GSM8K
from tools.tiny_models.number_game import NumberGame
from tools.tiny_models.pretrain import make
from tools.tiny_models.text import SIZES

TASKS = {task.name: task for task in (Countdown, GSM8K, Custom, NumberGame)}


def main(
    task: Annotated[str, typer.Argument(help=f"one of {', '.join(TASKS)}")],
    out: Annotated[Path | None, typer.Option(help="new folder; default artifacts/models/TASK_tiny")] = None,
    share: Annotated[float, typer.Option(min=0, help="share of the task's steps, for a short run")] = 1.0,
    problems: Annotated[int, typer.Option(min=1, help="held-out problems to assess on")] = 256,
    size: Annotated[str, typer.Option(help=f"of a model in text, for a GPU: {', '.join(SIZES)} parameters")] = "",
    screenshots: Annotated[Path | None, typer.Option(help="number_game: folder with train and test.parquet")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
) -> None:
    """Pretrain a tiny model. The same command goes on with a training that was interrupted."""
    with reported_errors():
        if task not in TASKS or size not in ("", *SIZES):
            raise RecipeError(f"unknown task or size: {task} {size}", where="TASK, --size", fix="see --help")
        own = (
            {"screenshots": screenshots or data_dir("number_game_tiny")} if task == NumberGame.name else {"size": size}
        )
        out = (out or artifacts() / "models" / f"{task}_tiny").absolute()
        print(make(TASKS[task](seed=seed, **own), out, share=share, problems=problems))


if __name__ == "__main__":
    typer.run(main)
