"""Checkpoints that are whole or absent: written aside and renamed, found through small pointer files.

<folder>/global_step_<n>/{config.json,model.safetensors,trainer_state.pt}
<folder>/latest_checkpointed_iteration.txt   the step to resume from
<folder>/best.json, <folder>/warm_up.json    which step is best by validation, overall and in the warm-up
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from recipes.config.layers import flatten
from recipes.errors import RecipeError
from recipes.files import whole_folder
from recipes.pointer_selector.config import PointerRecipe, PolicyConfig
from recipes.pointer_selector.dataset import PointerData
from recipes.pointer_selector.policy import PointerPolicy

LATEST = "latest_checkpointed_iteration.txt"
FORMAT = 2
FREE = (
    "name", "workload.", "data.candidates", "data.query_embeddings", "data.candidate_embeddings",
    "data.frozen_model", "validation.batch_size", "trainer.experiment_name", "trainer.project_name", "trainer.logger",
    "trainer.resume", "trainer.save_steps", "trainer.device", "trainer.threads",
)  # fmt: skip
"""Keys that may change between a run and its continuation; the data itself is compared by content."""


def save(folder: Path, step: int, policy: PointerPolicy, shot_num: int, state: Mapping[str, Any] | None) -> Path:
    """Write `global_step_<step>`; the weights alone where `state` is None. A folder of that step is replaced."""
    from safetensors.torch import save_file

    config = {
        "format": FORMAT,
        "policy": policy.config.model_dump(),
        "query_width": policy.query_width,
        "pool_width": policy.pool_width,
        "shot_num": shot_num,
        "step": step,
    }
    weights = {name: value.detach().cpu().contiguous() for name, value in policy.state_dict().items()}
    target = folder / f"global_step_{step}"
    with whole_folder(target) as draft:
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(weights, draft / "model.safetensors")
        if state is not None:
            torch.save(dict(state), draft / "trainer_state.pt")
    return target


def marked(folder: Path, name: str) -> Path | None:
    """Return the checkpoint that `best.json` or `warm_up.json` names, or None where there is no such file."""
    path = folder / name
    return folder / str(json.loads(path.read_text(encoding="utf-8"))["folder"]) if path.is_file() else None


def latest(folder: Path) -> Path | None:
    """Return the checkpoint to resume from, or None where there is none."""
    path = folder / LATEST
    if not path.is_file():
        return None
    checkpoint = folder / f"global_step_{path.read_text(encoding='utf-8').strip()}"
    if not (checkpoint / "trainer_state.pt").is_file():
        raise RecipeError(
            f"{LATEST} names {checkpoint.name}, which cannot be resumed from",
            where=str(folder),
            fix="choose another EXPERIMENT_NAME, or remove the folder",
        )
    return checkpoint


def prune(folder: Path, keep: set[str]) -> None:
    """Remove checkpoints that no pointer names, and what an interrupted write left behind."""
    for path in folder.glob("global_step_*"):
        if path.name not in keep:
            shutil.rmtree(path)
    for draft in (*folder.glob(".global_step_*"), *folder.glob("*.tmp")):
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return the trainer's state; tensors and plain values only, nothing pickled is executed."""
    try:
        state: dict[str, Any] = torch.load(checkpoint / "trainer_state.pt", map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise RecipeError(
            f"the trainer's state is broken: {str(error).splitlines()[0]}",
            where=str(checkpoint),
            fix="choose another EXPERIMENT_NAME, or remove the folder",
        ) from error
    return state


def resolve(folder: str | Path) -> Path:
    """Return the checkpoint that a folder stands for: itself, or the best one of an experiment's folder.

    Raises:
        RecipeError: there is none.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        return folder
    best = marked(folder, "best.json")
    if best is None or not (best / "model.safetensors").is_file():
        raise RecipeError(
            "there is no trained selector here", where=str(folder), fix="give a folder that training wrote"
        )
    return best


def load_policy(folder: str | Path) -> tuple[PointerPolicy, dict[str, Any]]:
    """Return the policy of a checkpoint in evaluation mode, and its config.json.

    Raises:
        RecipeError: no checkpoint, a broken one, or one of another layout.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    checkpoint = resolve(folder)
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        policy = PointerPolicy(PolicyConfig(**config["policy"]), config["query_width"], config["pool_width"])
        weights = load_file(checkpoint / "model.safetensors")
        if config["format"] == 1:  # the layers of attention had other names
            renamed = {".ask.": ".query.", ".offer.": ".key_value."}
            for old, new in renamed.items():
                weights = {name.replace(old, new): value for name, value in weights.items()}
        policy.load_state_dict(weights)
    except (SafetensorError, json.JSONDecodeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(
            f"the selector cannot be read: {str(error).splitlines()[0]}",
            where=str(checkpoint),
            fix="it was cut off or written by another version; train again",
        ) from error
    return policy.eval(), config


def require_like(
    policy: PointerPolicy, loaded: PointerPolicy, config: Mapping[str, Any], shot_num: int, where: str
) -> None:
    """Refuse a checkpoint of another architecture, for embeddings of another size, or for another number of shots."""
    _require_shots(config["shot_num"], shot_num, where, f"set SHOT_NUM={config['shot_num']}, or train for {shot_num}")
    ours, theirs = ((p.config.model_dump(), p.query_width, p.pool_width) for p in (policy, loaded))
    if ours != theirs:
        raise RecipeError(
            f"the checkpoint is {theirs[0]} for embeddings of {theirs[1]} and {theirs[2]} features, "
            f"and this run asks for {ours[0]} with {ours[1]} and {ours[2]}",
            where=where,
            fix="use the keys under policy, and the embeddings, that it was trained with",
        )


def _require_shots(trained_for: int, asked: int, where: str, fix: str) -> None:
    if trained_for != asked:
        what = f"the checkpoint was trained for {trained_for} shots, and this run asks for {asked}"
        raise RecipeError(what, where=where, fix=fix)


def fingerprint(recipe: PointerRecipe, *parts: PointerData) -> dict[str, Any]:
    """Return keys that decide the result, and one digest of the data."""
    keys = {path: value for path, value in flatten(recipe.model_dump()).items() if not path.startswith(FREE)}
    return {"keys": keys, "data": hashlib.sha256("".join(part.digest() for part in parts).encode()).hexdigest()}


def require_same(saved: dict[str, Any], now: dict[str, Any], where: str) -> None:
    """Refuse to resume another run.

    Raises:
        RecipeError: a key that decides the result, or the data, is not what the checkpoint was trained with.
    """
    fix = "set it back, or choose another EXPERIMENT_NAME for a new run"
    before, after = saved["keys"], now["keys"]
    _require_shots(before.get("data.shot_num"), after["data.shot_num"], where, fix)
    defaults = flatten(PointerRecipe().model_dump())  # of keys that the checkpoint is older than
    pairs = {key: (before.get(key, defaults[key]), value) for key, value in after.items()}
    changed = [f"{key}: {old!r} -> {new!r}" for key, (old, new) in pairs.items() if old != new]
    if changed:
        raise RecipeError(f"the checkpoint belongs to another recipe ({'; '.join(changed)})", where=where, fix=fix)
    if saved["data"] != now["data"]:
        fix = "bring the data back, or choose another EXPERIMENT_NAME"
        raise RecipeError("the checkpoint was trained on other data", where=where, fix=fix)
