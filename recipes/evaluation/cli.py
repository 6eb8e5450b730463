"""The command line that every task's `scripts/eval_<task>.py` shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from recipes.errors import reported_errors


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

    from recipes.evaluation.cli_plan import plan_of
    from recipes.evaluation.cli_print import print_result
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
