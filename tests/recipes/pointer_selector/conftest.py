"""One thread, a small workload, small data and small policies."""

import json

import numpy as np
import pytest
import torch

from recipes.pointer_selector import workload
from recipes.pointer_selector.config import PolicyConfig
from recipes.pointer_selector.dataset import read_data
from recipes.pointer_selector.selector import PointerPolicy


@pytest.fixture(scope="session", autouse=True)
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "SIZES", {"frozen": 40, "validation": 10, "test": 10, "train": 30})
        patch.setattr(workload, "POOL", 8)
        yield


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_policy():
    """An untied policy in float64 whose residual branches are not zero, as after some training."""

    def make(seed=0, layers=2):
        torch.manual_seed(seed)
        config = PolicyConfig(hidden=16, layers=layers, dropout=0.0)
        made = PointerPolicy(config, 6, 6).double().eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return made

    return make


@pytest.fixture(scope="session")
def write_data():
    """A small candidate file with pools of different sizes, and its embeddings; returns their paths."""

    def write(folder, queries=12):
        rng = np.random.default_rng(0)
        records = []
        for query in range(queries):
            pool = rng.choice(20, 6 + query % 3, replace=False).tolist()
            candidates = []
            for number in range(8):
                candidate = {
                    "gen_method": ("beam", "sample", "random")[number % 3],
                    "vqa_correct": int(rng.random() < 0.5),
                    "pointer": rng.choice(pool, 1 + number // 4, replace=False).tolist(),
                    "beam_score": float(rng.normal()),
                    "another_key": float(rng.normal()),
                    "vqa_acc_score": float(rng.random()),
                    "vqa_gt_prob": float(rng.random()),
                }
                candidates.append(candidate)
            split = ("train", "train", "validation", "test")[query % 4]
            records.append({"query_id": query, "pool": pool, "split": split, "pointer_candidates": candidates})
        folder.mkdir(parents=True, exist_ok=True)
        path, table = folder / "candidates.jsonl", folder / "embeddings.npz"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        rows = {
            f"{role}_embeddings": rng.normal(size=(count, 6)).astype(np.float32)
            for role, count in {"query": queries, "candidate": 20}.items()
        }
        np.savez(table, **rows)
        return path, table

    return write


@pytest.fixture
def data(tmp_path, write_data):
    """Twelve queries with two groups of four candidates each."""
    path, table = write_data(tmp_path)
    return read_data(path, table, table)
