"""The machine, before the trainer starts: folders, loggers, disk, and kernels of libraries that it may lack."""

import ast
import importlib.util
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from itertools import chain
from pathlib import Path

from recipes.config import Recipe, path_keys, total_steps, visible_gpus
from recipes.config.gpus import frozen_bytes, lacks, model_shape
from recipes.data.rows import row_count
from recipes.engines.checkpoints import last_checkpoint
from recipes.engines.verl.translation import saves_adapters_alone
from recipes.errors import RecipeError, counted, did_you_mean
from recipes.memory.estimates import number_bytes
from recipes.model_files import local_model
from recipes.paths import artifacts, existing, run_dir
from recipes.preflight import resume

LONGEST_TMPDIR = 35
"""Characters of a TMPDIR with which Ray's sockets have paths of at most 107, the most of a Unix socket."""


def make_usable(environ: MutableMapping[str, str]) -> list[str]:
    """Replace a TMPDIR too long for Ray's sockets and a home that takes no caches, with a remark on each."""
    remarks = []
    if environ.get("RAY_ADDRESS") == "local":  # Ray's word for no cluster
        del environ["RAY_ADDRESS"]
    if len(environ.get("TMPDIR", "")) > LONGEST_TMPDIR:
        remarks.append(f"TMPDIR has over {LONGEST_TMPDIR} characters, too long for Ray's sockets: /tmp is used instead")
        environ["TMPDIR"] = "/tmp"
    home = Path(environ.get("HOME") or "~").expanduser()
    if not home.is_absolute() or _refusal(home / ".cache"):
        own = artifacts() / "home"
        own.mkdir(parents=True, exist_ok=True)
        hub = home / ".cache" / "huggingface"
        if hub.is_dir():
            environ.setdefault("HF_HOME", str(hub))
        remarks.append(f"nothing can be written below HOME={environ.get('HOME', '')}: caches are in {own}")
        environ["HOME"] = str(own)
    return remarks


def check_gpus(recipe: Recipe) -> list[str]:
    """Raise where the recipe takes more GPUs than this machine has."""
    wanted, gpus, key = recipe.trainer.n_gpus_per_node, visible_gpus(os.environ), "trainer.n_gpus_per_node"
    if recipe.hardware == "gpu" and wanted > gpus:
        has, fix = counted(gpus, "GPU"), f"set GPUS_PER_NODE={gpus}"
        if not gpus:
            has, fix = (
                "no NVIDIA GPU that a process may use",
                "set HARDWARE=cpu, or look at nvidia-smi and CUDA_VISIBLE_DEVICES",
            )
        fix += f"; --gpus {wanted}x80 with --plan or --dry_run plans for GPUs that are elsewhere"
        has += f" within CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}" * (visible_gpus({}) > gpus)
        raise recipe.error(f"{key} is {wanted}, but this machine has {has}", fix, key)
    return []


PACKAGES = ("wandb", "tensorboard", "swanlab", "mlflow")
"""Loggers whose Python package has the same name."""


def check_machine(recipe: Recipe) -> list[str]:
    """Raise where an output folder cannot be written, or a logger is not installed."""
    outputs = [(key.key, Path(key.path)) for key in path_keys(recipe) if key.kind == "output"]
    outputs.append(("the run's folder", run_dir(recipe.experiment)))
    for name, folder in outputs:
        if refusal := _refusal(folder):
            what = f"{folder} cannot be written: {refusal.strerror}"
            fix = "make that a folder that you may write to, or give another with CHECKPOINT_DIR or ARTIFACTS_DIR"
            raise RecipeError(what, where=f"{name}: {existing(folder)}", fix=fix) from refusal
    for logger in recipe.trainer.logger:
        if logger in PACKAGES and importlib.util.find_spec(logger) is None:
            fix = f"pip install {logger}, or leave {logger} out of LOGGER"
            raise recipe.error(f"the logger {logger} is not installed", fix, "trainer.logger")
    return []


def _refusal(folder: Path) -> OSError | None:
    """The error of making a folder there, or None; permissions say too little: root has them for /proc too."""
    try:
        os.rmdir(tempfile.mkdtemp(dir=existing(folder)))
    except OSError as error:
        return error
    return None


MARGIN = 512 << 20
"""Bytes for logs, rollouts and Ray's own files."""


def checkpoint_bytes(recipe: Recipe) -> int:
    """Size of one checkpoint; 0 for a model whose size is not known.

    The shards and Adam's two moments have the dtype of the trained weights. verl saves the Hugging Face model in that
    dtype too, or in that of the weights below adapters, EasyR1 in the dtype of its forward passes
    (`recipes.engines.easyr1.translation.environment`).
    """
    trainer, actor = recipe.trainer, recipe.worker.actor
    sizes, rank = model_shape(actor.model.model_path), actor.model.lora.rank
    if sizes is None:
        return 0
    adapters = recipe.engine == "verl" and saves_adapters_alone(recipe)
    sharded = sizes.adapter_parameters(rank) if adapters else sizes.parameters
    copies = 1 if trainer.save_model_only or (rank and not adapters) else 3
    trained, frozen = number_bytes(actor.fsdp.torch_dtype), frozen_bytes(recipe, actor.fsdp)
    weight = frozen if rank else trained
    loadable = number_bytes(actor.fsdp.mp_param_dtype) if recipe.engine == "easyr1" else weight
    model = sizes.parameters * loadable * trainer.save_hf_model
    return model + sharded * copies * (trained if adapters else weight)


