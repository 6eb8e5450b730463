"""The command line of the evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from recipes.errors import RecipeError, reported_errors
from recipes.evaluation.evaluate import Result
from recipes.evaluation.models import Subject, local_subject, server_subject
from recipes.evaluation.plan import Plan
from recipes.evaluation.report.page import INTERVAL_STYLES, VERDICTS, lines, lookup, show
from recipes.evaluation.rollouts import split_rollouts
from recipes.evaluation.sampling import Sampling
from recipes.evaluation.sampling.openai_server import Server
from recipes.evaluation.sampling.vllm_engine import Engine
from recipes.evaluation.scoring import Reward


@dataclass(frozen=True)
class Defaults:
    """The recipe's values that an evaluation needs; `batch` is the number of prompts of a training step."""

    train_files: list[Path]
    test_files: list[Path]
    reward: str
    reward_arguments: dict[str, Any]
    n: int
    temperature: float
    top_p: float
    max_tokens: int
    batch: int
    tensor_parallel_size: int
    chat_template: str = ""


def from_recipe(task: str) -> Defaults:
    """Read `configs/<task>.yaml` with the layers above it (hardware, environment)."""
    from recipes.config import load

    recipe = load(task)
    rollout, template = recipe.worker.rollout, recipe.data.override_chat_template
    return Defaults(
        train_files=_paths(recipe.data.train_files),
        test_files=_paths(recipe.data.val_files),
        reward=recipe.worker.reward.reward_function or f"reward_functions/{task}.py",
        reward_arguments=dict(recipe.worker.reward.reward_function_kwargs),
        n=rollout.n,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        max_tokens=recipe.data.max_response_length,
        batch=recipe.data.rollout_batch_size,
        tensor_parallel_size=1 if recipe.hardware == "cpu" else rollout.tensor_parallel_size,
        chat_template=Path(template).read_text(encoding="utf-8") if template else "",
    )


def existing(files: list[Path], task: str) -> Path:
    """The recipe's data file, made as the launcher makes it where it is missing."""
    if len(files) != 1:
        raise RecipeError(
            f"the recipe names {len(files)} data files, and an evaluation takes one",
            where="the recipe's data.train_files or data.val_files",
            fix=f"choose with --data_path: {', '.join(map(str, files))}",
        )
    (path,) = files
    if not path.is_file():
        _prepare(task)
    if not path.is_file():
        raise RecipeError(
            f"there is no data file {path}",
            where="the recipe's data.train_files or data.val_files",
            fix="make it, or name a file with --data_path",
        )
    return path


def _prepare(task: str) -> None:
    from recipes.config import load
    from recipes.data.prepare import make_missing

    make_missing(load(task), lambda line: print(line, file=sys.stderr))


def _paths(files: str | list[str]) -> list[Path]:
    return [Path(file) for file in ([files] if isinstance(files, str) else files)]


def plan_of(task: str, options: dict[str, Any]) -> Plan:
    """The plan that the options of `recipes.evaluation.cli.make_app` ask for."""
    defaults = from_recipe(task)
    analyse = options["mode"].value == "analyse"
    if analyse and options["base_model_path"]:
        raise RecipeError("analyse looks at one model", where="--base_model_path", fix="leave out one of the two")
    sampled = Sampling(
        n=_given(options["rollout_n"], defaults.n),
        temperature=_given(options["temperature"], defaults.temperature),
        top_p=_given(options["top_p"], defaults.top_p),
        max_tokens=_given(options["max_tokens"], defaults.max_tokens),
        seed=options["seed"],
    )
    return Plan(
        task=task,
        subjects=_subjects(options),
        data=_data(options["data_path"], defaults, task, analyse=analyse),
        reward=Reward(
            options["reward_path"] or defaults.reward, None if options["reward_path"] else defaults.reward_arguments
        ),
        sampled=sampled,
        greedy=None if analyse else replace(sampled, n=1, temperature=0.0, top_p=1.0),
        limit=options["limit"],
        sample_seed=options["sample_seed"],
        batch=_given(options["batch_size"], defaults.batch) if analyse else None,
        engine=Engine(
            _given(options["tensor_parallel_size"], defaults.tensor_parallel_size),
            options["gpu_memory_utilization"],
            options["dtype"],
            defaults.chat_template,
        ),
        filter_out=options["filter_out"],
        output=options["output_dir"],
        overwrite=options["overwrite"],
        fresh=options["fresh"],
        shown=options["shown"],
    )


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _data(path: Path | None, defaults: Defaults, task: str, *, analyse: bool) -> Path:
    if path is not None:
        return path
    return existing(defaults.train_files if analyse else defaults.test_files, task)


