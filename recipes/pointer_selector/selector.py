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
from recipes.pointer_selector.policy import PointerPolicy, beam, choose_device, greedy, sample

Array: TypeAlias = np.ndarray | Tensor | Sequence[Any]
METHODS = ("greedy", "beam", "sample")
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

    def select(
        self,
        query: Array,
        pool: Array | Sequence[Array],
        shots: int,
        *,
        method: str = "greedy",
        beam_width: int = 5,
        seed: int = 0,
        ids: Sequence[Any] | None = None,
        extrapolate: bool = False,
    ) -> list[int] | list[list[int]]:
        """Return indices into the pool, in the order in which the examples should be shown.

        Args:
            query: [D], or [B, D] for several queries.
            pool: [K, D] for all of them, or one [K_i, D] for each.
            shots: how many examples to pick.
            method: "greedy"; "beam", the best sequence that a beam of `beam_width` finds; or "sample", with `seed`.
            ids: names of the queries, for messages; their numbers otherwise.
            extrapolate: allow more picks than the selector was trained for.

        Returns:
            A list of indices for one query [D], a list of such lists for [B, D].

        Raises:
            RecipeError: embeddings of another size or not finite, a pool with fewer examples than `shots`, or more
                shots than the selector was trained for; names the query.
        """
        if method not in METHODS:
            raise RecipeError(f"there is no method {method!r}", where="select", fix=f"use one of {', '.join(METHODS)}")
        if not 1 <= shots <= (shots if extrapolate else self.shot_num):
            raise RecipeError(
                f"the selector was trained for {self.shot_num} shots, and {shots} were asked for",
                where="select",
                fix=f"ask for 1 to {self.shot_num}, or pass extrapolate=True",
            )
        queries = _tensor(query)
        single = queries.ndim == 1
        queries = queries[None] if single else queries
        names = [str(name) for name in (range(len(queries)) if ids is None else ids)]
        pools = _pools(pool, len(queries))
        self._check(queries, pools, names, shots)
        padded = torch.nn.utils.rnn.pad_sequence(pools, batch_first=True)
        mask = torch.arange(padded.shape[1]) < torch.tensor([len(pool) for pool in pools])[:, None]
        device = next(self.policy.parameters()).device
        with torch.inference_mode():
            encoded = self.policy.encode(queries.to(device), padded.to(device), mask.to(device))
            if method == "greedy":
                picks = greedy(self.policy, encoded, shots)[0]
            elif method == "beam":
                picks = beam(self.policy, encoded, shots, beam_width)[0][:, 0]
            else:
                picks = sample(self.policy, encoded, shots, 1, torch.Generator().manual_seed(seed))[0][:, 0]
        return picks[0].tolist() if single else picks.tolist()

    def _check(self, queries: Tensor, pools: list[Tensor], names: list[str], shots: int) -> None:
        if not len(queries) == len(names) == len(pools):
            raise RecipeError(f"{len(queries)} queries, {len(pools)} pools and {len(names)} ids", where="select")
        trained = self.policy.query_width, self.policy.pool_width
        for query, pool, name in zip(queries, pools, names, strict=True):
            sizes = query.shape[-1], pool.shape[-1] if pool.ndim == 2 else None
            what = fix = ""
            if sizes != trained:
                what = (
                    f"query {name!r} and its pool have {sizes[0]} and {sizes[1]} features; the selector was trained on "
                    f"{trained[0]} and {trained[1]}"
                )
                fix = "embed with the same encoder as in training"
            elif not (torch.isfinite(query).all() and torch.isfinite(pool).all()):
                what = f"an embedding of query {name!r} or its pool is not finite"
            elif len(pool) < shots:
                what = f"the pool of query {name!r} has {len(pool)} examples, fewer than {shots} shots"
            if what:
                raise RecipeError(what, where=f"query {name!r}", fix=fix)


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values)).float()


def _pools(pool: Array | Sequence[Array], count: int) -> list[Tensor]:
    """Return one [K_i, D] for each query, out of one for all or one for each."""
    if isinstance(pool, np.ndarray | Tensor):
        shared = _tensor(pool)
        return [shared] * count if shared.ndim == 2 else list(shared)
    each = [_tensor(one) for one in pool]
    return [torch.stack(each)] * count if each and each[0].ndim == 1 else each
