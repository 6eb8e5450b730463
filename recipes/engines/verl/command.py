"""The trainer's command line and environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping

from recipes.config.loggers import wandb_environment
from recipes.config.schema import Recipe
from recipes.engines.verl.overrides import overrides, quoted
from recipes.paths import run_dir

GPU_MAIN = "verl.trainer.main_ppo"
CPU_MAIN = "recipes.engines.verl_cpu.main"


def command(recipe: Recipe) -> list[str]:
    """The argument vector that starts verl's trainer, with this Python."""
    main = CPU_MAIN if recipe.hardware == "cpu" else GPU_MAIN
    return [sys.executable, "-m", main, *overrides(recipe), *_hydra(recipe)]


def _hydra(recipe: Recipe) -> list[str]:
    """Hydra would make a dated folder and a log of its own in the working folder."""
    folder = run_dir(recipe.trainer.experiment_name or recipe.name)
    return [f"hydra.run.dir={quoted(str(folder))}", "hydra.output_subdir=null", "hydra/job_logging=stdout"]


def environment(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that the trainer needs besides those it inherits."""
    variables = {"HYDRA_FULL_ERROR": "1", **wandb_environment(list(recipe.trainer.logger), environ)}
    if recipe.hardware == "cpu":
        from recipes.engines.verl_cpu import settings

        variables |= settings.environment(recipe)
    elif importlib.util.find_spec("flashinfer") is None:
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = environ.get("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return variables