def _subjects(options: dict[str, Any]) -> tuple[Subject, ...]:
    trained = _subject(
        "trained" if options["base_model_path"] else "model",
        options["model_path"],
        "--model_path",
        options["api_base"],
        options["served_model"],
        options,
    )
    if not options["base_model_path"]:
        return (trained,)
    base = _subject(
        "base",
        options["base_model_path"],
        "--base_model_path",
        options["base_api_base"] or options["api_base"],
        options["base_served_model"],
        options,
    )
    if base.model_hash == trained.model_hash:
        raise RecipeError(
            "base and trained are the same model, file by file",
            where="--base_model_path",
            fix="name the model that training began from",
        )
    return (base, trained)


def _subject(label: str, asked: str, option: str, api_base: str, served: str, options: dict[str, Any]) -> Subject:
    if not api_base:
        return local_subject(label, asked, option)
    server = Server(
        api_base=api_base,
        model=served or asked,
        concurrency=options["concurrency"],
        retries=options["retries"],
        timeout=options["timeout"],
        logprobs=options["logprobs"],
    )
    return server_subject(label, asked, option, server)


COLOURS = {"good": "green", "weak": "yellow", "bad": "red", "plain": "cyan"}


def print_result(result: Result) -> None:
    """The table of figures, the verdict and the paths, on standard output."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    report = result.report
    console.print(_table(report))
    if report["kind"] == "analyse":
        for verdict in report["probe"]["verdicts"]:
            name = VERDICTS[verdict["metric"]][0].lower()
            console.print(Text(f"{name}: {verdict['words']}", style=COLOURS[verdict["level"]]))
    headline = report["headline"]
    console.print(Text(headline["words"], style=f"bold {COLOURS[headline['level']]}"))
    for words in _notes(report):
        console.print(words, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {result.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _table(report: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{report['task']}: {report['identity']['data']['questions']} questions", title_justify="left")
    table.add_column("figure")
    labels = list(report["models"])
    for label in [*labels, "trained - base"] if len(labels) == 2 else labels:
        table.add_column(label, justify="right")
    for line in lines(report):
        cells = [_cell(report, pointer, line.style) for pointer in line.values]
        if line.difference:
            cells.append(_cell(report, line.difference, line.difference_style))
        table.add_row(line.label, *cells)
    return table


def _cell(report: dict[str, Any], pointer: str, style: str) -> str:
    value = show(report, f"{pointer}/value", style)
    if lookup(report, f"{pointer}/low") is None:
        return value
    ends = INTERVAL_STYLES.get(style, style)
    return f"{value} [dim]({show(report, f'{pointer}/low', ends)} to {show(report, f'{pointer}/high', ends)})[/dim]"


def _notes(report: dict[str, Any]) -> list[str]:
    notes = []
    if report["kind"] == "analyse":
        groups = report["models"]["model"]["passes"]["sampled"]["groups"]
        shares = ", ".join(
            f"{groups[key]['share']:.1%} {key.replace('_', ' ')}" for key in ("all_right", "mixed", "all_wrong")
        )
        notes.append(f"groups: {shares}; {groups['zero_variance']['share']:.1%} without variance")
    for label, model in report["models"].items():
        for name, one in model["passes"].items():
            raised = {rule: count for rule, count in one["completions"]["flags"].items() if count}
            if raised:
                notes.append(
                    f"suspicious ({label}, {name}): " + ", ".join(f"{rule} {count}" for rule, count in raised.items())
                )
    if "filtered" in report:
        filtered = report["filtered"]
        notes.append(
            f"filtered: {filtered['path']}, {filtered['kept']} rows kept, {filtered['dropped']} dropped "
            f"({filtered['not_probed']} kept unprobed)"
        )
    return notes


MOST_LINES = 20


def collect(rollouts: Path, task: str, reward_path: str, output: Path | None) -> None:
    """Write the logs and print one line per step.

    Args:
        rollouts: a folder of dumps, or one dump.
        task: names the recipe whose reward scores again; empty: take the logged scores.
        reward_path: a reward file instead of the recipe's.
        output: folder of the logs; None: `completions/<rollouts' name>` beside the rollouts.
    """
    if not rollouts.exists():
        raise RecipeError(f"there is no {rollouts}", where="the first argument", fix="name a run's rollouts folder")
    target = output or rollouts.absolute().parent / "completions" / rollouts.stem
    steps = split_rollouts(rollouts, target, _reward(task, reward_path), task)
    _print(steps, target)


def _reward(task: str, reward_path: str) -> Reward | None:
    if reward_path:
        return Reward(reward_path)
    if not task:
        return None
    defaults = from_recipe(task)
    return Reward(defaults.reward, defaults.reward_arguments)


def _print(steps: list[dict[str, Any]], target: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("step", "mean score", "success", "fail", "suspicious", "score differs"):
        table.add_column(name, justify="right")
    for step in steps:
        numbers = (step["success"], step["fail"], step["suspicious"], step["differs"])
        table.add_row(step["step"], f"{step['mean_score']:.3f}", *map(str, numbers))
    console = Console()
    console.print(table)
    totals = {rule: sum(step["flags"][rule] for step in steps) for rule in steps[0]["flags"]}
    raised = ", ".join(f"{rule} {count}" for rule, count in totals.items() if count)
    if raised:
        console.print(f"suspicious: {raised}", markup=False, highlight=False)
    same = [(step["step"], found) for step in steps for found in step["same_answer"]]
    for number, found in same[:MOST_LINES]:
        line = f"step {number}: {found['answer']!r} is a rewarded answer in {found['share']:.0%} of the groups"
        console.print(line, markup=False, highlight=False)
    if any(step["differs"] for step in steps):
        console.print(
            "some logged scores are not what the reward file gives now: it changed since, or training used another"
        )
    console.print(f"logs: {target}", markup=False, highlight=False, soft_wrap=True)


class Mode(str, Enum):
    """What to do: `reward` measures a model (against a base model if one is named), `analyse` probes for signal."""

    reward = "reward"
    analyse = "analyse"


def make_app(task: str) -> typer.Typer:
    """The application of one task; its defaults come from `configs/<task>.yaml`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    # Options may stand before or after the word `analyse` or `reward`, so that word is an argument and no subcommand.
    @app.command(help=_help(task))
    def main(
        model_path: Annotated[
            str, _option("model_path", "model: folder, checkpoint root, or name on the hub or server")
        ],
        mode: Annotated[
            Mode, typer.Argument(help="reward: how good is it? analyse: is there a signal for GRPO?")
        ] = Mode.reward,
        base_model_path: Annotated[str, _option("base_model_path", "model before training, to compare with")] = "",
        data_path: Annotated[
            Path | None,
            _option("data_path", "parquet file; default: the recipe's test set, for analyse its training set"),
        ] = None,
        reward_path: Annotated[
            str, _option("reward_path", "reward file, or file:function; default: the recipe's")
        ] = "",
        limit: Annotated[int | None, _option("limit", "ask this many questions, the first ones")] = None,
        sample_seed: Annotated[
            int | None, _option("sample_seed", "with --limit: draw them at random with this seed")
        ] = None,
        rollout_n: Annotated[int | None, _option("rollout_n", "answers a question; default: the recipe's n")] = None,
        temperature: Annotated[
            float | None, _option("temperature", "of the sampled answers; default: the recipe's")
        ] = None,
        top_p: Annotated[float | None, _option("top_p", "nucleus; default: the recipe's")] = None,
        max_tokens: Annotated[int | None, _option("max_tokens", "longest response; default: the recipe's")] = None,
        seed: Annotated[int, _option("seed", "of sampling and of the bootstrap")] = 0,
        filter_out: Annotated[
            Path | None, _option("filter_out", "analyse: write the data without the questions that give no signal")
        ] = None,
        batch_size: Annotated[
            int | None, _option("batch_size", "prompts a training step; default: the recipe's")
        ] = None,
        api_base: Annotated[
            str, _option("api_base", "OpenAI-compatible server to ask, such as http://host:8000/v1")
        ] = "",
        served_model: Annotated[str, _option("served_model", "the model's name there; default: --model_path")] = "",
        base_api_base: Annotated[str, _option("base_api_base", "server of the base model; default: --api_base")] = "",
        base_served_model: Annotated[
            str, _option("base_served_model", "its name there; default: --base_model_path")
        ] = "",
        concurrency: Annotated[int, _option("concurrency", "requests to a server in flight", min=1)] = 16,
        retries: Annotated[int, _option("retries", "tries after a request failed, with growing pauses", min=0)] = 6,
        timeout: Annotated[float, _option("timeout", "seconds for one request", min=1)] = 600.0,
        logprobs: Annotated[
            bool, typer.Option("--logprobs/--no_logprobs", help="ask a server for log-probabilities (entropy, lengths)")
        ] = True,
        tensor_parallel_size: Annotated[
            int | None, _option("tensor_parallel_size", "GPUs for one model", min=1)
        ] = None,
        gpu_memory_utilization: Annotated[float, _option("gpu_memory_utilization", "share of a GPU for vLLM")] = 0.85,
        dtype: Annotated[str, _option("dtype", "precision; auto: the model's, float32 on a CPU")] = "auto",
        output_dir: Annotated[
            Path | None, _option("output_dir", "folder of the report; default: under artifacts")
        ] = None,
        overwrite: Annotated[bool, typer.Option("--overwrite", help="replace --output_dir and --filter_out")] = False,
        fresh: Annotated[bool, typer.Option("--fresh", help="generate again what the cache holds")] = False,
        shown: Annotated[int, _option("samples", "questions in the report's table", min=1)] = 200,
    ) -> None:
        options = {name: value for name, value in locals().items() if name != "app"}
        with reported_errors():
            _evaluate(task, options)

    return app


