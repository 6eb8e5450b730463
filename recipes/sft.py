"""Warm start: supervised fine-tuning (SFT) on the worked answers of a recipe's rows, by verl's `sft_trainer`.

GRPO learns only from groups whose scores differ. A model that answers nothing right first learns from worked answers.
`python -m recipes.sft TASK [key=value ...]` writes them as chat messages, starts verl's trainer, and puts the model in
`artifacts/models/<experiment>`, where MODEL_PATH finds it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from jinja2 import TemplateError
from omegaconf import OmegaConf
from rich.console import Console

from recipes.config import Recipe, load
from recipes.config.layers import flatten, read
from recipes.config.names import verl_package
from recipes.config.variables import is_on
from recipes.data.custom import ready
from recipes.data.lengths import chat_tokenizer
from recipes.data.rows import IMAGE_MARK
from recipes.engines import versions
from recipes.engines.verl import translation as verl
from recipes.errors import RecipeError, reported_errors
from recipes.paths import (
    CONFIGS,
    ROOT,
    checkpoint_dir,
    model_dir,
    python_path,
    relative_to_cwd,
    run_dir,
    script_command,
)
from recipes.preflight.model import check_model
from recipes.runs.folder import opened, script
from recipes.runs.metrics import MetricsFollower, Step
from recipes.runs.process import Child
from recipes.runs.supervise import supervise, watchdog_seconds
from recipes.runs.terminal import Progress

SETTINGS = CONFIGS / "sft" / "settings.yaml"
VARIABLES = {
    "LR": "optim.lr",
    "TOTAL_EPOCHS": "trainer.total_epochs",
    "MAX_STEPS": "trainer.total_training_steps",
    "TRAIN_BATCH_SIZE": "data.train_batch_size",
    "EXPERIMENT_NAME": "trainer.experiment_name",
}
"""Environment variable -> key of verl's supervised trainer. The recipe reads every other one."""
SAME_AS_ACTOR = {
    "actor_rollout_ref.model.": "model.",
    "actor_rollout_ref.actor.fsdp_config.": "engine.",
    "trainer.device": "trainer.device",
    "data.apply_chat_template_kwargs": "data.apply_chat_template_kwargs",
}
"""Prefix of verl's keys for GRPO -> prefix of the same keys for its supervised trainer."""
WORKED = "solution"
"""Field of `extra_info` that holds a row's worked answer, as the model should write it."""
LINES = 50
"""The most steps that are printed; a longer run prints every n-th."""


@dataclass(frozen=True)
class Plan:
    """A warm start: the recipe that it belongs to, verl's configuration, and the overrides of verl's defaults."""

    recipe: Recipe
    settings: Any  # verl's sft_trainer_engine.yaml as Hydra composes it
    overrides: list[str]

    @property
    def experiment(self) -> str:
        """Name of the run and of the model."""
        return str(self.settings.trainer.experiment_name)

    @property
    def longest(self) -> int:
        """Tokens of the longest row that is trained on."""
        return min(int(self.settings.data.max_length), int(self.settings.data.max_token_len_per_gpu))

    @property
    def rows(self) -> Path:
        """Parquet file of the chat messages that are trained on."""
        return run_dir(self.experiment) / "sft.parquet"

    @property
    def model(self) -> Path:
        """Hugging Face folder of the trained model."""
        return model_dir(self.experiment)


