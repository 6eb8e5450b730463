"""Small policies, random batches and small data sets that the tests of this folder share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from recipes.pointer_selector.config import PolicyConfig
from recipes.pointer_selector.policy import PointerPolicy


def make_policy(seed: int = 0, layers: int = 2, width: int = 6, **config) -> PointerPolicy:
    torch.manual_seed(seed)
    settings = {"hidden": 16, "heads": 2, "layers": layers, "dropout": 0.0, "start": "random", **config}
    made = PointerPolicy(PolicyConfig(**settings), width, width).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def random_inputs(batch: int = 3, slots: int = 7, width: int = 6, seed: int = 0, sizes: list[int] | None = None):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    pool = torch.randn(batch, slots, width, generator=generator, dtype=torch.float64)
    limit = torch.tensor(sizes or [slots] * batch)
    mask = torch.arange(slots) < limit[:, None]
    return query, pool * mask[..., None], mask


def write_data(folder: Path, *, queries: int = 12, pool: int = 6, width: int = 6, shots=(1, 2)):
    """A small candidate file with pools of different sizes, and its embeddings; returns their paths."""
    rng = np.random.default_rng(0)
    examples = 20
    records = []
    for query in range(queries):
        ids = rng.choice(examples, pool + query % 3, replace=False).tolist()
        candidates = []
        for count in shots:
            for number in range(4):
                candidate = {
                    "gen_method": ("beam", "sample", "random")[number % 3],
                    "vqa_correct": int(rng.random() < 0.5),
                }
                candidate |= {"pointer": rng.choice(ids, count, replace=False).tolist()}
                candidate |= {"beam_score": float(rng.normal()), "another_key": float(rng.normal())}
                candidate |= {"vqa_acc_score": float(rng.random()), "vqa_gt_prob": float(rng.random())}
                candidates.append(candidate)
        split = ("train", "train", "validation", "test")[query % 4]
        records.append({"query_id": query, "pool": ids, "split": split, "pointer_candidates": candidates})
    folder.mkdir(parents=True, exist_ok=True)
    path, table = folder / "candidates.jsonl", folder / "embeddings.npz"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    np.savez(
        table,
        query_embeddings=rng.normal(size=(queries, width)).astype(np.float32),
        candidate_embeddings=rng.normal(size=(examples, width)).astype(np.float32),
    )
    return path, table


SMALL_WORKLOAD = {"frozen_images": 40, "train_images": 30, "validation_images": 10, "test_images": 10}
SMALL_WORKLOAD["pool_size"] = 8
