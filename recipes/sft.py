"""Warm start: supervised fine-tuning (SFT) on the worked answers of a recipe's rows, by verl's `sft_trainer`.

GRPO learns only where a group of responses disagrees. A model that answers nothing right is first shown worked answers.
`python -m recipes.sft TASK [key=value ...]` writes them as chat messages, starts verl's trainer, and puts the model in
`artifacts/models/<experiment>`, where MODEL_PATH finds it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from jinja2 import TemplateError
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from recipes.config import Recipe, dry_run, load
from recipes.config.layers import flatten
from recipes.data.custom import ready
from recipes.data.lengths import chat_tokenizer
from recipes.data.rows import IMAGE_MARK
from recipes.engines import versions
from recipes.engines.verl import translation as verl
from recipes.errors import RecipeError, did_you_mean, reported_errors
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
from recipes.runs.metrics import read_history
from recipes.runs.process import Child

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
SHOWN_EVERY = 5.0
"""Seconds between two lines of a running trainer."""


@dataclass(frozen=True)
class Plan:
    """A warm start: the recipe it belongs to and verl's settings."""

    recipe: Recipe
    settings: Any  # an OmegaConf tree of what differs from verl's own sft_trainer_engine.yaml

    @property
    def experiment(self) -> str:
        """Name of the run and of the model."""
        return str(self.settings.trainer.experiment_name)

    @property
    def rows(self) -> Path:
        """Parquet file of the chat messages that are trained on."""
        return run_dir(self.experiment) / "sft.parquet"

    @property
    def model(self) -> Path:
        """Hugging Face folder of the trained model."""
        return model_dir(self.experiment)