def plan(task: str, arguments: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Stack verl's defaults, the recipe, `configs/sft/settings.yaml`, variables and arguments; later wins.

    Args:
        task: a recipe's name or path.
        arguments: `key=value` in the keys of verl's supervised trainer.

    Raises:
        RecipeError: Hydra refuses a variable or an argument, for instance a key that verl's trainer does not have.
    """
    package = verl_package()
    if package is None:
        raise RecipeError("verl is not installed", where=sys.executable, fix="bash scripts/setup_env.sh")
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    recipe = load(task, environ={name: value for name, value in environ.items() if name not in VARIABLES})
    overrides = [_forced(name, value) for name, value in {**_of_recipe(recipe), **flatten(read(SETTINGS))}.items()]
    overrides += [f"{key}={environ[name]}" for name, key in VARIABLES.items() if environ.get(name)]
    try:
        with initialize_config_dir(f"{package}/trainer/config", version_base=None):
            defaults: Any = OmegaConf.to_container(compose("sft_trainer_engine"))
            free = tuple(f"{name}." for name, value in flatten(defaults).items() if value == {})
            overrides += [f"++{each}" if each.startswith(free) else each for each in arguments]
            return Plan(recipe, compose("sft_trainer_engine", overrides), overrides)
    except HydraException as error:
        raise RecipeError(
            " ".join(str(error).split()),
            where=f"{', '.join(VARIABLES)}, or an argument",
            fix="python -m verl.trainer.sft_trainer --cfg job shows the keys of verl's supervised trainer",
        ) from error


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the keys that the supervised trainer takes from the recipe; the model is built as GRPO's actor is."""
    keys = {
        "data.max_length": recipe.data.max_prompt_length + recipe.data.max_response_length,
        "trainer.project_name": recipe.trainer.project_name,
        "trainer.experiment_name": f"{recipe.trainer.experiment_name or recipe.name}_sft",
        "trainer.n_gpus_per_node": recipe.trainer.n_gpus_per_node,
        "trainer.logger": ["console", "file"],
    }
    for name, value in verl.translate(recipe).items():
        for prefix, ours in SAME_AS_ACTOR.items():
            if name.startswith(prefix):
                keys[ours + name.removeprefix(prefix)] = value
    return keys


def _forced(name: str, value: Any) -> str:
    """Return an override that sets a key, whether verl's configuration has it or not."""
    return f"++{verl.override(name, value, known=True)}"


def write_rows(chosen: Plan) -> tuple[int, int]:
    """Write each training row's prompt and worked answer as chat messages.

    Returns:
        (rows written, rows left out because they have more tokens than the limit).

    Raises:
        RecipeError: a row has no worked answer, or has an image; the chat template fails, or writes the prompt in other
            tokens when the answer follows; no row is short enough.
    """
    data, model = chosen.settings.data, chosen.settings.model
    tokenizer = chat_tokenizer(
        model.tokenizer_path or model.path, model.custom_chat_template, trust_remote_code=bool(model.trust_remote_code)
    )
    template = {**data.apply_chat_template_kwargs, "tokenize": True, "return_dict": False}
    kept, long = [], 0
    files = chosen.recipe.data.train_files
    for file in [files] if isinstance(files, str) else files:
        pictures = chosen.recipe.data.image_key
        there = [name for name in ("prompt", "extra_info", pictures) if name in pq.read_schema(file).names]
        for number, row in enumerate(pq.read_table(file, columns=there).to_pylist()):
            worked = (row.get("extra_info") or {}).get(WORKED)
            if row.get(pictures) or IMAGE_MARK in str(row["prompt"]):
                what, fix = f"row {number} has an image, and a warm start imitates texts", "train with GRPO alone"
                raise RecipeError(what, where=file, fix=fix)
            if not isinstance(worked, str) or not worked.strip():
                raise RecipeError(
                    f"row {number} has no worked answer, which a warm start imitates",
                    where=f"{file}: extra_info.{WORKED}",
                    fix=f"give each row a response as the model should write it in the column {WORKED!r}, "
                    "or train with GRPO alone",
                )
            messages = [*row["prompt"], {"role": "assistant", "content": worked}]
            try:
                whole = tokenizer.apply_chat_template(messages, **template)
                prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, **template)
                same = whole[: len(prompt)] == prompt
                refused = "" if same else "with its answer, the chat template writes the prompt itself in other tokens"
            except (TemplateError, TypeError) as error:
                refused = f"the chat template refuses it: {error}"
            if refused:
                raise RecipeError(
                    f"row {number}: {refused}",
                    where=f"chat template of {model.path}; {file}",
                    fix="set data.apply_chat_template_kwargs so that answers begin where the prompt ends (a reasoning "
                    "model's enable_thinking), or take another template by data.override_chat_template",
                )
            if len(whole) > chosen.longest:
                long += 1
            else:
                kept.append({"messages": messages})
    if not kept:
        raise RecipeError(
            f"no row is at most {chosen.longest} tokens long",
            where="data.max_length, data.max_token_len_per_gpu",
            fix="raise MAX_RESPONSE_LENGTH or MAX_PROMPT_LENGTH, and data.max_token_len_per_gpu where it is smaller",
        )
    chosen.rows.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(kept), chosen.rows)
    return len(kept), long


def command(chosen: Plan) -> list[str]:
    """Return the argument vector that starts verl's supervised trainer on this node's GPUs, or on CPU ranks."""
    places = {"data.train_files": chosen.rows, "trainer.default_local_dir": checkpoint_dir(chosen.experiment)}
    ranks = f"--nproc_per_node={chosen.settings.trainer.n_gpus_per_node}"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks]
    module = "recipes.engines.verl.sft" if chosen.recipe.hardware == "cpu" else "verl.trainer.sft_trainer"
    words = [*chosen.overrides, *(_forced(name, str(place)) for name, place in places.items())]
    hydra = [f"hydra.run.dir={verl.quoted(str(run_dir(chosen.experiment)))}", "hydra.output_subdir=null"]
    return [*start, "-m", module, *words, *hydra, "hydra/job_logging=stdout"]


