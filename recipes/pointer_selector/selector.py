"""The policy, a bi-encoder whose query attends over its pool and points at one example after another, and decoding.

Shapes: B queries, K pool slots (padded), N candidate sequences a query, S picks, H hidden size. A checkpoint is a
folder with config.json and model.safetensors; an experiment's folder holds two, `warm_up` and `best`. Trained selectors
are used by `PointerSelector.from_pretrained(folder).select(query, pool, shots)`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from recipes.errors import RecipeError, first_line
from recipes.files import whole_folder, write_json
from recipes.pointer_selector.config import PolicyConfig

HEADS = 4
"""Attention heads; `policy.hidden` is a multiple of it."""
MASKED = -1e9
"""Logit of a slot that may not be picked. Finite, so that a row without any free slot gives no NaN."""


@dataclass(frozen=True)
class Encoded:
    """Results of one pass over a pool, for every step of decoding."""

    state: Tensor  # [B, H], the query after attention
    keys: Tensor  # [B, K, H], unit vectors that scores are taken against
    values: Tensor  # [B, K, 2H], each slot's part of gate and proposal, so that a step only projects the state
    mask: Tensor  # [B, K], true where the slot holds an example


class Tower(nn.Module):
    """One side of the bi-encoder: a projection to H, then a residual two-layer perceptron."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(width, hidden, bias=False)
        self.norm = nn.LayerNorm(hidden)
        self.widen = nn.Linear(hidden, hidden)
        self.narrow = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., width] -> [..., H]."""
        projected = self.project(functional.normalize(inputs, dim=-1)) * math.sqrt(self.norm.normalized_shape[0])
        update = self.narrow(self.dropout(functional.gelu(self.widen(self.norm(projected)))))
        return projected + update


class CrossAttention(nn.Module):
    """The query attends over its pool; residual, then LayerNorm."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key_value = nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, pool: Tensor, mask: Tensor) -> Tensor:
        """[B, H], [B, K, H], [B, K] -> [B, H]."""
        batch, slots, hidden = pool.shape
        query = self.query(state).view(batch, HEADS, 1, hidden // HEADS)
        key, value = self.key_value(pool).view(batch, slots, 2, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(hidden // HEADS)
        weights = scores.masked_fill(~mask[:, None, None, :], MASKED).softmax(-1)
        found = self.out((weights @ value).reshape(batch, hidden))
        return self.norm(state + self.dropout(found))


class PointerPolicy(nn.Module):
    """Picks S examples out of a pool of K for a query, one at a time, without replacement."""

    def __init__(self, config: PolicyConfig, query_width: int, pool_width: int) -> None:
        super().__init__()
        self.config, self.query_width, self.pool_width = config, query_width, pool_width
        hidden = config.hidden
        self.query_tower = Tower(query_width, hidden, config.dropout)
        self.pool_tower = Tower(pool_width, hidden, config.dropout)
        self.layers = nn.ModuleList(CrossAttention(hidden, config.dropout) for _ in range(config.layers))
        self.gate_state = nn.Linear(hidden, 2 * hidden)
        self.gate_pick = nn.Linear(hidden, 2 * hidden, bias=False)
        self.state_norm = nn.LayerNorm(hidden)
        # It begins as a nearest-neighbour retriever: every residual branch starts at zero, the gate almost shut, and
        # both towers with one orthogonal projection, so that cosine scores are close to those of the embeddings. Where
        # queries and pool have embeddings of different widths, each tower has a projection of its own.
        for branch in (self.query_tower.narrow, self.pool_tower.narrow, *(layer.out for layer in self.layers)):
            nn.init.zeros_(branch.weight)
            nn.init.zeros_(branch.bias)
        nn.init.constant_(self.gate_state.bias[:hidden], -3.0)
        nn.init.orthogonal_(self.query_tower.project.weight)
        nn.init.orthogonal_(self.pool_tower.project.weight)
        if query_width == pool_width:
            self.pool_tower.project.load_state_dict(self.query_tower.project.state_dict())

    @property
    def device(self) -> torch.device:
        return self.gate_state.weight.device

    def encode(self, query: Tensor, pool: Tensor, mask: Tensor) -> Encoded:
        """Pass over the pool once: query [B, Dq], pool [B, K, Dp], mask [B, K] -> what decoding needs."""
        state, slots = self.query_tower(query), self.pool_tower(pool)
        for layer in self.layers:
            state = layer(state, slots, mask)
        return Encoded(state, functional.normalize(slots, dim=-1), self.gate_pick(slots), mask)

    def log_probs(self, encoded: Encoded, state: Tensor, free: Tensor) -> Tensor:
        """Return log-probability of each slot as the next pick: state [B, N, H], free [B, N, K] -> [B, N, K]."""
        scores = functional.normalize(state, dim=-1) @ encoded.keys.transpose(-1, -2) / self.config.temperature
        return scores.masked_fill(~free, MASKED).log_softmax(-1)

    def update(self, encoded: Encoded, state: Tensor, picks: Tensor) -> Tensor:
        """Return the state after a pick, through a gate as in a GRU: [B, N or 1, H], picks [B, N] -> [B, N, H]."""
        batch, slots, _ = encoded.values.shape
        rows = picks + slots * torch.arange(batch, device=picks.device)[:, None]
        picked = encoded.values.flatten(0, 1)[rows]  # whole rows: faster than a gather along 2H, forward and backward
        gate, proposal = (self.gate_state(state) + picked).chunk(2, dim=-1)
        return self.state_norm(torch.lerp(state, proposal.tanh(), gate.sigmoid()))

    def step_log_probs(
        self, inputs: tuple[Tensor, Tensor, Tensor], pointers: Tensor, steps: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of given sequences, and entropies in nats of their steps without gradient, each [B, N, S].

        `inputs` are the arguments of `encode`; `pointers` [B, N, S] are slots, `steps` [B, N, S] true where there is a
        pick, and all are 0 elsewhere. It loops over picks only. Candidates sorted by their number of picks take the
        least work: a step leaves out the leading candidates that have no pick at this step in any query.
        """
        encoded = self.encode(*inputs)
        picks = pointers.shape[-1]
        state, free = encoded.state[:, None], encoded.mask[:, None]  # before the first pick one row serves all N
        first = steps.any(0).int().argmax(0).tolist()
        chosen, entropies = [], []
        for step in range(picks):
            begin, pick = first[step], pointers[:, first[step] :, step]
            log_probs = self.log_probs(encoded, state, free)
            entropy = -(log_probs.exp() * log_probs).sum(-1).detach()
            here = log_probs.expand(-1, pick.shape[1], -1).gather(-1, pick[..., None]).squeeze(-1)
            chosen.append(functional.pad(here, (begin, 0)))
            entropies.append(functional.pad(entropy.expand_as(here), (begin, 0)))
            if step + 1 < picks:
                skip = first[step + 1] - begin  # candidates that end here need no further state
                pick = pick[:, skip:]
                if step:
                    state, free = state[:, skip:], free[:, skip:]
                free = free.expand(-1, pick.shape[1], -1).scatter(-1, pick[..., None], False)
                state = self.update(encoded, state, pick)
        return torch.stack(chosen, -1) * steps, torch.stack(entropies, -1) * steps


def greedy(policy: PointerPolicy, encoded: Encoded, shots: int) -> Tensor:
    """Return the most likely slot at each step: picks [B, S]."""
    walk = _walk(policy, encoded, 1, shots, lambda log_probs, _: log_probs.argmax(-1))
    return torch.cat([pick for _, pick in walk], -1)


def sample(policy: PointerPolicy, encoded: Encoded, shots: int, draws: int, generator: torch.Generator) -> Tensor:
    """Return `draws` sequences a query: picks [B, N, S].

    For each pick one uniform number chooses a slot through the cumulative distribution, so that neither the padding of
    a pool nor the values of other queries in the batch change what the same stream of numbers draws.
    """
    uniform = torch.rand(len(encoded.state), draws, shots, generator=generator).to(encoded.state.device).double()

    def choose(log_probs: Tensor, step: int) -> Tensor:
        cumulative = log_probs.exp().double().cumsum(-1)
        below = uniform[..., step] * cumulative[..., -1]  # less than the total, so a slot with probability is found
        return torch.searchsorted(cumulative, below[..., None], right=True).squeeze(-1)

    return torch.stack([pick for _, pick in _walk(policy, encoded, draws, shots, choose)], -1)


def exact_kl(
    policy: PointerPolicy, reference: PointerPolicy, inputs: tuple[Tensor, Tensor, Tensor], picks: Tensor
) -> Tensor:
    """Return KL(policy || reference) of the next pick, summed over slots and over the steps along `picks`: [B, N].

    With `picks` [B, N, S] drawn from the policy, the mean over draws estimates the KL of whole sequences without bias,
    whereas k3 over logged candidates does not.
    """
    _, rows, shots = picks.shape
    walks = [_walk(p, p.encode(*inputs), rows, shots, lambda _, step: picks[..., step]) for p in (policy, reference)]
    # Slots that are not free have probability 0 and finite logarithms, so they add nothing.
    return sum((here.exp() * (here - there)).sum(-1) for (here, _), (there, _) in zip(*walks, strict=True))


def _walk(
    policy: PointerPolicy, encoded: Encoded, rows: int, shots: int, choose: Callable[[Tensor, int], Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pick by pick: log-probabilities of the slots [B, N, K], and the pick [B, N] that `choose` makes of them."""
    state = encoded.state[:, None].expand(-1, rows, -1)
    free = encoded.mask[:, None].expand(-1, rows, -1)
    for step in range(shots):
        log_probs = policy.log_probs(encoded, state, free)
        pick = choose(log_probs, step)
        yield log_probs, pick
        if step + 1 < shots:
            free = free.scatter(-1, pick[..., None], False)
            state = policy.update(encoded, state, pick)


def choose_device(wanted: str) -> torch.device:
    """The device for `trainer.device`: with `auto` a GPU if there is one, with `gpu` RecipeError if there is none."""
    available = torch.cuda.is_available()
    if wanted == "gpu" and not available:
        what = "a GPU was asked for, and torch sees none"
        raise RecipeError(what, where="trainer.device", fix="use auto or cpu")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


WARM_UP, BEST = "warm_up", "best"


def description(policy: PointerPolicy, shot_num: int) -> dict[str, Any]:
    """A policy's entries in config.json; training loads only a checkpoint whose entries are the same."""
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
    """The policy of a checkpoint, or of an experiment's best one, in evaluation mode, and its config.json.

    Raises RecipeError where there is no checkpoint, or a broken one.
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
    """Chooses demonstrations for queries by `policy`, which was trained for `shot_num` picks."""

    def __init__(self, policy: PointerPolicy, shot_num: int) -> None:
        self.policy, self.shot_num = policy.eval(), shot_num

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> PointerSelector:
        """Load a checkpoint, or the best one of an experiment's folder (`artifacts/checkpoints/<experiment>`).

        `device` is auto (a GPU if there is one), cpu or gpu. Raises RecipeError where there is no checkpoint, a broken
        one, or no GPU where one was asked for.
        """
        policy, config = load(folder)
        return cls(policy.to(choose_device(device)), config["shot_num"])

    @torch.inference_mode()
    def select(self, query: np.ndarray | Tensor, pool: np.ndarray | Tensor, shots: int) -> list[int]:
        """Rows of the pool [K, D] to show for a query [D], in order; each pick is the most likely remaining example.

        Raises RecipeError for embeddings of another size or not finite, a pool with fewer examples than `shots`, and
        more shots than the selector was trained for.
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
        return greedy(self.policy, encoded, shots)[0].tolist()
