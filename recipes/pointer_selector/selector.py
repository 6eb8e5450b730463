"""Trained selectors: saved, loaded, and used: `PointerSelector.from_pretrained(folder).select(query, pool, shots)`.

A checkpoint is a folder with config.json and model.safetensors. An experiment's folder holds two, `warm_up` and `best`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.errors import RecipeError, first_line
from recipes.files import whole_folder, write_json
from recipes.pointer_selector.config import PolicyConfig
from recipes.pointer_selector.policy import PointerPolicy, choose_device, greedy

WARM_UP, BEST = "warm_up", "best"


def description(policy: PointerPolicy, shot_num: int) -> dict[str, Any]:
    """Return a policy's entries in config.json; training loads only a checkpoint whose entries are the same."""
    widths = {"query_width": policy.query_width, "pool_width": policy.pool_width}
    return {"policy": policy.config.model_dump(), **widths, "shot_num": shot_num}


def save(folder: Path, policy: PointerPolicy, shot_num: int, mark: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all, in place of a former one. `mark`: further entries of config.json."""
    from safetensors.torch import save_file

    config = {**description(policy, shot_num), **mark}
    weights = {name: value.detach().cpu().contiguous() for name, value in policy.state_dict().items()}
    with whole_folder(folder) as draft:
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(weights, draft / "model.safetensors")
        if folder.name == BEST:  # as `recipes.runs` reads the best checkpoint of a run
            write_json(draft / "best.json", {"metric": "validation", "reward": "", "validation": "", **mark})


def load(folder: str | Path) -> tuple[PointerPolicy, dict[str, Any]]:
    """Return the policy of a checkpoint, or of an experiment's best one, in evaluation mode, and its config.json.

    Raises:
        RecipeError: there is no checkpoint, or a broken one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    checkpoint = Path(folder) / BEST if (Path(folder) / BEST).is_dir() else Path(folder)
    if not (checkpoint / "model.safetensors").is_file():
        fix = "give a folder that training wrote"
        raise RecipeError("there is no trained selector here", where=str(folder), fix=fix)
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        policy = PointerPolicy(PolicyConfig(**config["policy"]), config["query_width"], config["pool_width"])
        policy.load_state_dict(load_file(checkpoint / "model.safetensors"))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        what = f"the selector cannot be read: {first_line(error)}"
        fix = "it was cut off or written by another version; train again"
        raise RecipeError(what, where=str(checkpoint), fix=fix) from error
    return policy.eval(), config


class PointerSelector:
    """Chooses demonstrations for queries.

    Attributes:
        policy: the policy in evaluation mode.
        shot_num: the number of picks that it was trained for.
    """

    def __init__(self, policy: PointerPolicy, shot_num: int) -> None:
        self.policy, self.shot_num = policy.eval(), shot_num

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> PointerSelector:
        """Load a checkpoint, or the best one of an experiment's folder (`artifacts/checkpoints/<experiment>`).

        Args:
            folder: the checkpoint's or the experiment's folder.
            device: auto (a GPU if there is one), cpu or gpu.

        Raises:
            RecipeError: there is no checkpoint, or a broken one; or no GPU where one was asked for.
        """
        policy, config = load(folder)
        return cls(policy.to(choose_device(device)), config["shot_num"])

    @torch.inference_mode()
    def select(self, query: np.ndarray | Tensor, pool: np.ndarray | Tensor, shots: int) -> list[int]:
        """Return rows of the pool in the order in which to show them; each pick is the most likely remaining example.

        Args:
            query: [D].
            pool: [K, D].
            shots: how many examples to pick.

        Raises:
            RecipeError: embeddings of another size or not finite, a pool with fewer examples than `shots`, or more
                shots than the selector was trained for.
        """
        if not 1 <= shots <= min(self.shot_num, len(pool)):
            what = f"{shots} of {len(pool)} examples were asked for; the selector was trained for {self.shot_num} shots"
            raise RecipeError(what, where="shots", fix=f"ask for 1 to {min(self.shot_num, len(pool))}")
        inputs = [torch.as_tensor(each).float().to(self.policy.device) for each in (query, pool)]
        sizes, trained = tuple(each.shape[-1] for each in inputs), (self.policy.query_width, self.policy.pool_width)
        if sizes != trained or not all(torch.isfinite(each).all() for each in inputs):
            what = f"query and pool have {sizes} features; the selector was trained on {trained}, all of them finite"
            raise RecipeError(what, where="query, pool", fix="embed with the same encoder as in training")
        mask = torch.ones(1, len(pool), dtype=torch.bool, device=self.policy.device)
        encoded = self.policy.encode(inputs[0][None], inputs[1][None], mask)
        picks: list[int] = greedy(self.policy, encoded, shots)[0].tolist()
        return picks