def run(chosen: Plan, console: Console) -> int:
    """Make the rows, train, and put the model where MODEL_PATH finds it. Returns the exit code."""
    recipe, checkpoints = chosen.recipe, checkpoint_dir(chosen.experiment)
    taken = ""
    if chosen.model.exists():
        taken = "there is a model of that name already"
    elif (run_dir(chosen.experiment) / "config.yaml").exists() or (checkpoints.exists() and not chosen.rows.exists()):
        taken = "that is a run of GRPO, whose metrics and checkpoints a warm start would replace"
    if taken:
        where = f"EXPERIMENT_NAME={chosen.experiment}: {relative_to_cwd(chosen.model)}, {relative_to_cwd(checkpoints)}"
        raise RecipeError(taken, where=where, fix="EXPERIMENT_NAME=another_name")
    versions.check(recipe.hardware)
    for remark in check_model(recipe):
        console.print(f"note: {remark}")
    chosen = Plan(ready(recipe, console.print), chosen.settings, chosen.overrides)
    rows, long = write_rows(chosen)
    console.print(f"{rows:,} worked answers, {long:,} left out (longer than {chosen.longest} tokens)")
    steps = steps_of(chosen, rows)
    chosen.overrides.append(_forced("trainer.total_training_steps", steps))  # verl saves at this step, if it reaches it
    shutil.rmtree(checkpoints, ignore_errors=True)  # left by an attempt that made no model
    with opened(chosen.experiment) as files:
        files.metrics.unlink(missing_ok=True)
        files.log.unlink(missing_ok=True)
        console.print(f"warm start of {chosen.settings.model.path}; verl's output: {relative_to_cwd(files.log)}")
        environment = {**os.environ, **verl.environment(recipe, os.environ), "PYTHONPATH": python_path()}
        environment["VERL_FILE_LOGGER_PATH"] = str(files.attempt)
        progress = Progress(console, steps)
        progress.phase("the supervised trainer starts")
        outcome = supervise(
            Child(command(chosen), environment, files.log, ROOT),
            files.log,
            0,
            MetricsFollower(files.attempt, files.metrics),
            progress,
            watchdog_seconds(os.environ),
            [partial(_show, progress=progress, last=steps)],
        )
    if outcome.interrupted:
        console.print("stopped; the same command starts again from the beginning")
        return outcome.exit_code
    saved = next(checkpoints.glob("global_step_*/huggingface"), None)
    if outcome.exit_code or saved is None:
        cause = outcome.hung or (outcome.error and outcome.error.error) or "no model was saved"
        raise RecipeError(
            f"the supervised trainer ended with exit code {outcome.code}: {cause}",
            where=str(relative_to_cwd(files.log)),
            fix="mend what its last lines say, and start again",
        )
    chosen.model.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(saved, chosen.model)
    shutil.rmtree(checkpoints)
    shown = relative_to_cwd(chosen.model)
    console.print(f"model     {shown}")
    console.print(f"probe     {script_command('eval.py', recipe.name, '--model_path', str(shown), 'analyse')}")
    return 0


def steps_of(chosen: Plan, rows: int) -> int:
    """Return the number of updates of a warm start on `rows` rows, at most MAX_STEPS.

    Raises:
        RecipeError: the batch size is larger than `rows`.
    """
    settings = chosen.settings
    steps = rows // int(settings.data.train_batch_size) * int(settings.trainer.total_epochs)
    if steps < 1:
        raise RecipeError(
            f"{rows:,} worked answers are fewer than one update's {settings.data.train_batch_size}",
            where="data.train_batch_size",
            fix=f"TRAIN_BATCH_SIZE={max(1, rows // 4)}",
        )
    return min(steps, int(settings.trainer.total_training_steps or steps))


def _show(step: Step, progress: Progress, last: int) -> None:
    """Print every n-th step and the last, at most `LINES`; metrics lines without a training loss are validations."""
    if (step.step == last or step.step % -(-last // LINES) == 0) and "train/loss" in step.data:
        progress.note(
            f"step {step.step} | loss {step.data['train/loss']:.4f} | grad-norm {step.data['train/grad_norm']:.3f} | "
            f"lr {step.data['train/lr']:.2g}"
        )


def main(
    task: Annotated[str, typer.Argument(help="a recipe in configs/, or the path of one")],
    arguments: Annotated[list[str] | None, typer.Argument(help="key=value, in verl's sft_trainer's keys")] = None,
) -> None:
    """Supervised fine-tuning on the worked answers of a recipe's training rows, as a warm start for GRPO."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with reported_errors():
        chosen = plan(task, arguments or (), os.environ)
        if is_on(os.environ, "DRY_RUN"):
            print(OmegaConf.to_yaml(chosen.settings))
            print(script(command(chosen), {}))
            return
        raise typer.Exit(run(chosen, console))


if __name__ == "__main__":
    typer.run(main)
