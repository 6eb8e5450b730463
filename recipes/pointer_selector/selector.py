"""Trained selectors: saved, loaded, and used: `PointerSelector.from_pretrained(folder).select(query, pool, shots)`.

A checkpoint is a folder with config.json and model.safetensors. An experiment's folder holds two, `warm_up` and `best`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from recipes.errors import RecipeError
from recipes.files import whole_folder
from recipes.pointer_selector.config import PolicyConfig
from recipes.pointer_selector.policy import PointerPolicy, choose_device, greedy

Array: TypeAlias = np.ndarray | Tensor | Sequence[Any]
WARM_UP, BEST = "warm_up", "best"


def save(folder: Path, policy: PointerPolicy, shot_num: int, mark: Mapping[str, Any]) -> None:
    """Write a checkpoint; the folder is whole or absent, and a former one is replaced. `mark` says what it is of."""
    from safetensors.torch import save_file

    config = {
        "policy": policy.config.model_dump(),
        "query_width": policy.query_width,
        "pool_width": policy.pool_width,
        "shot_num": shot_num,
        **mark,
    }
    weights = {name: value.detach().cpu().contiguous() for name, value in policy.state_dict().items()}
    with whole_folder(folder) as draft:
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(weights, draft / "model.safetensors")


def load(folder: str | Path) -> tuple[PointerPolicy, dict[str, Any]]:
    """Return the policy of a checkpoint, or of an experiment's best one, in evaluation mode, and its config.json.

    Raises:
        RecipeError: no checkpoint, a broken one, or one of another layout.
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
        raise RecipeError(
            f"the selector cannot be read: {str(error).splitlines()[0]}",
            where=str(checkpoint),
            fix="it was cut off or written by another version; train again",
        ) from error
    return policy.eval(), config


class PointerSelector:
    """Chooses demonstrations for queries.

    Attributes:
        policy: in evaluation mode.
        shot_num: the number of picks that it was trained for.
    """

    def __init__(self, policy: PointerPolicy, shot_num: int) -> None:
        self.policy, self.shot_num = policy.eval(), shot_num

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> PointerSelector:
        """Load a checkpoint, or the best one of an experiment's folder (`artifacts/checkpoints/<experiment>`).

        Args:
            folder: of the checkpoint or the experiment.
            device: auto (a GPU if there is one), cpu or gpu.

        Raises:
            RecipeError: there is none, or it is broken; or no GPU where one was asked for.
        """
        policy, config = load(folder)
        return cls(policy.to(choose_device(device)), config["shot_num"])

    def select(self, query: Array, pool: Array | Sequence[Array], shots: int) -> list[int] | list[list[int]]:
        """Return indices into the pool, in the order in which the examples should be shown.

        Args:
            query: [D], or [B, D] for several queries.
            pool: [K, D] for all of them, or one [K_i, D] for each.
            shots: how many examples to pick, each time the most likely one.

        Returns:
            A list of indices for one query [D], a list of such lists for [B, D].

        Raises:
            RecipeError: embeddings of another size or not finite, a pool with fewer examples than `shots`, or more
                shots than the selector was trained for; names the query by its number.
        """
        if not 1 <= shots <= self.shot_num:
            what = f"the selector was trained for {self.shot_num} shots, and {shots} were asked for"
            raise RecipeError(what, where="select", fix=f"ask for 1 to {self.shot_num}")
        queries = _tensor(query)
        single = queries.ndim == 1
        queries = queries[None] if single else queries
        shared = isinstance(pool, np.ndarray | Tensor) and pool.ndim == 2
        pools = [_tensor(pool)] * len(queries) if shared else [_tensor(one) for one in pool]
        self._check(queries, pools, shots)
        padded = torch.nn.utils.rnn.pad_sequence(pools, batch_first=True)
        mask = torch.arange(padded.shape[1]) < torch.tensor([len(pool) for pool in pools])[:, None]
        device = self.policy.device
        with torch.inference_mode():
            encoded = self.policy.encode(queries.to(device), padded.to(device), mask.to(device))
            picks: list[list[int]] = greedy(self.policy, encoded, shots).tolist()
        return picks[0] if single else picks

    def _check(self, queries: Tensor, pools: Sequence[Tensor], shots: int) -> None:
        if len(queries) != len(pools):
            raise RecipeError(f"{len(queries)} queries and {len(pools)} pools", where="select", fix="give one for each")
        trained = self.policy.query_width, self.policy.pool_width
        for number, (query, pool) in enumerate(zip(queries, pools, strict=True)):
            sizes = query.shape[-1], pool.shape[-1]
            where = f"query {number}"
            if sizes != trained:
                what = f"query and pool have {sizes} features; the selector was trained on {trained}"
                raise RecipeError(what, where=where, fix="embed with the same encoder as in training")
            if not (torch.isfinite(query).all() and torch.isfinite(pool).all()):
                raise RecipeError("an embedding of the query or its pool is not finite", where=where)
            if len(pool) < shots:
                raise RecipeError(f"the pool has {len(pool)} examples, fewer than {shots} shots", where=where)


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values)).float()