def _option(name: str, words: str, **rules: Any) -> Any:
    return typer.Option(f"--{name}", help=words, show_default=False, **rules)


def _help(task: str) -> str:
    script = f"python scripts/eval_{task}.py --model_path M"
    return (
        f"Measure a model on {task}, compare it with its base (--base_model_path), or probe it for signal."
        "\n\n"
        f"\b\n{script} analyse --rollout_n 16\n{script} --base_model_path BASE --limit 100"
    )


def _evaluate(task: str, options: dict[str, Any]) -> None:
    from rich.console import Console

    from recipes.evaluation.evaluate import run

    console = Console(stderr=True)
    plan = plan_of(task, options)
    for subject in plan.subjects:
        if subject.note:
            console.print(f"note: {subject.note}", markup=False, highlight=False, soft_wrap=True)
    try:
        result = run(plan, progress_on(console))
    except KeyboardInterrupt:
        console.print("stopped; what was generated is kept: the same command goes on from there", soft_wrap=True)
        raise typer.Exit(130) from None
    print_result(result)


def progress_on(console: Any) -> Callable[[str, int], Any]:
    """Progress bars on a rich console, in the form that `recipes.evaluation.evaluate.run` takes."""

    @contextmanager
    def progress(words: str, total: int) -> Iterator[Callable[[int], None]]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        ]
        with Progress(*columns, console=console) as bars:
            bar = bars.add_task(words, total=total)
            yield lambda count: bars.advance(bar, count)

    return progress
