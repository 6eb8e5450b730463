"""What the launcher says about itself: the tasks, the environment variables, and the next command."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import Recipe, load, resolve, tasks
from recipes.config.schema import leaves
from recipes.config.variables import CONTROLS, VARIABLES, read_words, usual_name, variable_names
from recipes.engines.checkpoints import Checkpoint
from recipes.monitor.summary import shown
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
    console.print("algorithms (ALGORITHM=name, see docs/ALGORITHMS.md): " + ", ".join(resolve.names()) + "\n")
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
        told = f" [{default}]" if default else ""
        console.print(f"{option}{told}\n    {meaning}", markup=False, soft_wrap=True)
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


def launcher(task: str) -> str:
    """The task's launcher where there is one and no other, else the general one."""
    execs = re.compile(rf'scripts/launch\.sh"? {re.escape(task)} "\$@"')
    found = [path for path in sorted(ROOT.glob("examples/*/*.sh")) if execs.search(path.read_text(encoding="utf-8"))]
    return f"bash {shown(found[0])}" if len(found) == 1 else f"bash {shown(ROOT / 'scripts' / 'launch.sh')} {task}"


def next_commands(
    recipe: Recipe,
    checkpoint: Checkpoint | None,
    total: int | None,
    environ: Mapping[str, str],
    words: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """What a user may want next: evaluate the checkpoint, and train on.

    Args:
        recipe: the recipe that ran.
        checkpoint: its last checkpoint.
        total: its steps, where known.
        environ: the variables that the user set are repeated in the command.
        words: so are the arguments.
    """
    commands = []
    script = ROOT / "scripts" / f"eval_{recipe.name}.py"
    if checkpoint and checkpoint.model and script.is_file():
        python, model = (shlex.quote(str(shown(path))) for path in (Path(sys.executable), checkpoint.model))
        commands.append(("evaluate", f"{python} scripts/{script.name} --model_path {model}"))
    if checkpoint and total:
        names = sorted(name for name in variable_names() if environ.get(name) and name not in ("MAX_STEPS", "DRY_RUN"))
        given = "".join(f"{name}={shlex.quote(environ[name])} " for name in names)
        again = "".join(f" {shlex.quote(word)}" for word in _but_steps(words))
        commands.append(("more steps", f"{given}MAX_STEPS={2 * total} {launcher(recipe.name)}{again}"))
    return commands


def _but_steps(words: Sequence[str]) -> list[str]:
    """The arguments without those that say how long to train."""
    kept = {given.words: None for given in read_words(words) if given.key != "trainer.max_steps"}
    return [word for part in kept for word in part]
