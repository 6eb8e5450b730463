"""Time a training step of the real launcher: tokens a second, seconds and utilisation of each phase, peak memory."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recipes.config import Recipe, load
from recipes.config.gpus import plan_of
from recipes.data.custom import make_missing
from recipes.errors import RecipeError, reported_errors
from recipes.memory.estimates import GENERATE, gpu_phases
from recipes.memory.fit import KEYS
from recipes.paths import ROOT, artifacts, relative_to_cwd, run_dir
from recipes.runs.metrics import Step, read_history
from tools.benchmarks import shapes

VALUES: dict[str, dict[str, Any]] = {
    "ours": {},
    "easyr1": {
        # examples/config.yaml of EasyR1 (configs/official/easyr1_config.yaml), and what its trainer does besides.
        "worker.actor.model.enable_gradient_checkpointing": True,
        "worker.actor.model.use_liger": False,
        "worker.actor.use_fused_kernels": False,
        "worker.actor.recompute_old_log_probs": True,
        "worker.actor.micro_batch_size_per_device_for_update": 1,
        "worker.actor.micro_batch_size_per_device_for_experience": 2,
        "worker.actor.offload.offload_params": True,
        "worker.actor.offload.offload_optimizer": True,
        "worker.rollout.enable_chunked_prefill": False,
        "worker.rollout.max_num_batched_tokens": 8192,
        "worker.rollout.max_num_seqs": 1024,
    },
}
"""Settings to compare: this repository's defaults, and EasyR1's example."""

FULL_LENGTHS = {"easyr1": (1, 2)}
"""How many full-length sequences (prompt and response) the token budgets of an update pass and of a log-probability
pass hold; EasyR1 derives both budgets from its micro-batch sizes."""

STANDSTILL = {"worker.actor.optim.lr": 1e-12}
"""A learning rate at which no weight changes. At a recipe's own, random weights drift: after one update of the Qwen3-4B
shape at 2e-6, responses had 30 tokens instead of 539, so that later steps timed almost nothing."""

PHASES = {
    "generate": (("timing_s/gen",), 0),
    "old log-probabilities": (("timing_s/old_log_prob",), 2),
    "reference": (("timing_s/ref", "timing_s/ref_log_prob"), 2),
    "update": (("timing_s/update_actor",), 6),
    "weights to vLLM": (("timing_s/update_weights",), 0),
}
"""Phase -> verl's timing metrics, and FLOPs per parameter and token: 2 for a forward pass, 6 with the backward pass.
Recomputation and attention are not counted."""


@dataclass(frozen=True)
class Workload:
    """Inputs of every run: rows of a task, a model and its number of parameters, sizes of a step, arguments.

    `rate`: floating-point operations a second of a plain matrix product on one GPU.
    """

    task: str
    model: Path
    parameters: int
    rate: float
    prompts: int
    n: int
    max_response: int
    steps: int
    gpus: int
    extra: Sequence[str] = ()


FORMS = {
    "steps counted": "{:.0f}",
    "step": "{:.1f} s",
    **dict.fromkeys(PHASES, "{:.1f} s"),
    "tokens a step": "{:,.0f}",
    "tokens/s/GPU": "{:,.0f}",
    **{f"{phase}, of the matrix rate": "{:.0%}" for phase, (_, operations) in PHASES.items() if operations},
    "peak allocated": "{:.1f} GiB",
    "estimated before": "{:.1f} GiB",
    "rollout_corr/kl": "{:.1e}",
}
"""Figure of a run -> its format in the table. Tokens include prompts; peak and estimate are of PyTorch's memory;
`rollout_corr/kl` is the mean of log p(vLLM) - log p(trainer) in nats a token."""


def measured(steps: Sequence[Step], work: Workload) -> dict[str, float | None]:
    """Return a run's figures: medians over its steps except the first, which compiles and reads weights.

    A phase that seems faster than the matrix rate was skipped by the trainer, as old log-probabilities may be; its
    share of the matrix rate is None.
    """
    timed = [step for step in steps if step.get("timing_s/step")]
    kept = timed[1:] or timed

    def median(*names: str) -> float | None:
        values = [value for step in kept if (value := step.get(*names)) is not None]
        return statistics.median(values) if values else None

    figures: dict[str, float | None] = {"steps counted": len(kept), "step": median("timing_s/step")}
    tokens = median("perf/total_num_tokens") or 0.0
    figures |= {"tokens a step": tokens, "tokens/s/GPU": tokens / (figures["step"] or math.inf) / work.gpus}
    for phase, (names, operations) in PHASES.items():
        figures[phase] = seconds = median(*names)
        ideal = operations * work.parameters * tokens / work.gpus / work.rate
        figures[f"{phase}, of the matrix rate"] = ideal / seconds if seconds and 0 < ideal < seconds else None
    for shown, name in {"peak allocated": "perf/max_memory_allocated_gb", "rollout_corr/kl": "rollout_corr/kl"}.items():
        figures[shown] = median(name, f"actor/{name}")  # as the trainer's driver or the actor's worker computes it
    return figures


def matrix_rate() -> float:
    """Floating-point operations a second of a square matrix product: 8,192 in bf16 on a GPU, 1,024 in fp32 on CPUs."""
    import torch
    from torch.utils.benchmark import Timer

    cuda = torch.cuda.is_available()
    size = 8192 if cuda else 1024
    kind = {"device": "cuda", "dtype": torch.bfloat16} if cuda else {}
    seconds = Timer("a @ a", globals={"a": torch.randn(size, size, **kind)}).timeit(20).median
    return float(2 * size**3 / seconds)


def questions(files: str | Sequence[str]) -> list[str]:
    """The questions of training rows, for the tokenizer."""
    import pyarrow.parquet as pq

    paths = [files] if isinstance(files, str) else files
    return [text for path in paths for text in pq.read_table(path, columns=["problem"])["problem"].to_pylist()]


def estimated_peak(recipe: Recipe) -> float | None:
    """Return what the launcher expects the trainer to allocate on a GPU at most, in GiB; None where it is not known."""
    plan = plan_of(recipe)
    if plan is None or plan.gpu is None:
        return None
    return max(phase.need for phase in gpu_phases(plan) if phase.name != GENERATE) / 2**30


def run(name: str, work: Workload) -> dict[str, float | None]:
    """Train a few steps at one of `VALUES` through the launcher, and read what it measured.

    Raises RecipeError with the launcher's last lines where it failed.
    """
    experiment = f"bench_step_{work.model.name}_{name}_{work.gpus}_gpus"
    values = {
        "data.max_response_length": work.max_response,
        "trainer.val_before_train": False,
        **STANDSTILL,
        **VALUES[name],
    }
    if name in FULL_LENGTHS:
        longest = load(work.task, environ={"TINY": "0"}).data.max_prompt_length + work.max_response
        keys = (KEYS["update_tokens"], KEYS["forward_tokens"])
        values |= {key: responses * longest for key, responses in zip(keys, FULL_LENGTHS[name], strict=True)}
    arguments = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
    command = [sys.executable, "-m", "recipes.launch", work.task, *arguments, *work.extra]
    environment = {
        "MODEL_PATH": str(work.model),
        "ROLLOUT_BATCH_SIZE": str(work.prompts),
        "GLOBAL_BATCH_SIZE": str(work.prompts),
        "ROLLOUT_N": str(work.n),
        "MAX_STEPS": str(work.steps),
        "SAVE_FREQ": "-1",
        "VAL_FREQ": "-1",
        "GPUS_PER_NODE": str(work.gpus),
        "EXPERIMENT_NAME": experiment,
        "LOGGER": "console,file",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    folder = run_dir(experiment)
    folder.mkdir(parents=True, exist_ok=True)
    history = folder / "metrics.jsonl"
    history.unlink(missing_ok=True)
    log = folder / "launcher.log"
    print(f"{name}: {work.steps} steps; the launcher's output goes to {relative_to_cwd(log)}", flush=True)
    with log.open("wb") as output:
        done = subprocess.run(
            command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        lower = "a lower worker.actor.max_token_len_per_device, or what these lines say"
        raise RecipeError(
            f"the launcher ended with {done.returncode}; its last lines:\n{last}",
            where=str(log),
            fix=lower if re.search("out of memory|OutOfMemory|does not fit", last) else "what these lines say",
        )
    # As it ran: settings that are chosen anew depend on the memory that is free now.
    config = folder / "config.yaml"
    before = estimated_peak(load(str(config), environ={})) if config.is_file() else None
    return {**measured(read_history(history), work), "estimated before": before}


def table(runs: Mapping[str, Mapping[str, float | None]]) -> list[list[str]]:
    """Return the rows to print: a figure, then its value in each run; the last is the first run's speed over each's."""
    rows = [
        [name, *("-" if (value := run.get(name)) is None else form.format(value) for run in runs.values())]
        for name, form in FORMS.items()
    ]
    speeds = [run["tokens/s/GPU"] or math.inf for run in runs.values()]
    return [["", *runs], *rows, [f"{next(iter(runs))} is faster by", *(f"{speeds[0] / speed:.2f}" for speed in speeds)]]


def command(
    extra: Annotated[list[str] | None, typer.Argument(help="key=value of the launcher, for every run")] = None,
    shape: Annotated[str, typer.Option(help=f"one of {', '.join(shapes.SHAPES)}")] = "qwen3-4b",
    task: Annotated[str, typer.Option(help="recipe whose rows and reward are used")] = "countdown",
    values: Annotated[str, typer.Option(help=f"settings to compare, of {', '.join(VALUES)}")] = "ours,easyr1",
    prompts: Annotated[int, typer.Option(help="prompts a step", min=1)] = 32,
    n: Annotated[int, typer.Option(help="responses a prompt", min=2)] = 8,
    max_response: Annotated[int, typer.Option(help="longest response, in tokens", min=1)] = 1024,
    own_batch: Annotated[bool, typer.Option(help="prompts, responses and length of the recipe itself")] = False,
    mean_response: Annotated[float, typer.Option(help="average length of responses that nothing cuts off")] = 600.0,
    steps: Annotated[int, typer.Option(help="steps of each run; the first is left out", min=1)] = 3,
    gpus: Annotated[int, typer.Option(help="GPUs that share a step", min=1)] = 1,
) -> None:
    """Time training steps at a model's shape.

    Builds a model with random weights, runs the launcher once for each of the settings, and prints what it measured.
    The learning rate is so low that no weight changes, so response lengths stay those of the first step.
    """
    console = Console(highlight=False)
    with reported_errors():
        chosen = values.split(",")
        if shape not in shapes.SHAPES:
            raise RecipeError(f"unknown shape {shape!r}", where="--shape", fix=f"use one of {', '.join(shapes.SHAPES)}")
        if unknown := [name for name in chosen if name not in VALUES]:
            raise RecipeError(f"no settings {unknown[0]!r}", where="--values", fix=f"choose from {', '.join(VALUES)}")
        folder = artifacts() / "models" / f"random_{shape}_{task}_{mean_response:g}"
        # With a given model a recipe uses other rows than with its tiny one.
        own = {"EXPERIMENT_NAME": "bench_step", "MODEL_PATH": str(folder)}
        recipe = load(task, arguments=extra or (), environ={**os.environ, **own})
        if own_batch:
            data = recipe.data
            prompts, n, max_response = data.rollout_batch_size, recipe.worker.rollout.n, data.max_response_length
        make_missing(recipe, console.print)
        # In a process of its own: this one would keep the GPU memory that it allocated.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            if not (folder / "config.json").is_file():
                texts = questions(recipe.data.train_files)
                apart.submit(shapes.build, shape, folder, texts, mean_tokens=mean_response).result()
            parameters, rate = shapes.parameters(folder), apart.submit(matrix_rate).result()
        console.print(f"{parameters / 1e9:.3g} billion parameters; a matrix product reaches {rate / 1e12:.3g} TFLOP/s")
        work = Workload(task, folder, parameters, rate, prompts, n, max_response, steps, gpus, extra or ())
        head, *rows = table({name: run(name, work) for name in chosen})
        view = Table(*head)
        for row in rows:
            view.add_row(*row)
        console.print(view)


if __name__ == "__main__":
    typer.run(command)