def plan(task: str, arguments: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Stack verl's defaults, `configs/sft/settings.yaml`, the recipe, variables and arguments; later wins.

    Args:
        task: a recipe's name or path.
        arguments: `key=value` in the keys of verl's supervised trainer.

    Raises:
        RecipeError: a key that verl's trainer does not have, or a value of the wrong type.
    """
    recipe = load(task, environ={name: value for name, value in environ.items() if name not in VARIABLES})
    given = [f"{key}={environ[name]}" for name, key in VARIABLES.items() if environ.get(name)]
    layers = {
        str(relative_to_cwd(SETTINGS)): OmegaConf.load(SETTINGS),
        "environment variables": OmegaConf.from_dotlist(given),
        "arguments": OmegaConf.from_dotlist(list(arguments)),
    }
    known = verls_keys()
    for where, layer in layers.items():
        _check(known, layer, where)
    return Plan(recipe, OmegaConf.merge(_of_recipe(recipe), *layers.values()))


def _of_recipe(recipe: Recipe) -> DictConfig:
    """Return the keys that the supervised trainer takes from the recipe; the model is built as GRPO's actor is."""
    experiment = f"{recipe.trainer.experiment_name or recipe.name}_sft"
    keys = {
        "data.max_length": recipe.data.max_prompt_length + recipe.data.max_response_length,
        "trainer.project_name": recipe.trainer.project_name,
        "trainer.experiment_name": experiment,
        "trainer.n_gpus_per_node": recipe.trainer.n_gpus_per_node,
        "trainer.logger": ["console", "file"],
    }
    for name, value in verl.translate(recipe).items():
        for prefix, ours in SAME_AS_ACTOR.items():
            if name.startswith(prefix):
                keys[ours + name.removeprefix(prefix)] = value
    settings = OmegaConf.create()
    for name, value in keys.items():
        OmegaConf.update(settings, name, value)
    return settings


def verls_keys() -> list[str]:
    """Return the dotted keys of verl's composed `sft_trainer_engine.yaml`."""
    from hydra import compose, initialize_config_dir

    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        raise RecipeError("verl is not installed", where=sys.executable, fix="bash scripts/setup_env.sh")
    with initialize_config_dir(str(Path(found.origin).parent / "trainer" / "config"), version_base=None):
        return list(_flat(compose("sft_trainer_engine")))


def _flat(settings: Any) -> dict[str, Any]:
    """Dotted keys of an OmegaConf tree with their values."""
    tree: Any = OmegaConf.to_container(settings)
    return flatten(tree)


def _check(known: list[str], layer: Any, where: str) -> None:
    """Refuse keys that verl's supervised trainer does not have; below an empty entry every key is free."""
    for name in _flat(layer):
        if not any(name == key or name.startswith(f"{key}.") for key in known):
            raise RecipeError(
                f"verl's supervised trainer has no key {name!r}",
                where=where,
                fix=did_you_mean(name, known) or "python -m verl.trainer.sft_trainer --cfg job shows its keys",
            )


def write_rows(chosen: Plan) -> tuple[int, int]:
    """Write each training row's prompt and worked answer as chat messages.

    Returns:
        (rows written, rows left out because they are longer than prompt and response may be together).

    Raises:
        RecipeError: a row has no worked answer, or an image; a template that does not begin a conversation with its
            prompt; no row is short enough.
    """
    data, model = chosen.settings.data, chosen.settings.model
    tokenizer = chat_tokenizer(
        model.tokenizer_path or model.path, model.custom_chat_template, trust_remote_code=bool(model.trust_remote_code)
    )
    template = dict(OmegaConf.select(chosen.settings, "data.apply_chat_template_kwargs") or {})
    template |= {"tokenize": True, "return_dict": False}
    limit, kept, long = min(int(data.max_length), int(data.max_token_len_per_gpu)), [], 0
    files = chosen.recipe.data.train_files
    for file in [files] if isinstance(files, str) else files:
        pictures = chosen.recipe.data.image_key
        there = [name for name in ("prompt", "extra_info", pictures) if name in pq.read_schema(file).names]
        for number, row in enumerate(pq.read_table(file, columns=there).to_pylist()):
            if row.get(pictures) or IMAGE_MARK in str(row["prompt"]):
                raise RecipeError(
                    f"row {number} has an image, and a warm start trains on text alone",
                    where=f"{file}: {pictures if row.get(pictures) else 'prompt'}",
                    fix="train this recipe with GRPO, or start from a model that already answers",
                )
            worked = (row.get("extra_info") or {}).get(WORKED)
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
            except (TemplateError, TypeError) as error:
                raise RecipeError(
                    f"row {number}: the chat template refuses it: {error}",
                    where=f"chat template of {model.path}; {file}",
                    fix="write the prompts as the template has them, or take another by data.override_chat_template",
                ) from error
            if whole[: len(prompt)] != prompt:
                raise RecipeError(
                    f"row {number}: with its answer, the chat template writes the prompt itself in other tokens",
                    where=f"chat template of {model.path}; {file}",
                    fix="set data.apply_chat_template_kwargs so that answers begin where the prompt ends (a reasoning "
                    "model's enable_thinking), or give the model another template",
                )
            if len(whole) > limit:
                long += 1
            else:
                kept.append({"messages": messages})
    if not kept:
        raise RecipeError(
            f"no row is at most {limit} tokens long",
            where="data.max_length",
            fix="raise MAX_RESPONSE_LENGTH or MAX_PROMPT_LENGTH, and data.max_token_len_per_gpu where it is smaller",
        )
    chosen.rows.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(kept), chosen.rows)
    return len(kept), long


def command(chosen: Plan) -> list[str]:
    """Return the argument vector that starts verl's supervised trainer on this node's GPUs, or on CPU ranks."""
    known = set(verls_keys())
    settings: Any = {
        **_flat(chosen.settings),
        "data.train_files": str(chosen.rows),
        "trainer.default_local_dir": str(checkpoint_dir(chosen.experiment)),
    }
    ranks = f"--nproc_per_node={chosen.settings.trainer.n_gpus_per_node}"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks]
    module = "recipes.engines.verl.sft" if chosen.recipe.hardware == "cpu" else "verl.trainer.sft_trainer"
    words = [verl.override(name, value, name in known) for name, value in settings.items()]
    hydra = [f"hydra.run.dir={verl.quoted(str(run_dir(chosen.experiment)))}", "hydra.output_subdir=null"]
    return [*start, "-m", module, *words, *hydra, "hydra/job_logging=stdout"]


