"""Time a training step of the real launcher: tokens a second, seconds and utilisation of each phase, peak memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.benchmarks.watching import watch
from recipes.errors import RecipeError
from recipes.monitor.metrics import Step, read_history
from recipes.paths import ROOT, run_dir

VALUES: dict[str, dict[str, Any]] = {
    "ours": {},
    "easyr1": {
        # examples/config.yaml of EasyR1 (configs/official/easyr1_config.yaml), and what its trainer does besides.
        "worker.actor.micro_batch_size_per_device_for_update": 1,
        "worker.actor.micro_batch_size_per_device_for_experience": 2,
        "worker.actor.offload.offload_params": True,
        "worker.actor.offload.offload_optimizer": True,
        "worker.rollout.enable_chunked_prefill": False,
        "worker.rollout.max_num_batched_tokens": 8192,
        "worker.rollout.max_num_seqs": 1024,
    },
    "verl": {
        # examples/grpo_trainer/run_qwen3-8b.sh of verl (configs/official/verl_qwen3_8b_gsm8k.yaml), and its defaults.
        "worker.actor.dynamic_batching": False,
        "worker.actor.micro_batch_size_per_device_for_update": 32,
        "worker.actor.micro_batch_size_per_device_for_experience": 32,
        "worker.rollout.max_num_batched_tokens": 8192,
        "worker.rollout.max_num_seqs": 1024,
    },
}
"""Settings to compare: this repository's defaults, and the same trainer at the values of others' examples."""
WITHOUT_LEVERS = {
    "worker.actor.model.enable_gradient_checkpointing": True,
    "worker.actor.model.use_liger": False,
    "worker.actor.use_fused_kernels": False,
    "worker.actor.recompute_old_log_probs": True,
}
"""What both examples leave at the trainer's defaults."""

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
class Measured:
    """One run, as medians over its steps but the first.

    Attributes:
        name: which of `VALUES`.
        exit_code: of the launcher.
        step_s: seconds of a step.
        phase_s: seconds of each phase.
        tokens: tokens of a step, prompts included.
        tokens_per_gpu_s: tokens a second and GPU.
        utilisation: share of the matrix rate in each phase that computes.
        peak_gb: most memory that PyTorch allocated, in GiB as verl prints it; None where it does not.
        rollout_kl: mean of log p(vLLM) - log p(trainer), in nats a token.
    """

    name: str
    exit_code: int
    step_s: float
    phase_s: dict[str, float]
    tokens: float
    tokens_per_gpu_s: float
    utilisation: dict[str, float]
    peak_gb: float | None
    rollout_kl: float | None


def measured(name: str, exit_code: int, steps: Sequence[Step], *, parameters: int, gpus: int, rate: float) -> Measured:
    """Read a run's metrics.

    Args:
        steps: its training steps; the first, which compiles and reads weights, is left out where there are more.
        parameters: of the model.
        gpus: that shared the step.
        rate: floating-point operations a second and GPU of a plain matrix product.

    Raises:
        RecipeError: no step was completed.
    """
    timed = [step for step in steps if step.get("timing_s/step")]
    if not timed:
        raise RecipeError(
            f"the run {name!r} completed no step (exit code {exit_code})",
            where="metrics.jsonl",
            fix="read the end of its log; out of memory: fewer tokens a pass",
        )
    kept = timed[1:] or timed

    def median(*names: str) -> float | None:
        values = [value for step in kept if (value := step.get(*names)) is not None]
        return statistics.median(values) if values else None

    seconds = {phase: found for phase, (names, _) in PHASES.items() if (found := median(*names))}
    tokens, step_s = median("perf/total_num_tokens") or 0.0, median("timing_s/step") or 0.0
    return Measured(
        name=name,
        exit_code=exit_code,
        step_s=step_s,
        phase_s=seconds,
        tokens=tokens,
        tokens_per_gpu_s=tokens / step_s / gpus,
        utilisation={
            phase: operations * parameters * tokens / seconds[phase] / gpus / rate
            for phase, (_, operations) in PHASES.items()
            if operations and phase in seconds
        },
        peak_gb=median("perf/max_memory_allocated_gb"),
        rollout_kl=median("rollout_corr/kl"),
    )


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


