"""Throughput of the loss, batched and one candidate at a time; the cost of a query as queries grow; the recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from recipes.paths import ROOT
from recipes.pointer_selector.config import PolicyConfig, RewardConfig
from recipes.pointer_selector.data import Batch, PointerData, collate, read_data, shuffled
from recipes.pointer_selector.losses import rewards
from recipes.pointer_selector.metrics import memory_peak_mib
from recipes.pointer_selector.policy import PointerPolicy
from recipes.pointer_selector.training import Tables, rce_step, update

TAU = 0.5


@dataclass(frozen=True)
class Comparison:
    """Candidates a second, forward and backward, and how far the two ways are apart."""

    batched: float
    one_at_a_time: float
    loss_difference: float
    gradient_difference: float


def compare(policy: PointerPolicy, data: PointerData, tables: Tables, queries: int, repeats: int) -> Comparison:
    """Both ways on the same queries in the same process; the best of `repeats` runs counts for each."""
    policy.eval()  # dropout would draw other numbers in the two ways
    batch = collate(data, np.arange(queries))
    fast, loss, gradient = _timed(policy, lambda: rce_step(TAU)(policy, batch, tables)[0], repeats)
    slow, slow_loss, slow_gradient = _timed(policy, lambda: one_at_a_time(policy, batch, tables), repeats)
    count = int(batch.candidates.sum())
    apart = float((gradient - slow_gradient).norm() / slow_gradient.norm())
    return Comparison(count / fast, count / slow, abs(loss - slow_loss), apart)


def _timed(policy: PointerPolicy, loss_of: Callable[[], torch.Tensor], repeats: int):
    """(seconds of the fastest run, loss, gradient)."""
    seconds = []
    for _ in range(repeats + 1):  # the first run warms up
        policy.zero_grad()
        started = time.perf_counter()
        loss = loss_of()
        loss.backward()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:]), float(loss.detach()), torch.cat([p.grad.flatten() for p in policy.parameters()])


def one_at_a_time(policy: PointerPolicy, batch: Batch, tables: Tables) -> torch.Tensor:
    """The warm-up's loss with a Python loop over queries, groups and candidates; one pass of the policy for each."""
    total, groups = torch.zeros(()), 0
    for row in range(len(batch.query)):
        inputs = (batch.query[row, None], batch.pool[row, None], batch.pool_mask[row, None])
        for group in range(batch.candidates.shape[1]):
            members = batch.candidates[row, group].nonzero().flatten().tolist()
            if not members:
                continue
            groups += 1
            weights = (tables.rewards[batch.rows[row, group, members]] / TAU).softmax(0)
            for weight, member in zip(weights, members, strict=True):
                column = group * batch.candidates.shape[2] + member
                length = int(batch.steps[row, column].sum())
                pointer = batch.pointers[row, column, :length]
                steps = torch.ones(1, 1, length, dtype=torch.bool)
                log_probs, _ = policy.step_log_probs(inputs, pointer[None, None], steps)
                total = total - weight * log_probs.sum() / length
    return total / groups


@dataclass(frozen=True)
class Growth:
    """Milliseconds of CPU a query for reading and for one epoch of updates, and the process's peak memory so far (MiB).

    CPU time, so that what else the machine does is not counted.
    """

    queries: int
    read_ms: float
    train_ms: float
    peak_mib: float


def growth(folder: Path, queries: int, policy_config: PolicyConfig, batch_size: int = 32) -> Growth:
    """Read `queries` queries from disk and train one epoch of RCE on them."""
    candidates, table = _write_queries(folder, queries)
    started = time.process_time()
    data = read_data(candidates, table, table)
    tables = Tables(torch.from_numpy(rewards(data, RewardConfig(mode="correctness"))))
    read = time.process_time() - started
    policy = PointerPolicy(policy_config, data.queries.width, data.examples.width)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    started = time.process_time()
    for chosen in shuffled(len(data), batch_size, 0, "rce", 0):
        loss, _ = rce_step(TAU)(policy, collate(data, chosen), tables)
        update(policy, optimizer, loss, 1e-4, 1.0)
    train = time.process_time() - started
    candidates.unlink()
    table.unlink()
    return Growth(queries, 1e3 * read / queries, 1e3 * train / queries, memory_peak_mib())


def _write_queries(folder: Path, queries: int, width: int = 32, pool: int = 16, examples: int = 2000):
    """A candidate file of random queries, written as a stream, and its embeddings."""
    rng = np.random.default_rng(0)
    path, table = folder / f"candidates_{queries}.json", folder / f"embeddings_{queries}.npz"
    with path.open("w", encoding="utf-8") as file:
        for query in range(queries):
            items = rng.choice(examples, pool, replace=False).tolist()
            candidates = [
                {"pointer": [items[slot] for slot in rng.permutation(pool)[:2]], "vqa_correct": int(rng.integers(2))}
                for _ in range(8)
            ]
            record = json.dumps({"pool": items, "pointer_candidates": candidates})
            file.write(f'{"," if query else "{"}"{query}":{record}')
        file.write("}")
    tables = {"query_embeddings": queries, "candidate_embeddings": examples}
    np.savez(table, **{name: rng.normal(size=(rows, width)).astype(np.float32) for name, rows in tables.items()})
    return path, table


def default_recipe(folder: Path) -> dict:
    """The launcher's command from nothing, data included, in a process of its own; `folder` takes what it makes."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train_pointer_selector.py")],
        env={**os.environ, "ARTIFACTS_DIR": str(folder)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    summary = json.loads((folder / "runs" / "pointer_selector" / "summary.json").read_text(encoding="utf-8"))
    return {"seconds": round(seconds, 1), "peak_mib": summary["peak_mib"], "test": summary["test"]}
