"""`python scripts/monitor.py`: list runs, watch one, write its report, compare several, or save one and end it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recipes.errors import RecipeError, counted, reported_errors
from recipes.paths import relative_to_cwd
from recipes.runs import folder as runs
from recipes.runs.metrics import duration, seconds

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="a run's name or folder; default: the run that changed last")]


@app.callback()
def about() -> None:
    """Runs in artifacts/runs, living or ended. The commands read files; only `stop` acts on a run."""


@app.command("list")
def list_runs() -> None:
    """Every run: state, step, last accuracy, checkpoints, time left."""
    from recipes.runs.terminal import listing

    every = [runs.read(folder) for folder in runs.folders()]
    Console().print(listing(every) if every else "no runs yet")
    for run in every:
        for note in run.notes:
            Console(stderr=True).print(f"note: {run.name}: {note}", markup=False)


@app.command()
def watch(
    name: Name = "",
    once: Annotated[bool, typer.Option("--once", help="show it as it is now, and stop")] = False,
) -> None:
    """One run, live: metrics, what each health rule says, time left."""
    from recipes.runs.terminal import watch as show

    with reported_errors():
        show(runs.find(name), Console(), once)


@app.command()
def report(
    name: Name = "",
    output: Annotated[Path | None, typer.Option(help="file to write; default: report.html in the run's folder")] = None,
) -> None:
    """One HTML file: curves, rules, samples over time, what was changed on the way, configuration."""
    from recipes.runs.report import write

    with reported_errors():
        folder = runs.find(name)
        print(f"wrote {relative_to_cwd(write(folder, output or folder / 'report.html'))}")


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(help="two or more runs, or folders of evaluations; the others are paired with the first"),
    ],
    output: Annotated[
        Path | None, typer.Option(help="page to write; default: compare.html in the first's folder")
    ] = None,
) -> None:
    """Runs, and evaluations: held-out means, paired differences, settings that differ, and a page of curves."""
    from recipes.runs.compare import find_side
    from recipes.runs.report import write_comparison

    with reported_errors():
        chosen = [find_side(name) for name in names]
        page = output or chosen[0].folder / "compare.html"
        print(write_comparison(chosen, page))
        print(f"wrote {relative_to_cwd(page.absolute())}")


@app.command()
def stop(name: Annotated[str, typer.Argument(help="a running run")]) -> None:
    """Have a run save its present step and end, so that no step is lost."""
    from recipes.engines.checkpoints import request_stop

    with reported_errors():
        run = runs.read(runs.find(name))
        save_freq = run.recipe.trainer.save_freq if run.recipe else 0
        if run.recipe is None or run.state not in ("running", "starting") or save_freq <= 0:
            what = f"the run {run.name} has no step to save: it is {run.state}, and trainer.save_freq is {save_freq}"
            fix = "python scripts/monitor.py list shows which runs are running; Ctrl-C in a run's terminal ends it"
            raise RecipeError(what, where=str(run.folder), fix=fix)
        request_stop(Path(str(run.recipe.trainer.save_checkpoint_path)))
        when = "after its first step" if run.state == "starting" else f"in about {duration(seconds(run.history[-1]))}"
        if "trainer.v1.trainer_mode" in run.recipe.verl:  # another trainer than the one that looks after each step
            when = f"after its next save, at the latest in {counted(save_freq, 'step')}"
        print(f"{run.name} saves its present step and ends, {when}")
