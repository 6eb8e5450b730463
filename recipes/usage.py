"""The launcher's help: tasks, options and environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import Recipe, load, resolve, tasks
from recipes.config.schema import leaves
from recipes.config.variables import CONTROLS, VARIABLES, usual_name
from recipes.monitor.summary import launcher
from recipes.paths import ROOT

if TYPE_CHECKING:
    from rich.console import Console


STEERING = tuple((control.name, control.doc) for control in CONTROLS if control.name in ("HARDWARE", "EMBEDDED"))
"""Variables that are options and set no key."""


def show(console: Console) -> None:
    """The tasks and both tables of variables."""
    from rich.table import Table

    console.print(
        "usage: [VARIABLE=value ...] bash scripts/launch.sh TASK [--option value ...] [key=value ...]\n"
        "A variable is an option too: ROLLOUT_N=8 is --rollout_n 8. TASK --help lists them with their defaults.\n",
        markup=False,
    )
    console.print("tasks (configs/<task>.yaml): " + ", ".join(tasks()))
    console.print("algorithms (ALGORITHM=name, see docs/ALGORITHMS.md): " + ", ".join(resolve.algorithms()) + "\n")
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


def show_options(console: Console, task: str) -> None:
    """Every option of a task: its default on GPUs, its key, and what it means."""
    recipe = load(task, environ={"EMBEDDED": "0"}, hardware="gpu")
    console.print(f"usage: {launcher(task)} [--option value ...] [key=value ...]\n", markup=False, soft_wrap=True)
    rows = [("--help", "", "", "this table"), ("--dry_run", "", "DRY_RUN", "print what would run, and stop")]
    rows += [(f"--{name.lower()}", "", name, doc) for name, doc in STEERING]
    for variable in VARIABLES:
        leaf = leaves(Recipe)[variable.key]
        default = recipe.value(variable.key)
        names = ", ".join(variable.names)
        rows.append((f"--{usual_name(variable)}", _default(default), f"{names}; {variable.key}", leaf.info.doc))
    for option, default, names, meaning in rows:
        shown_default = f" [{default}]" if default else ""
        console.print(f"{option}{shown_default}\n    {meaning}", markup=False, soft_wrap=True)
        if names:
            console.print(f"    {names}", markup=False, soft_wrap=True)
    console.print(
        "\n--option value, --option=value and the variable set one key; options win over variables. Any other key of\n"
        "docs/CONFIGURATION.md, and any of verl's own, is given as key=value: actor_rollout_ref.model.lora_rank=8",
        markup=False,
        soft_wrap=True,
    )


def _default(value: object) -> str:
    """A default as one would type it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "")
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value)
    return str(Path(text).relative_to(ROOT)) if text.startswith(f"{ROOT}/") else text
