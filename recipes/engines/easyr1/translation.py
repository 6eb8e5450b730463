"""A recipe as EasyR1's keys, command and environment."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.config import objective
from recipes.config.checks import require_supported
from recipes.config.names import native
from recipes.config.rewards import reward_call
from recipes.config.schema import LAUNCHERS, Recipe, leaves
from recipes.engines.checkpoints import numbers_variable
from recipes.engines.columns import answer_column, prompt_column
from recipes.engines.cpu import settings
from recipes.engines.easyr1 import source
from recipes.engines.easyr1.hooks import RANKS, ROLLOUTS, WEIGHTS
from recipes.engines.easyr1.hooks import VALIDATION as VALIDATIONS
from recipes.engines.loggers import logger_environment
from recipes.errors import RecipeError
from recipes.paths import ROOT, python_path, run_dir
from recipes.yaml_text import flow

VALIDATION = "worker.rollout.val_override_config"
ACTOR = "worker.actor"
AVERAGES = {"token-mean": "token", "seq-mean-token-mean": "seq"}
"""worker.actor.loss_agg_mode -> EasyR1's loss_avg_mode."""
AVERAGE = f"{ACTOR}.loss_avg_mode"
HOOKED = ("trainer.save_hf_model", "trainer.rollout_data_dir", "trainer.validation_data_dir")
"""Keys that this package implements for EasyR1; passed as environment variables."""


def translate(recipe: Recipe) -> dict[str, Any]:
    """EasyR1's dotted keys for the recipe.

    Raises RecipeError for values that EasyR1 does not support, and for keys that verl alone has.
    """
    require_supported(recipe, "easyr1")
    keys = {
        path: recipe.value(path)
        for path, leaf in leaves(Recipe).items()
        if path not in (*LAUNCHERS, *HOOKED) and "easyr1" in leaf.info.engines and not path.startswith(VALIDATION)
    }
    validation = recipe.worker.rollout.val_override_config.model_dump(exclude_none=True)
    keys |= {VALIDATION: validation, **_filled(recipe)}
    if recipe.hardware == "cpu":
        keys |= _ON_CPUS
        if keys["worker.ref.fsdp.torch_dtype"] is None:  # EasyR1's null is bf16, which rounds a CPU's float32
            keys["worker.ref.fsdp.torch_dtype"] = recipe.worker.ref.fsdp.mp_param_dtype
    keys[AVERAGE] = AVERAGES[keys.pop(f"{ACTOR}.loss_agg_mode")]
    keys["algorithm.use_kl_loss"] = objective.kl_in_loss(recipe) is not None
    del keys["algorithm.kl_loss_coef"], keys["algorithm.kl_loss_type"]
    return keys | native(recipe) | recipe.easyr1


_ON_CPUS = {
    f"{ACTOR}.use_torch_compile": False,  # compiling costs more than a tiny model's run
    **{f"worker.{role}.fsdp.enable_rank0_init": False for role in ("actor", "ref")},
    **{f"worker.{role}.padding_free": True for role in ("actor", "ref")},
}
"""Each rank reads the weights itself: FSDP would send rank 0's by NCCL, which CPUs lack. Packing is on, since EasyR1
changes transformers' models (rows with and without images for Qwen2-VL) only with it."""


def _filled(recipe: Recipe) -> dict[str, Any]:
    """Keys whose value EasyR1 would read differently, such as a null that stands for another key's value."""
    keys: dict[str, Any] = {"data.prompt_key": prompt_column(recipe), "data.answer_key": answer_column(recipe)}
    keys["trainer.find_last_checkpoint"] = bool(recipe.trainer.find_last_checkpoint)
    for name in ("train_files", "val_files"):
        files = recipe.value(f"data.{name}")
        if isinstance(files, list):
            what, fix = f"EasyR1 reads one file as data.{name}, not {len(files)}", "join the files, or use engine verl"
            raise RecipeError(what, where=recipe.source_of(f"data.{name}").where, fix=fix)
    term = objective.kl_in_loss(recipe)
    if term:
        keys["algorithm.kl_coef"], keys["algorithm.kl_penalty"] = term.coefficient, term.estimator
    if call := reward_call(recipe):
        adapter = ROOT / "recipes" / "rewards" / "easyr1.py"  # calls a reward of any form
        keys["worker.reward.reward_function"] = f"{adapter}:compute_score_batch"
        keys["worker.reward.reward_function_kwargs"] = {"path": call[0], "arguments": call[1]}
    offload = "worker.ref.fsdp.enable_cpu_offload"
    if recipe.source_of(offload).layer == "default" and (recipe.hardware == "cpu" or recipe.n_gpus == 1):
        keys[offload] = False  # by default the reference is offloaded only with several GPUs
    # The attention is EasyR1's own choice.
    given = recipe.worker.actor.model.override_config
    keys[f"{ACTOR}.model.override_config"] = {name: given[name] for name in given if name != "attn_implementation"}
    return keys


def overrides(recipe: Recipe) -> list[str]:
    """`key=value` for EasyR1's command line, which OmegaConf reads as YAML."""
    return [f"{name}={flow(value)}" for name, value in sorted(translate(recipe).items())]


def command(recipe: Recipe) -> list[str]:
    """The argument vector that starts EasyR1's trainer, with this Python."""
    return [sys.executable, "-m", "recipes.engines.easyr1.main", *overrides(recipe)]


def environment(recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that the trainer needs besides the inherited ones."""
    home = source.patched(source.find(environ), recipe.hardware == "cpu")
    folder, loggers = run_dir(recipe.experiment), list(recipe.trainer.logger)
    variables = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(home), *python_path().split(os.pathsep)[1:]]),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        **logger_environment(loggers, folder, environ),
        **numbers_variable(recipe.trainer.stop_on_nan, recipe.worker.actor.fsdp.mp_param_dtype == "fp16"),
    }
    if "swanlab" in loggers and not environ.get("SWANLAB_DIR"):
        variables["SWANLAB_DIR"] = str(folder / "swanlab")
    for name, place in ((ROLLOUTS, recipe.trainer.rollout_data_dir), (VALIDATIONS, recipe.trainer.validation_data_dir)):
        if place:
            variables[name] = str(Path(place).absolute())
    if recipe.trainer.save_hf_model:
        full = recipe.worker.actor.fsdp.mp_param_dtype == "fp32"
        variables[WEIGHTS] = "float32" if full else "bfloat16"
    if recipe.hardware == "cpu":
        threads = max(1, len(os.sched_getaffinity(0)) // recipe.n_gpus)
        cache = {name: environ.get(name, value) for name, value in settings.CACHE.items()}
        return variables | {RANKS: str(recipe.n_gpus), **cache, **settings.of_trainers(threads, environ)}
    if importlib.util.find_spec("flashinfer") is None:
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = environ.get("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return variables
