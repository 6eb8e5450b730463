"""Checkpoints: which steps are saved, and models that vLLM and transformers can load."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.files import whole_folder, write_whole

LORA_PREFIX = "base_model.model."
BASE = ".base_layer."
ADAPTERS = (".lora_A.default.weight", ".lora_B.default.weight")
INDEX = "model.safetensors.index.json"
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""Names of types in a safetensors file, and in a configuration."""

STOP_REQUEST = "stop"
"""File in the folder of the checkpoints; while it is there, the next save is the last."""
BEST, BEST_FACTS = "best", "best.json"

TRACKER = "latest_checkpointed_iteration.txt"
_RANK = re.compile(r"model_world_size_(\d+)_rank_\d+\.pt")
_STEP_FOLDER = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A saved step; `model` is its folder for vLLM and transformers, None if the weights were not written so."""

    step: int
    folder: Path
    model: Path | None


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint that a resumed run would go on from: verl's tracker file names it only when it is whole."""
    tracker = folder / TRACKER
    try:
        step = int(tracker.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None
    return checkpoint_at(folder, step)


def checkpoint_at(folder: Path, step: int) -> Checkpoint | None:
    """The checkpoint of one step, or None."""
    saved = folder / f"global_step_{step}"
    if not saved.is_dir():
        return None
    model = saved / "actor" / "huggingface"
    has_weights = any(model.glob("*.safetensors")) or any(model.glob("*.bin"))
    return Checkpoint(step, saved, model if has_weights else None)


def resumable(folder: Path) -> tuple[Checkpoint | None, str]:
    """The checkpoint to go on from, and what is wrong where that is not the one that verl's tracker names.

    Returns:
        The last whole checkpoint, None where there is none, and the problem, empty where there is none.
    """
    tracker = folder / TRACKER
    last = last_checkpoint(folder)
    if last:
        damaged = damaged_files(last.folder)
        if not damaged:
            return last, ""
        problem = f"{damaged[0].relative_to(folder)} is cut off"
    elif tracker.is_file():
        problem = f"{TRACKER} names no step that is there"
    else:
        problem = f"{TRACKER} is missing"
    whole = [step for step in saved_steps(folder) if _is_whole(folder / f"global_step_{step}")]
    if not whole and not tracker.is_file():
        return None, ""  # the first save was interrupted, or there was none
    return (checkpoint_at(folder, whole[-1]) if whole else None), problem


def go_on_from(checkpoint: Checkpoint) -> None:
    """Have verl resume from this checkpoint: its tracker names it."""
    write_whole(checkpoint.folder.parent / TRACKER, str(checkpoint.step))


def damaged_files(folder: Path) -> list[Path]:
    """The files of a step's folder that are cut off. torch's are zip archives, whose directory comes last."""
    files = (file for place in (folder, folder / "actor", folder / "critic") for file in sorted(place.glob("*.pt")))
    return [file for file in files if not zipfile.is_zipfile(file)]


def _is_whole(folder: Path) -> bool:
    """Whether verl had written everything: `data.pt` comes last, after the weights of every rank."""
    weights = [_RANK.fullmatch(file.name) for file in (folder / "actor").glob("model_world_size_*.pt")]
    ranks = {int(match.group(1)) for match in weights if match}
    every_rank = len(ranks) == 1 and len(weights) == ranks.pop()
    return every_rank and (folder / "data.pt").is_file() and not damaged_files(folder)


def saved_steps(folder: Path) -> list[int]:
    """Steps that have a folder with an actor in it, whole or not."""
    names = (_STEP_FOLDER.fullmatch(path.name) for path in folder.glob("global_step_*") if (path / "actor").is_dir())
    return sorted(int(name.group(1)) for name in names if name)


def request_stop(folder: Path) -> None:
    """Ask a running trainer to end after its next save (`checkpoint_callbacks.py`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP_REQUEST).touch()


def withdraw_stop(folder: Path) -> bool:
    """Take a request to stop back; whether there was one."""
    was_there = (folder / STOP_REQUEST).exists()
    (folder / STOP_REQUEST).unlink(missing_ok=True)
    return was_there


def keep_best(checkpoint: Checkpoint, facts: dict[str, Any]) -> Path:
    """Make a checkpoint the folder's `best`, which the limit on saved steps does not count and never deletes.

    Files are linked, so they take no room of their own until the step's folder is deleted; where the file system has no
    links they are copied. The earlier best stays until the new one is whole.

    Args:
        facts: written to best/best.json beside the step.

    Raises:
        OSError: no room, or no right to write.
    """
    best = checkpoint.folder.parent / BEST
    with whole_folder(best) as draft:
        shutil.copytree(checkpoint.folder, draft, copy_function=_link, dirs_exist_ok=True)
        _write_json(draft / BEST_FACTS, {"step": checkpoint.step, **facts})
    return best


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def best_checkpoint(folder: Path) -> tuple[int, float] | None:
    """Step and value of the kept best in a folder of checkpoints; None where there is none."""
    try:
        facts = json.loads((folder / BEST / BEST_FACTS).read_text(encoding="utf-8"))
        return int(facts["step"]), float(facts["value"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def merge_adapters(folder: Path) -> bool:
    """Merge LoRA adapters, if the model in this folder has any, into the weights that they belong to.

    Each weight W becomes W + (alpha / r) B A, in its own type; alpha and r are in `lora_train_meta.json` above.

    Returns:
        Whether there was something to merge. Files are replaced only after all new ones are written.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    shards, adapters, wrapped = sorted(folder.glob("*.safetensors")), {}, False
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            names = list(file.keys())
            wrapped = wrapped or any(name.startswith(LORA_PREFIX) for name in names)
            adapters |= {name: file.get_tensor(name) for name in names if name.endswith(ADAPTERS)}
    if not wrapped:
        return False
    meta = json.loads((folder.parent / "lora_train_meta.json").read_text(encoding="utf-8"))
    weight_map = {}
    for shard in shards:
        merged = _merged(load_file(shard), adapters, meta["lora_alpha"] / meta["r"])
        weight_map |= dict.fromkeys(merged, shard.name)
        save_file(merged, shard.with_suffix(".merged"), metadata={"format": "pt"})
    for shard in shards:
        os.replace(shard.with_suffix(".merged"), shard)
    if (folder / INDEX).is_file():
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        _write_json(folder / INDEX, {**index, "weight_map": weight_map})
    return True


def with_adapters(tensors: dict[str, Any], scaling: float) -> dict[str, Any]:
    """The tensors of a whole peft model, by the plain model's names, with the adapters in the weights."""
    return _merged(tensors, {name: value for name, value in tensors.items() if name.endswith(ADAPTERS)}, scaling)


def _merged(tensors: dict[str, Any], adapters: dict[str, Any], scaling: float) -> dict[str, Any]:
    """The tensors of a shard without the names and the adapters of peft."""
    merged = {}
    for name, tensor in tensors.items():
        if name.endswith(ADAPTERS):
            continue
        stem, marked, _ = name.rpartition(BASE)
        low, high = (adapters.get(stem + suffix) for suffix in ADAPTERS)
        if marked and name.endswith(".weight") and low is not None and high is not None:
            tensor = (tensor.float() + scaling * (high.float() @ low.float())).to(tensor.dtype)
        merged[name.removeprefix(LORA_PREFIX).replace(BASE, ".")] = tensor.contiguous()
    return merged


def name_the_type(folder: Path) -> None:
    """Rewrite `config.json` with the type of the tensors beside it, if there are any and they have one type."""
    from safetensors import safe_open

    shard = next(iter(sorted(folder.glob("*.safetensors"))), None)
    if shard is None or not (folder / "config.json").is_file():
        return
    with safe_open(shard, framework="pt") as file:
        types = {TYPES.get(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if len(types) == 1 and None not in types:
        values["dtype"] = types.pop()
    values.pop("attn_implementation", None)  # of the run that saved the model, not of the model
    _write_json(folder / "config.json", values)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_whole(path, json.dumps(values, indent=2, sort_keys=True) + "\n")
