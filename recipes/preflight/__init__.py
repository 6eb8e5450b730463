"""Checks before the trainer starts; `python scripts/preflight.py TASK` runs them all and nothing else."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recipes.config import Recipe, check, path_keys, remarks
from recipes.config.names import NATIVE, native, verl_package
from recipes.config.variables import check_controls
from recipes.data.custom import refuse_missing
from recipes.engines import versions
from recipes.engines.easyr1 import source
from recipes.engines.easyr1 import translation as easyr1
from recipes.engines.verl import translation as verl
from recipes.errors import RecipeError
from recipes.model_files import local_model, weight_files
from recipes.preflight import cluster, data_files, machine, memory, model, resume, reward, tools

Check = Callable[[Recipe], list[str] | resume.Start]


def check_engine(recipe: Recipe) -> list[str]:
    """Raise for a key that the engine cannot do."""
    (verl if recipe.engine == "verl" else easyr1).translate(recipe)
    return []


CHECKS: dict[str, tuple[Check, tuple[str, ...]]] = {
    "engine": (check_engine, ()),
    "gpus": (machine.check_gpus, ()),
    "machine": (machine.check_machine, ()),
    "cluster": (cluster.check_cluster, ()),
    "model": (model.check_model, ()),
    "context": (model.check_context, ()),
    "chat template": (model.check_chat_template, ("model",)),
    "tensor parallelism": (model.check_tensor_parallel, ()),
    "memory": (memory.check_memory, ()),
    "resume": (resume.check_resume, ()),
    "data": (data_files.check_data, ()),
    "tools": (tools.check_tools, ("chat template",)),
    "prompt lengths": (data_files.check_prompt_lengths, ("data", "chat template")),
    "disk": (machine.check_disk, ("machine", "model")),
    "reward": (reward.check_reward, ("data",)),
    "weights": (model.check_weights, ("model",)),
    "images": (data_files.check_images, ("data", "model")),
}
"""Check -> (the function, the checks that must have passed before it says anything of use); quick ones first.

A function raises a `RecipeError` for what would stop the run and returns remarks on what would not; that of `resume`
returns the start, which has its remarks.
"""


@dataclass
class Findings:
    """Errors stop a run, remarks do not; `skipped` checks needed one that failed."""

    errors: list[RecipeError] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    start: resume.Start = field(default_factory=lambda: resume.Start(None))  # a fresh one where it was not checked


OF_MACHINE = ("gpus", "machine", "cluster", "resume", "disk", "weights")
"""Checks of this machine, which say nothing of GPUs that are elsewhere."""
FILES = (".py", ".yaml", ".json", ".jinja")
"""Ends of what verl's own keys of paths name where it is no folder and no model."""


def check_before_data(recipe: Recipe, plan_only: bool = False) -> list[str]:
    """Raise for what would stop the run and needs no data: files that keys name, values, GPUs, engine's version,
    kernels; return remarks. With `plan_only` nothing is started here, and `dry` says whether the GPUs are here.
    """
    check_controls(os.environ)
    if not plan_only:
        refuse_planned(recipe)
        machine.check_gpus(recipe)
    read = [key for key in path_keys(recipe) if key.kind == "input" and key.key != "trainer.load_checkpoint_path"]
    refuse_missing(recipe, read)  # a checkpoint is looked for with the others of its run
    for name, value in native(recipe).items():
        local = name.endswith("path") and not any(mark in str(value) for mark in ("://", "${"))
        adapter = name.endswith("adapter_path") and str(value).startswith(("/", "."))  # or a name of the hub
        named = local and (str(value).endswith(FILES) or adapter)
        if named and not any((folder / value).exists() for folder in (Path(), Path(str(verl_package())).parent)):
            raise recipe.error(f"{value} does not exist", "mend the path", f"{NATIVE}{name}")
    check(recipe)
    found = []
    if recipe.resolution.planned_gpus is not None:
        return remarks(recipe)
    if recipe.engine == "easyr1":
        found = source.check(os.environ, recipe.hardware == "cpu")
    else:
        versions.check(recipe.hardware, vllm=recipe.trainer.patches and not plan_only)
        machine.check_rollout(recipe)
    return [*found, *remarks(recipe), *machine.check_kernels(recipe)]


def refuse_planned(recipe: Recipe) -> None:
    """Raise where the recipe is a plan for GPUs that need not be here."""
    if recipe.resolution.planned_gpus is not None:
        what = "the GPUs are planned for and need not be here, so that nothing can be started on them"
        raise recipe.error(what, "leave --gpus out, or set DRY_RUN=1", "trainer.n_gpus_per_node")


def findings(recipe: Recipe, skip: tuple[str, ...] = ()) -> Findings:
    """Run every check of `CHECKS`; one that depends on a failed or skipped one is skipped."""
    result = Findings()
    unusable = set(skip)
    for name, (run_check, needed) in CHECKS.items():
        if name in unusable or unusable & set(needed):
            unusable.add(name)
            result.skipped.append(name)
            continue
        try:
            found = run_check(recipe)
        except RecipeError as error:
            result.errors.append(error)
            unusable.add(name)
        else:
            if isinstance(found, resume.Start):
                result.start, found = found, [*found.remarks]
            result.remarks += found
    return result


def dry(recipe: Recipe, skip: tuple[str, ...] = ("cluster",)) -> Findings:
    """The findings of a dry run: data that the start would make first is no error, and checks that need it are skipped.

    Of a plan for GPUs that are not here, the machine is not checked, nor a model or data that are not here. A plan can
    be made before several machines are named.
    """
    missing = data_files.missing(recipe) if "data" not in skip else []
    to_prepare = bool(missing and recipe.prepare) and not any(key.source.by_user for key in missing)
    if recipe.resolution.planned_gpus is not None:
        here = local_model(recipe.worker.actor.model.model_path)
        skip = (*skip, *OF_MACHINE, *["data"] * bool(missing), *["model"] * (here is None or not weight_files(here)))
    result = findings(recipe, skip=(*skip, *["data"] * to_prepare))
    if to_prepare:
        result.remarks.append(f"the data is made at the start: python {' '.join(recipe.prepare)}")
    return result


def heading(recipe: Recipe) -> str:
    """One line on what is run: recipe, engine, hardware, model, experiment."""
    model = recipe.worker.actor.model.model_path
    if recipe.resolution.is_tiny and not recipe.source_of("worker.actor.model.model_path").by_user:
        model = "tiny model and data"
        if recipe.source_of("data.train_files").by_user:
            model = "tiny model, since no model is given; your data (MODEL_PATH=... trains another)"
    name = recipe.experiment
    return f"{recipe.name} on {recipe.engine}, {recipe.hardware}: {model}; experiment {name}"