def saves_in(recipe: Recipe, steps: int) -> int:
    """Checkpoints that so many steps save: every `trainer.save_freq`, and after the last one."""
    return max(0, -(-steps // recipe.trainer.save_freq)) if recipe.trainer.save_freq > 0 else 0


def most_checkpoints(recipe: Recipe, saves: int) -> int:
    """The most checkpoints that are on the disk at once, of an attempt that saves so many.

    Both engines delete before they save: `BaseCheckpointManager.ensure_checkpoint_capacity` of verl, EasyR1's
    `remove_obsolete_ckpt`. With a limit of 1 there are two: verl deletes the old one after the save, and EasyR1 never
    deletes the best by its own validation. `trainer.keep_best` keeps one more beyond the limit.
    """
    limit = recipe.trainer.save_limit
    return min(saves, max(2, limit) + recipe.trainer.keep_best) if limit > 0 else saves


def check_disk(recipe: Recipe) -> list[str]:
    """Raise where the checkpoints that this attempt saves will not fit beside those that are there."""
    folder = resume.folder(recipe)
    nearest = existing(folder)
    free, one, saves = shutil.disk_usage(nearest).free, 0, 0
    if recipe.trainer.save_freq > 0:
        steps = total_steps(recipe, row_count(recipe)) - resume.steps_done(recipe, last_checkpoint(folder))
        is_here = local_model(recipe.worker.actor.model.model_path) is not None
        one, saves = checkpoint_bytes(recipe) if is_here else 0, saves_in(recipe, steps)
    kept = most_checkpoints(recipe, saves)
    needed = kept * one + MARGIN
    if free < needed:
        raise RecipeError(
            f"the disk has {free / 1e9:.1f} GB free, but the run needs {needed / 1e9:.1f} GB: {kept} checkpoints of "
            f"{one / 1e9:.1f} GB, and logs",
            where=str(nearest),
            fix="make room, set ARTIFACTS_DIR or CHECKPOINT_DIR to a larger disk, or lower SAVE_LIMIT",
        )
    if saves and not one:
        return ["the model's size is not known here: its checkpoints are not held against the disk"]
    return []


def check_rollout(recipe: Recipe) -> None:
    """Raise for an engine that is not installed and arguments that vLLM lacks: verl's server would after a minute."""
    rollout, key = recipe.worker.rollout, "worker.rollout.engine_kwargs"
    engine = importlib.util.find_spec(rollout.name)
    if engine is None or engine.origin is None:
        fix = "leave worker.rollout.name out: vllm is what is tested here"
        raise recipe.error(f"{rollout.name} is not installed", fix, "worker.rollout.name")
    if rollout.name != "vllm" or not rollout.engine_kwargs:
        return
    known = _arguments_of_vllm(Path(engine.origin).parent)
    for name, value in rollout.engine_kwargs.items() if known else ():
        if value is not None and name.replace("-", "_").removeprefix("no_") not in known:
            raise recipe.error(f"vLLM has no argument {name}", did_you_mean(name, known) or "leave it out", key)


def _arguments_of_vllm(package: Path) -> set[str]:
    """Names of the arguments of vLLM's server, read from its source, whose import takes seconds; empty if not there."""
    files, known = [package / "engine/arg_utils.py", package / "entrypoints/openai/cli_args.py"], set[str]()
    trees = [ast.parse(file.read_bytes()) for file in files if all(map(Path.is_file, files))]
    for node in chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known.add(node.target.id)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("--"):
            known.add(str(node.value)[2:].replace("-", "_"))
    return known


SECTION = "docs/INSTALLATION.md, packed attention"
CANNOT_PACK = (None, "eager", "sdpa", "flash_attention_2")
"""Attention that needs flash-attn, or cannot separate packed responses without it; None is verl's own choice."""


def check_kernels(recipe: Recipe) -> list[str]:
    """Raise where packed responses would see each other or liger is lacking; remark on padding that is kept."""
    liger = "worker.actor.model.use_liger"
    if recipe.hardware == "gpu" and recipe.value(liger) and lacks("liger_kernel", os.environ):
        what = f"{liger} is true, and this machine has no liger-kernel"
        raise recipe.error(what, f"set {liger} to false, or install it", liger)
    attention, on_cpus = recipe.worker.actor.model.override_config.get("attn_implementation"), recipe.hardware == "cpu"
    decided = on_cpus and not (attention and recipe.source_of("worker.actor.model.override_config").by_user)
    if recipe.engine != "verl" or decided or not (on_cpus or lacks("flash_attn", os.environ)):
        return []
    actor, packing = recipe.worker.actor, recipe.source_of("worker.actor.padding_free")
    if actor.padding_free and attention in CANNOT_PACK:
        key, shown = "worker.actor.padding_free", attention or "flash_attention_2"
        fix = f"leave {key} and PADDING_FREE away, or install flash-attn ({SECTION})"
        what = f"{key} packs responses, and the attention {shown} cannot keep them apart here"
        raise recipe.error(what, "set PADDING_FREE=false" if on_cpus else fix, key)
    if on_cpus or actor.padding_free or packing.by_user:
        return []
    return [f"{packing}: padding is kept, and micro-batches have a fixed number of responses; see {SECTION}"]
