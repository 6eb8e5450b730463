"""What the launcher says about itself: the tasks, the environment variables, and the next command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import Recipe, tasks
from recipes.config.environment import CONTROLS, VARIABLES, variable_names
from recipes.paths import ROOT
from recipes.supervise.summary import Checkpoint, shown

if TYPE_CHECKING:
    from rich.console import Console


def show(console: Console) -> None:
    """The tasks and both tables of variables."""
    from rich.table import Table

    console.print("usage: [VARIABLE=value ...] bash scripts/launch.sh TASK [key=value ...]\n", markup=False)
    console.print("tasks (configs/<task>.yaml): " + ", ".join(tasks()) + "\n")
    for title, rows in (
        ("variables that steer the launcher", [(control.name, control.doc) for control in CONTROLS]),
        (
            "variables that set a key",
            [(" or ".join(variable.names), variable.key) for variable in VARIABLES],
        ),
    ):
        table = Table(title=title, box=None, title_justify="left", show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, meaning in rows:
            table.add_row(name, meaning)
        console.print(table, markup=False)
        console.print()


def launcher(task: str) -> str:
    """The task's launcher where there is one and no other, else the general one."""
    found = sorted((ROOT / "examples" / task).glob("*_grpo.sh"))
    return f"bash {found[0].relative_to(ROOT)}" if len(found) == 1 else f"bash scripts/launch.sh {task}"


def next_commands(
    recipe: Recipe, checkpoint: Checkpoint | None, total: int | None, environ: Mapping[str, str]
) -> list[tuple[str, str]]:
    """What a user may want next: evaluate the checkpoint, and train on.

    Args:
        recipe: the recipe that ran.
        checkpoint: its last checkpoint.
        total: its steps, where known.
        environ: the variables that the user set are repeated in the command.
    """
    commands = []
    script = ROOT / "scripts" / f"eval_{recipe.name}.py"
    if checkpoint and checkpoint.model and script.is_file():
        python, model = (shlex.quote(str(shown(path))) for path in (Path(sys.executable), checkpoint.model))
        commands.append(("evaluate", f"{python} scripts/{script.name} --model_path {model}"))
    if checkpoint and total:
        names = sorted(name for name in variable_names() if environ.get(name) and name not in ("MAX_STEPS", "DRY_RUN"))
        given = "".join(f"{name}={shlex.quote(environ[name])} " for name in names)
        commands.append(("more steps", f"{given}MAX_STEPS={2 * total} {launcher(recipe.name)}"))
    return commands