def arguments(values: Mapping[str, Any]) -> list[str]:
    """`key=value` of the launcher; booleans in YAML's words."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def prompts(files: str | Sequence[str]) -> list[str]:
    """The questions of training rows, for the tokenizer."""
    import pyarrow.parquet as pq

    paths = [files] if isinstance(files, str) else files
    return [text for path in paths for text in pq.read_table(path, columns=["problem"])["problem"].to_pylist()]


def run(
    name: str,
    *,
    task: str,
    model: Path,
    parameters: int,
    prompts: int,
    n: int,
    max_response: int,
    steps: int,
    gpus: int,
    rate: float,
    extra: Sequence[str] = (),
) -> Measured:
    """Train a few steps at one of `VALUES` through the launcher, and read what it measured.

    Raises:
        RecipeError: no step was completed.
    """
    experiment = f"bench_step_{model.name}_{name}"
    values = {} if name == "ours" else {**WITHOUT_LEVERS, **VALUES[name]}
    command = [
        *(sys.executable, "-m", "recipes.launch", task),
        *arguments({"data.max_response_length": max_response, "trainer.val_before_train": False, **values}),
        *extra,
    ]
    environment = {
        "MODEL_PATH": str(model),
        "ROLLOUT_BATCH_SIZE": str(prompts),
        "GLOBAL_BATCH_SIZE": str(prompts),
        "ROLLOUT_N": str(n),
        "MAX_STEPS": str(steps),
        "SAVE_FREQ": "-1",
        "VAL_FREQ": "-1",
        "GPUS_PER_NODE": str(gpus),
        "EXPERIMENT_NAME": experiment,
        "LOGGER": "console,file",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    folder = run_dir(experiment)
    folder.mkdir(parents=True, exist_ok=True)
    history = folder / "metrics.jsonl"
    history.unlink(missing_ok=True)
    seen = watch(command, environment=environment, metrics=history, log=folder / "launcher.log", interval_s=5.0)
    return measured(name, seen.exit_code, read_history(history), parameters=parameters, gpus=gpus, rate=rate)


def table(runs: Sequence[Measured]) -> list[list[str]]:
    """Rows for people: a measurement, then its value in each run; the last is the ratio of speeds to the first run."""

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    rows = [["", *(run.name for run in runs)], ["step", *(seconds(run.step_s) for run in runs)]]
    rows += [[phase, *(seconds(run.phase_s.get(phase)) for run in runs)] for phase in PHASES]
    rows.append(["tokens a step", *(f"{run.tokens:,.0f}" for run in runs)])
    rows.append(["tokens/s/GPU", *(f"{run.tokens_per_gpu_s:,.0f}" for run in runs)])
    for phase in (name for name, (_, operations) in PHASES.items() if operations):
        shares = (run.utilisation.get(phase) for run in runs)
        rows.append([f"{phase}, of the matrix rate", *("-" if share is None else f"{share:.0%}" for share in shares)])
    rows.append(["peak allocated", *("-" if run.peak_gb is None else f"{run.peak_gb:.1f} GiB" for run in runs)])
    rows.append(["rollout_corr/kl", *("-" if run.rollout_kl is None else f"{run.rollout_kl:.1e}" for run in runs)])
    speeds = [run.tokens_per_gpu_s for run in runs]
    rows.append([f"{runs[0].name} is faster by", *(f"{speeds[0] / speed:.2f}" for speed in speeds)])
    return rows


def as_json(runs: Sequence[Measured], about: Mapping[str, Any]) -> str:
    """Everything that was measured, with what it was measured on."""
    return json.dumps({**about, "runs": [asdict(run) for run in runs]}, indent=1) + "\n"
