"""The command line of the evaluation: each field of `Options` is an option, which typer reads from its annotation."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recipes.errors import RecipeError, reported_errors
from recipes.progress_bar import progress_bar

if TYPE_CHECKING:
    from recipes.evaluation.report import Result

COLOURS = {"good": "green", "weak": "yellow", "bad": "red", "plain": "cyan"}
WIDTH = 130
MODES = ("reward", "analyse")


def _option(*names: str, help: str, **rules: Any) -> Any:
    return typer.Option(*(f"--{name}" for name in names), help=help, show_default=False, **rules)


@dataclass(frozen=True)
class Options:
    """Options of a command; None and "" leave a value to the recipe or the run."""

    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK] [reward|analyse]",
            help="a recipe in configs/; reward: how good is the model? analyse: is there a signal for GRPO?",
            show_default=False,
        ),
    ] = field(default=None)
    model_path: Annotated[str, _option("model_path", help="folder, checkpoint, or name on the hub or server")] = ""
    base_model_path: Annotated[str, _option("base_model_path", help="model before training, to compare with")] = ""
    run: Annotated[
        Path | None,
        _option("run", help="artifacts/runs/NAME: its data and reward, and its last checkpoint against its base"),
    ] = None
    data: Annotated[
        Path | None,
        _option("data", help="data file; default: the recipe's test set, for analyse its training set"),
    ] = None
    reward_func: Annotated[str, _option("reward_func", help="file or file:function; default: the recipe's")] = ""
    prompt_key: Annotated[str, _option("prompt_key", help="column of --data with the question")] = ""
    answer_key: Annotated[str, _option("answer_key", help="column of --data with the gold answer")] = ""
    data_source: Annotated[str, _option("data_source", help="of rows of --data that name none")] = ""
    limit: Annotated[int | None, _option("limit", help="ask this many questions, the first ones", min=1)] = None
    rollout_n: Annotated[int | None, _option("rollout_n", help="responses a question", min=1)] = None
    temperature: Annotated[float | None, _option("temperature", help="of sampling; 0: greedy", min=0.0)] = None
    top_p: Annotated[float | None, _option("top_p", help="size of the nucleus", max=1.0)] = None
    max_tokens: Annotated[int | None, _option("max_tokens", help="longest response", min=1)] = None
    seed: Annotated[int, _option("seed", help="of sampling and of the bootstrap", min=0)] = 0
    filter_out: Annotated[Path | None, _option("filter_out", help="analyse: write the data that give a signal")] = None
    api_base: Annotated[str, _option("api_base", help="OpenAI-compatible server, such as http://host:8000/v1")] = ""
    base_api_base: Annotated[str, _option("base_api_base", help="server of the base model; default: --api_base")] = ""
    concurrency: Annotated[int, _option("concurrency", help="requests to a server in flight", min=1)] = 64
    tensor_parallel_size: Annotated[int | None, _option("tensor_parallel_size", help="GPUs a model", min=1)] = None
    gpu_memory_utilization: Annotated[float, _option("gpu_memory_utilization", help="share of a GPU for vLLM")] = 0.85
    output_dir: Annotated[Path | None, _option("output_dir", help="of the report; default: under artifacts")] = None
    overwrite: Annotated[bool, _option("overwrite", help="replace --output_dir and --filter_out")] = False
    fresh: Annotated[bool, _option("fresh", help="generate again what the cache holds")] = False

    @property
    def words(self) -> list[str]:
        """Return the options that change the recipe, as arguments of a launcher."""
        names = ("reward_func", "prompt_key", "answer_key", "data_source")
        return [word for name in names if getattr(self, name) for word in (f"--{name}", getattr(self, name))]

    @property
    def analyse(self) -> bool:
        """Return whether this is the signal probe."""
        return "analyse" in (self.arguments or ())

    @property
    def task(self) -> str:
        """The task that is named, or "". Raises RecipeError for more than one."""
        tasks = [argument for argument in self.arguments or () if argument not in MODES]
        if len(tasks) > 1:
            raise RecipeError(
                f"{tasks[1]} is neither an option nor one of {', '.join(MODES)}",
                where="the arguments",
                fix="see --help",
            )
        return tasks[0] if tasks else ""


def main(**values: Any) -> None:
    """Measure a model on a task, compare it with its base (--base_model_path), or probe it for signal.

    What no option says is the recipe's, or with --run the run's.

    \b
    python scripts/eval.py countdown --model_path M analyse --rollout_n 16
    python scripts/eval.py countdown --model_path M --base_model_path BASE --limit 100
    python scripts/eval.py --run artifacts/runs/countdown
    """
    with reported_errors():
        evaluate(Options(**values))


# typer reads the options from a function's signature; they are declared once, as the fields of `Options`. They may
# stand before or after the word `analyse` or `reward`, so that word is an argument and no subcommand.
_HINTS = get_type_hints(Options, include_extras=True)
_FIELDS = inspect.signature(Options).parameters.values()
vars(main)["__signature__"] = inspect.Signature([each.replace(annotation=_HINTS[each.name]) for each in _FIELDS])
main.__annotations__ = _HINTS
app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(main)


def evaluated(options: Options) -> tuple[Result, Path]:
    """Plan and run, with progress and notes on standard error. Returns the result and the report's folder."""
    from recipes.evaluation.evaluate import run
    from recipes.evaluation.plan import plan_of

    console = Console(stderr=True)

    def log(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    plan = plan_of(options, log)
    for subject in plan.subjects:
        if subject.note:
            log(f"note: {subject.note}")
    return run(plan, progress_of)


def evaluate(options: Options) -> None:
    """Plan, run and print; progress and notes on standard error, results on standard output."""
    try:
        result, folder = evaluated(options)
    except KeyboardInterrupt:
        print("stopped; what was generated is kept: the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    print_result(result, folder)


@contextmanager
def progress_of(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar in the form that `recipes.evaluation.evaluate.run` takes."""
    with progress_bar() as bars:
        bar = bars.add_task(text, total=total)
        yield lambda count: bars.advance(bar, count)


def print_result(result: Result, folder: Path) -> None:
    """Print the table of figures, the verdicts, the notes and the report's path on standard output."""
    from recipes.evaluation.metrics import metric_of
    from recipes.evaluation.report import table

    console = Console()
    if not console.is_terminal:  # in a pipe or a file, wide enough for the table of two models
        console = Console(width=WIDTH)
    figures = Table(title=f"{result.task}: {result.asked}", title_justify="left")
    figures.add_column("figure")
    for label in [*result.models, "trained - base", "p"] if result.comparison else result.models:
        figures.add_column(label, justify="right")
    for line in table(result):
        cells = [
            f"{each.value} [dim]({each.low} to {each.high})[/dim]" if each.low else each.value for each in line.cells
        ]
        figures.add_row(line.label, *cells, *([line.p] if result.comparison else []))
    console.print(figures)
    for verdict in result.probe.verdicts if result.probe else ():
        console.print(Text(f"{metric_of(verdict.metric).label.lower()}: {verdict.text}", style=COLOURS[verdict.level]))
    console.print(Text(result.headline.text, style=f"bold {COLOURS[result.headline.level]}"))
    for note in [*result.notes, f"report: {folder / 'report.html'}"]:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