def run(chosen: Plan, console: Console) -> int:
    """Make the rows, train, and put the model where MODEL_PATH finds it. Returns the exit code."""
    recipe, folder = chosen.recipe, run_dir(chosen.experiment)
    if chosen.model.exists():
        raise RecipeError(
            "there is a model of that name already",
            where=str(relative_to_cwd(chosen.model)),
            fix="EXPERIMENT_NAME=another_name, or remove the folder",
        )
    checkpoints = checkpoint_dir(chosen.experiment)
    if (folder / "config.yaml").exists() or (checkpoints.exists() and not chosen.rows.exists()):
        raise RecipeError(
            f"{chosen.experiment} is a run of GRPO, whose metrics and checkpoints a warm start would replace",
            where=f"EXPERIMENT_NAME: {relative_to_cwd(folder)}, {relative_to_cwd(checkpoints)}",
            fix="EXPERIMENT_NAME=another_name",
        )
    versions.check(recipe.hardware)
    for remark in check_model(recipe):
        console.print(f"note: {remark}")
    recipe = ready(recipe, console.print)
    chosen = Plan(recipe, chosen.settings)
    rows, long = write_rows(chosen)
    console.print(f"{rows:,} worked answers, {long:,} left out (longer than {chosen.settings.data.max_length} tokens)")
    _check_steps(chosen, rows)
    log, metrics = folder / "train.log", folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)  # of an attempt that made no model
    shutil.rmtree(checkpoints, ignore_errors=True)
    console.print(f"warm start of {chosen.settings.model.path}; verl's own output goes to {relative_to_cwd(log)}")
    environment = {
        **os.environ,
        **verl.environment(recipe, os.environ),
        "PYTHONPATH": python_path(),
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    log.unlink(missing_ok=True)
    trainer = Child(command(chosen), environment, log, ROOT)
    try:
        code = _follow(trainer, metrics, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command starts again from the beginning")
        return 130
    finally:
        trainer.stop()
    saved = next(checkpoints.glob("global_step_*/huggingface"), None)
    if code or saved is None:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        raise RecipeError(
            "\n".join([f"the supervised trainer ended with exit code {code} and saved no model:", *tail]),
            where=str(relative_to_cwd(log)),
            fix="mend what its last lines say, and start again",
        )
    chosen.model.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(saved, chosen.model)
    shutil.rmtree(checkpoints)
    shown = relative_to_cwd(chosen.model)
    console.print(f"model     {shown}")
    console.print(f"probe     {script_command('eval.py', recipe.name, '--model_path', str(shown), 'analyse')}")
    return 0


def _check_steps(chosen: Plan, rows: int) -> None:
    """Refuse a batch without rows, and more steps than the epochs have: verl would not reach its saving step."""
    settings = chosen.settings
    steps = rows // int(settings.data.train_batch_size) * int(settings.trainer.total_epochs)
    if steps < 1:
        raise RecipeError(
            f"{rows:,} worked answers are fewer than one update's {settings.data.train_batch_size}",
            where="data.train_batch_size",
            fix=f"TRAIN_BATCH_SIZE={max(1, rows // 4)}",
        )
    asked = OmegaConf.select(settings, "trainer.total_training_steps")
    if asked is not None and int(asked) > steps:
        raise RecipeError(
            f"{asked} steps are more than the {steps} of {settings.trainer.total_epochs} epochs",
            where="MAX_STEPS (trainer.total_training_steps)",
            fix=f"MAX_STEPS={steps} or fewer, or a larger TOTAL_EPOCHS",
        )


def _follow(trainer: Child, metrics: Path, console: Console) -> int:
    """Print a line of the newest metrics now and then until the trainer ends. Returns its exit code."""
    start, shown = time.monotonic(), 0
    while True:
        code = trainer.poll()
        steps = [step for step in read_history(metrics) if "train/loss" in step.data]  # others are of validations
        if len(steps) > shown:
            shown, last = len(steps), steps[-1]
            console.print(
                f"step {last.step} | loss {last.data['train/loss']:.4f} | "
                f"grad-norm {last.data['train/grad_norm']:.3f} | lr {last.data['train/lr']:.2g} | "
                f"{time.monotonic() - start:.0f} s"
            )
        if code is not None:
            return code
        trainer.refresh()
        time.sleep(SHOWN_EVERY if shown else 0.2)


def main(
    task: Annotated[str, typer.Argument(help="a recipe in configs/, or the path of one")],
    arguments: Annotated[list[str] | None, typer.Argument(help="key=value, in verl's sft_trainer's keys")] = None,
) -> None:
    """Supervised fine-tuning on the worked answers of a recipe's training rows, as a warm start for GRPO."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with reported_errors():
        chosen = plan(task, arguments or (), os.environ)
        if dry_run(os.environ):
            console.print(OmegaConf.to_yaml(chosen.settings))
            console.print(" ".join(command(chosen)))
            return
        raise typer.Exit(run(chosen, console))


if __name__ == "__main__":
    typer.run(main)
