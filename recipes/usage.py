"""The launchers' help: tasks, options and environment variables; and how their functions read a command line."""

from collections.abc import Callable, Mapping
from typing import Any

import typer
from rich.console import Console

from recipes.config import Recipe, load, resolve, tasks
from recipes.config.schema import leaves
from recipes.config.variables import CONTROLS, options
from recipes.paths import ROOT
from recipes.runs.summary import launcher
from recipes.yaml_text import flow


def show(console: Console) -> None:
    """Print the tasks and both tables of variables."""
    console.print(
        "usage: [VARIABLE=value ...] bash scripts/launch.sh TASK [--option value ...] [key=value ...]\n"
        "A variable is an option too: ROLLOUT_N=8 is --rollout_n 8. TASK --help lists them with their defaults.\n",
        markup=False,
    )
    console.print("tasks (configs/<task>.yaml): " + ", ".join(tasks()))
    console.print("algorithms (ALGORITHM=name, see docs/ALGORITHMS.md): " + ", ".join(resolve.algorithms()) + "\n")
    keys = [(leaf.info.variable.replace(" ", " or "), path) for path, leaf in leaves(Recipe).items()]
    for title, rows in (("variables that steer the launcher", CONTROLS.items()), ("variables that set a key", keys)):
        lines = [f"{name:<47}  {text}" for name, text in rows if name]
        console.print("\n".join([title, *lines, ""]), markup=False)


def run(main: Callable[..., None]) -> None:
    """Run a launcher's function on the command line; it has a help of its own, and gets options that it does not name
    as arguments."""
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command(context_settings={"help_option_names": [], "ignore_unknown_options": True})(main)
    application()


def show_options(
    console: Console,
    task: str,
    script: str = "launch.sh",
    reads: Callable[[str], bool] = bool,
    defaults: Mapping[str, Any] = {},
) -> None:
    """Print the options of a launcher for a task: default on GPUs, key and meaning.

    The launcher calls `script` of `scripts/`, which `reads` these keys of the recipe, with `defaults` of its own.
    """
    recipe = load(task, environ={"TINY": "0"}, hardware="gpu")
    entries = [("--help", "this table", ""), ("--dry_run", "print what would run, and stop", "DRY_RUN")]
    if script == "launch.sh":
        entries.append(("--plan", "print one screen: memory, steps, minutes, disk, and the commands of the walk", ""))
    entries.append(("--gpus", "with --plan or --dry_run: plan for GPUs that are not here; 1x24 is one of 24 GB", ""))
    entries += [(f"--{name.lower()}", CONTROLS[name], name) for name in ("HARDWARE", "TINY")]
    usual = {tuple(leaf.path for leaf in keys): (keys[0], name) for name, keys in reversed(options().items())}
    for paths, (leaf, name) in reversed(usual.items()):
        if not any(map(reads, paths)):
            continue
        value = defaults.get(leaf.path, recipe.value(leaf.path))
        default = "" if value in (None, "", []) else flow(value).strip("[]").replace(f"{ROOT}/", "")
        option = f"--{name}" + (f" [{default}]" if default else "")
        entries.append((option, leaf.info.doc, f"{leaf.info.variable.replace(' ', ', ')}; {', '.join(paths)}"))
    lines = [line for option, *texts in entries for line in (option, *(f"    {text}" for text in texts if text))]
    closing = (
        "\n--option value, --option=value and the variable set one key; options win over variables. Any other key, of\n"
        "docs/CONFIGURATION_REFERENCE.md or verl's own, is given as key=value: actor_rollout_ref.model.lora_rank=8"
    )
    usage = f"usage: {launcher(task, script)} [--option value ...] [key=value ...]\n"
    console.print("\n".join([usage, *lines, closing]), markup=False, soft_wrap=True)
