"""Time a training step of the real launcher: tokens a second, seconds and utilisation of each phase, peak memory."""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recipes.config import Recipe, load
from recipes.config.gpus import plan_of
from recipes.data.prepare import make_missing
from recipes.errors import RecipeError, raise_together, reported_errors
from recipes.memory.estimates import GENERATE, gpu_phases
from recipes.memory.fit import KEYS
from recipes.paths import ROOT, artifacts, relative_to_cwd, run_dir
from recipes.runs.metrics import Step, read_history
from tools.benchmarks import shapes

VALUES: dict[str, dict[str, Any]] = {
    "ours": {},
    "tp2": {"worker.rollout.tensor_parallel_size": 2},
    "fsdp2": {"worker.actor.strategy": "fsdp2"},
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
"""Settings to compare: this repository's defaults, the same with one key changed, and EasyR1's example."""

FULL_LENGTHS = {"easyr1": (1, 2)}
"""Full-length responses in the token budgets of an update's pass and of a log-probability pass; EasyR1 derives both
budgets from its micro-batch sizes."""

STANDSTILL = {"worker.actor.optim.lr": 1e-12}
"""A learning rate at which no weight moves. Random weights drift at a recipe's own: after one update of the Qwen3-4B
shape at 2e-6 responses had 30 tokens instead of 539, so that later steps timed almost nothing."""

INTERRUPTED = (130, 143)
"""Exit codes after SIGINT and SIGTERM."""

PHASES = {
    "generate": (("timing_s/gen",), 0),
    "old log-probabilities": (("timing_s/old_log_prob",), 2),
    "reference": (("timing_s/ref", "timing_s/ref_log_prob"), 2),
    "update": (("timing_s/update_actor",), 6),
    "weights to vLLM": (("timing_s/update_weights",), 0),
}
"""Phase -> verl's timings, and floating-point operations a parameter and token: 2 forward, 6 with the backward pass.
Recomputation counts as nothing, attention neither."""


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


@dataclass(frozen=True)
class Measured:
    """One run, as medians over its steps but the first.

    Attributes:
        name: which of `VALUES`.
        gpus: number of GPUs in a step.
        exit_code: the launcher's; steps before a failure count.
        steps: number of steps behind the medians.
        step_s: seconds of a step.
        phase_s: seconds of each phase.
        tokens: tokens of a step, prompts included.
        tokens_per_gpu_s: tokens a second and GPU.
        utilisation: share of the matrix rate in each computing phase; a phase that seems faster than that rate was
            skipped by the trainer, as old log-probabilities may be, and is not listed.
        estimated_gb: the launcher's estimate of `peak_gb`, before the start.
        peak_gb: most memory that PyTorch allocated, in GiB as verl prints it; None where it does not.
        rollout_kl: mean of log p(vLLM) - log p(trainer), in nats a token.
    """

    name: str
    gpus: int
    exit_code: int
    steps: int
    step_s: float
    phase_s: dict[str, float]
    tokens: float
    tokens_per_gpu_s: float
    utilisation: dict[str, float]
    peak_gb: float | None
    estimated_gb: float | None
    rollout_kl: float | None


def measured(
    name: str, exit_code: int, steps: Sequence[Step], work: Workload, estimated_gb: float | None = None
) -> Measured:
    """Read a run's metrics; the first step, which compiles and reads weights, is left out where there are more.

    Raises RecipeError where no step was completed.
    """
    timed = [step for step in steps if step.get("timing_s/step")]
    if not timed:
        raise RecipeError(
            f"the run {name!r} completed no step (exit code {exit_code})",
            where="metrics.jsonl",
            fix="the launcher's last lines are above; out of memory: a lower worker.actor.max_token_len_per_device",
        )
    kept = timed[1:] or timed

    def median(*names: str) -> float | None:
        values = [value for step in kept if (value := step.get(*names)) is not None]
        return statistics.median(values) if values else None

    tokens, step_s = median("perf/total_num_tokens") or 0.0, median("timing_s/step") or 0.0
    seconds = {phase: value for phase, (names, _) in PHASES.items() if (value := median(*names))}
    at_full_rate = {
        phase: count * work.parameters * tokens / work.gpus / work.rate for phase, (_, count) in PHASES.items()
    }
    return Measured(
        name=name,
        gpus=work.gpus,
        exit_code=exit_code,
        steps=len(kept),
        step_s=step_s,
        phase_s=seconds,
        tokens=tokens,
        tokens_per_gpu_s=tokens / step_s / work.gpus,
        utilisation={
            phase: ideal / seconds[phase] for phase, ideal in at_full_rate.items() if 0 < ideal < seconds.get(phase, 0)
        },
        estimated_gb=estimated_gb,
        peak_gb=median(*_either("perf/max_memory_allocated_gb")),
        rollout_kl=median(*_either("rollout_corr/kl")),
    )


def _either(name: str) -> tuple[str, str]:
    """A metric's name where the trainer's driver computes it, and where the actor's worker does."""
    return name, f"actor/{name}"


_RATE = """
import time, torch
cuda = torch.cuda.is_available()
size, repeats = (8192, 20) if cuda else (1024, 5)
a = torch.randn(size, size, device="cuda" if cuda else "cpu", dtype=torch.bfloat16 if cuda else torch.float32)
wait = torch.cuda.synchronize if cuda else (lambda: None)
for turn in range(2):
    wait(); begin = time.perf_counter()
    for _ in range(repeats):
        a @ a
    wait(); seconds = time.perf_counter() - begin
print(2 * size**3 * repeats / seconds)
"""


def matrix_rate() -> float:
    """Floating-point operations a second of a square matrix product: 8,192 in bf16 on a GPU, 1,024 in fp32 on CPUs."""
    done = subprocess.run([sys.executable, "-c", _RATE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RecipeError(
            "the matrix rate could not be measured", where=done.stderr.strip()[-300:], fix="check that torch works"
        )
    return float(done.stdout)


def questions(files: str | Sequence[str]) -> list[str]:
    """The questions of training rows, for the tokenizer."""
    import pyarrow.parquet as pq

    paths = [files] if isinstance(files, str) else files
    return [text for path in paths for text in pq.read_table(path, columns=["problem"])["problem"].to_pylist()]


def build_apart(shape: str, folder: Path, texts: Sequence[str], mean_tokens: float) -> None:
    """Build the model in a child process, as this one would keep the GPU memory that it allocated."""
    process = multiprocessing.get_context("spawn").Process(
        target=shapes.build, args=(shape, folder, texts), kwargs={"mean_tokens": mean_tokens}
    )
    process.start()
    process.join()
    if process.exitcode:
        raise RecipeError(
            f"the model could not be built (exit code {process.exitcode})",
            where=str(folder),
            fix="the messages above say why; out of memory: another process may hold the GPU (nvidia-smi)",
        )


def estimated_peak(recipe: Recipe) -> float | None:
    """Return what the launcher expects the trainer to allocate on a GPU at most, in GiB; None where it is not known."""
    plan = plan_of(recipe)
    if plan is None or plan.gpu is None:
        return None
    return max(phase.need for phase in gpu_phases(plan) if phase.name != GENERATE) / 2**30


def run(name: str, work: Workload) -> Measured:
    """Train a few steps at one of `VALUES` through the launcher, and read what it measured.

    Raises RecipeError where no step was completed; the launcher's last lines are printed before.
    """
    experiment = f"bench_step_{work.model.name}_{name}_{work.gpus}_gpus"
    values = {
        "data.max_response_length": work.max_response,
        "trainer.val_before_train": False,
        **STANDSTILL,
        **VALUES[name],
    }
    if name in FULL_LENGTHS:
        longest = load(work.task, environ={"EMBEDDED": "0"}).data.max_prompt_length + work.max_response
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
    exit_code = launched(command, environment, log)
    if exit_code:
        with log.open(encoding="utf-8", errors="replace") as lines:
            last = "".join(deque(lines, maxlen=20))
        print(f"{name}: the launcher ended with {exit_code}; its last lines:\n{last}", flush=True)
    recipe = load(work.task, arguments=[*arguments, *work.extra], environ={**os.environ, **environment})
    return measured(name, exit_code, read_history(history), work, estimated_peak(recipe))


def launched(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Run a command with its output in a log. Ctrl-C ends the command and not this process, which then reports.

    Returns:
        The command's exit code.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        except KeyboardInterrupt:  # the command has it as well
            return process.wait()


def table(runs: Sequence[Measured]) -> list[list[str]]:
    """Rows for people: a measurement, then its value in each run; the last is the ratio of speeds to the first run."""
    alone = {run.name: run.tokens_per_gpu_s for run in runs if run.gpus == 1}
    several = len({run.gpus for run in runs}) > 1

    def row(name: str, form: str, values: Iterable[float | None]) -> list[str]:
        return [name, *("-" if value is None else form.format(value) for value in values)]

    names = [f"{run.name}, {run.gpus} GPU{'s' * (run.gpus > 1)}" if several else run.name for run in runs]
    shares = (run.tokens_per_gpu_s / alone[run.name] if run.name in alone else None for run in runs)
    return [
        ["", *names],
        row("steps counted", "{}", (run.steps for run in runs)),
        row("exit code", "{}", (run.exit_code for run in runs)),
        row("step", "{:.1f} s", (run.step_s for run in runs)),
        *(row(phase, "{:.1f} s", (run.phase_s.get(phase) for run in runs)) for phase in PHASES),
        row("tokens a step", "{:,.0f}", (run.tokens for run in runs)),
        row("tokens/s/GPU", "{:,.0f}", (run.tokens_per_gpu_s for run in runs)),
        row("of one GPU's", "{:.2f}", shares),
        *(
            row(f"{phase}, of the matrix rate", "{:.0%}", (run.utilisation.get(phase) for run in runs))
            for phase, (_, operations) in PHASES.items()
            if operations
        ),
        row("peak allocated", "{:.1f} GiB", (run.peak_gb for run in runs)),
        row("estimated before", "{:.1f} GiB", (run.estimated_gb for run in runs)),
        row("rollout_corr/kl", "{:.1e}", (run.rollout_kl for run in runs)),
        row(f"{names[0]} is faster by", "{:.2f}", (runs[0].tokens_per_gpu_s / run.tokens_per_gpu_s for run in runs)),
    ]


def _numbers(text: str) -> list[int]:
    """`1,2` as numbers. Raises RecipeError for anything else."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RecipeError(f"not numbers of GPUs: {text!r}", where="--gpus", fix="write 2, or 1,2,4,8")
    return [int(part) for part in parts]


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
    gpus: Annotated[str, typer.Option(help="GPUs that share a step; several, as 1,2,4: one after the other")] = "1",
) -> None:
    """Time training steps at a model's shape.

    Builds a model with random weights, runs the launcher once for each of the settings and numbers of GPUs, and prints
    what it measured. The learning rate is so low that no weight changes, so response lengths stay those of the first
    step. A run that fails or is stopped is reported with the steps that it completed.
    """
    console = Console(highlight=False)
    with reported_errors():
        chosen = values.split(",")
        if shape not in shapes.SHAPES:
            raise RecipeError(f"unknown shape {shape!r}", where="--shape", fix=f"use one of {', '.join(shapes.SHAPES)}")
        if unknown := [name for name in chosen if name not in VALUES]:
            raise RecipeError(f"no settings {unknown[0]!r}", where="--values", fix=f"choose from {', '.join(VALUES)}")
        numbers = _numbers(gpus)
        folder = artifacts() / "models" / f"random_{shape}_{task}_{mean_response:g}"
        # With a model of one's own a recipe has other rows than with its tiny one.
        own = {"EXPERIMENT_NAME": "bench_step", "MODEL_PATH": str(folder)}
        recipe = load(task, arguments=extra or (), environ={**os.environ, **own})
        if own_batch:
            data = recipe.data
            prompts, n, max_response = data.rollout_batch_size, recipe.worker.rollout.n, data.max_response_length
        make_missing(recipe, console.print)
        if not (folder / "config.json").is_file():
            begin = time.perf_counter()
            build_apart(shape, folder, questions(recipe.data.train_files), mean_response)
            console.print(f"{folder} was made in {time.perf_counter() - begin:.0f} s")
        parameters, rate = shapes.parameters(folder), matrix_rate()
        console.print(f"{parameters / 1e9:.3g} billion parameters; a matrix product reaches {rate / 1e12:.3g} TFLOP/s")
        work = Workload(task, folder, parameters, rate, prompts, n, max_response, steps, numbers[0], extra or ())
        runs, failed = [], []
        for number, name in product(numbers, chosen):
            try:
                runs.append(run(name, replace(work, gpus=number)))
            except RecipeError as error:
                failed.append(error)
                continue
            if runs[-1].exit_code in INTERRUPTED:
                break
        if runs:
            head, *rows = table(runs)
            view = Table(*head)
            for row in rows:
                view.add_row(*row)
            console.print(view)
        raise_together(failed)


if __name__ == "__main__":
    typer.run(command)
