"""Time TRL's GRPOTrainer and this repository's launcher on one workload: model, rows, reward, batch and cores.

`python -m tools.benchmarks.against_trl --trl-side METRICS` is TRL's side, in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recipes.config import Recipe, load
from recipes.data.prepare import make_missing
from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT, artifacts
from tools.benchmarks.watching import last_lines, watch

KL_COEFFICIENT = 0.01
FOLDER = artifacts() / "benchmarks" / "against_trl"
INSTALL = "pip install --no-deps --target {folder} trl"
"""A folder of its own: TRL then runs on this environment's torch and transformers, and changes none of its pins."""


@dataclass(frozen=True)
class Timing:
    """One trainer's seconds: from the command to its first step, to that step's end, and of a later step (median)."""

    ready_s: float
    first_step_s: float
    step_s: float


def timing(first_metrics_s: float, steps_s: list[float]) -> Timing:
    """From the time of the first line of metrics, which ends the first step, and the seconds of each step."""
    return Timing(first_metrics_s - steps_s[0], first_metrics_s, statistics.median(steps_s[1:]))


def workload() -> Recipe:
    """Countdown's embedded recipe on CPUs: 8 prompts x 8 responses of at most 64 tokens, KL in the loss as in TRL."""
    return load(
        "countdown",
        arguments=("algorithm.use_kl_loss=true", f"algorithm.kl_loss_coef={KL_COEFFICIENT}"),
        environ={"EMBEDDED": "1"},
        hardware="cpu",
    )


def run(name: str, command: list[str], environment: dict[str, str], metrics: Path) -> Timing:
    """Run one trainer to its end. Raises RecipeError, after its last lines, where it fails."""
    log = FOLDER / f"{name}.log"
    seen = watch(command, environment=environment, metrics=metrics, log=log)
    if seen.exit_code or seen.first_metrics_s is None:
        print(last_lines(log))
        raise RecipeError(f"{name} ended with {seen.exit_code}", where=str(log), fix="its last lines are above")
    return timing(seen.first_metrics_s, seen.step_s)


def ours(steps: int) -> Timing:
    """The launcher, without validation and checkpoints."""
    command = [
        *(sys.executable, "-m", "recipes.launch", "countdown", "algorithm.use_kl_loss=true"),
        *(f"algorithm.kl_loss_coef={KL_COEFFICIENT}", "trainer.val_before_train=false"),
    ]
    variables = {
        "EMBEDDED": "1",
        "HARDWARE": "cpu",
        "MAX_STEPS": str(steps),
        "SAVE_FREQ": "-1",
        "VAL_FREQ": "-1",
        "EXPERIMENT_NAME": "bench_against_trl",
        "LOGGER": "console,file",
        "ARTIFACTS_DIR": str(FOLDER / "artifacts"),
        "PYTHONPATH": str(ROOT),
    }
    return run("launcher", command, variables, FOLDER / "artifacts" / "runs" / "bench_against_trl" / "metrics.jsonl")


def trl(steps: int, folder: Path) -> Timing:
    """TRL's trainer, in a process that finds TRL in `folder`."""
    metrics = FOLDER / "trl.jsonl"
    command = [sys.executable, "-m", "tools.benchmarks.against_trl", "--steps", str(steps), "--trl-side", str(metrics)]
    return run("trl", command, {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}, metrics)


def train_with_trl(steps: int, metrics: Path) -> None:
    """Train, and append each step's seconds to `metrics` as verl's file logger does."""
    import time

    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from recipes.data.rewards import load_reward

    recipe = workload()
    rows = Dataset.from_parquet(str(recipe.data.train_files), columns=["prompt", "data_source", "reward_model"])
    score = load_reward(str(ROOT / "reward_functions" / "countdown.py")).compute_score

    def reward(
        completions: list[Any], data_source: list[str], reward_model: list[dict[str, Any]], **_: Any
    ) -> list[float]:
        answers = [completion[0]["content"] for completion in completions]
        truths = [entry["ground_truth"] for entry in reward_model]
        return [
            float(score(source, answer, truth)["score"])
            for source, answer, truth in zip(data_source, answers, truths, strict=True)
        ]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.monotonic()

        def on_step_end(self, arguments: Any, state: Any, *_: Any, **__: Any) -> None:
            seconds = time.monotonic() - self.begin
            with metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "data": {"timing_s/step": seconds}}) + "\n")

    responses = recipe.data.rollout_batch_size * recipe.worker.rollout.n
    config = GRPOConfig(
        output_dir=str(FOLDER / "trl"),
        max_steps=steps,
        per_device_train_batch_size=responses,
        num_generations=recipe.worker.rollout.n,
        max_completion_length=recipe.data.max_response_length,
        beta=KL_COEFFICIENT,
        learning_rate=recipe.worker.actor.optim.lr,
        temperature=recipe.worker.rollout.temperature,
        loss_type="grpo",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = recipe.worker.actor.model.model_path
    GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=rows, callbacks=[Clock()]).train()


def table(timings: dict[str, Timing]) -> Table:
    """The seconds of both, and this repository's over TRL's."""
    view = Table("", *timings, "ratio")
    for name, label in (("ready_s", "ready"), ("first_step_s", "first step done"), ("step_s", "a step, median")):
        seconds = [getattr(timing, name) for timing in timings.values()]
        view.add_row(label, *(f"{value:.2f} s" for value in seconds), f"{seconds[1] / seconds[0]:.2f}")
    return view


def command(
    steps: Annotated[int, typer.Option(help="training steps of each run", min=3)] = 8,
    trl_folder: Annotated[Path, typer.Option("--trl", help="folder that TRL is installed into")] = FOLDER / "packages",
    out: Annotated[Path | None, typer.Option(help="JSON file for the measurements")] = None,
    trl_side: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Time TRL's trainer and this repository's on the same tiny model, rows, batch and cores, and print ratios.

    64 responses of at most 64 tokens a step, KL 0.01 in the loss, one update. TRL samples with transformers.
    """
    if trl_side:
        train_with_trl(steps, trl_side)
        return
    with reported_errors():
        if not (trl_folder / "trl").is_dir():
            install = INSTALL.format(folder=trl_folder)
            raise RecipeError("TRL is not installed for this benchmark", where=str(trl_folder), fix=install)
        FOLDER.mkdir(parents=True, exist_ok=True)
        make_missing(workload(), print)
        for leftover in (FOLDER / "artifacts", FOLDER / "trl"):
            shutil.rmtree(leftover, ignore_errors=True)
        (FOLDER / "trl.jsonl").unlink(missing_ok=True)
        load_before = os.getloadavg()[0]
        timings = {"TRL": trl(steps, trl_folder), "this repository": ours(steps)}
        Console().print(table(timings))
        print(f"load average before: {load_before:.1f}, after: {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores")
        if out:
            report = {name: asdict(value) for name, value in timings.items()}
            out.write_text(json.dumps({**report, "steps": steps, "load_before": load_before}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(command)
