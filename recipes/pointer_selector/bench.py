"""Throughput of the loss, batched and one candidate at a time, and the cost of a query as queries grow."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from recipes.pointer_selector.batches import Batch, collate, shuffled
from recipes.pointer_selector.data import PointerData, read_data
from recipes.pointer_selector.machine import memory_peak_mib
from recipes.pointer_selector.phases import Tables, rce_step, update
from recipes.pointer_selector.policy import PointerPolicy
from recipes.pointer_selector.rewards import rewards

TAU = 0.5


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
                log_probs, _ = policy.step_log_probs(
                    inputs, pointer[None, None], torch.ones(1, 1, length, dtype=torch.bool)
                )
                total = total - weight * log_probs.sum() / length
    return total / groups


@dataclass(frozen=True)
class Comparison:
    """Candidates a second, forward and backward, and how far the two ways are apart."""

    batched: float
    one_at_a_time: float
    loss_difference: float
    gradient_difference: float

    @property
    def speed_up(self) -> float:
        return self.batched / self.one_at_a_time


def compare(policy: PointerPolicy, data: PointerData, tables: Tables, queries: int, repeats: int) -> Comparison:
    """Both ways on the same queries in the same process; the best of `repeats` runs counts for each."""
    policy.eval()  # dropout would draw other numbers in the two ways
    batch = collate(data, np.arange(queries))
    count = int(batch.candidates.sum())
    found = []
    for way in (lambda: rce_step(TAU)(policy, batch, tables)[0], lambda: one_at_a_time(policy, batch, tables)):
        seconds = []
        for _ in range(repeats + 1):  # the first run warms up
            policy.zero_grad()
            started = time.perf_counter()
            loss = way()
            loss.backward()
            seconds.append(time.perf_counter() - started)
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
        found.append((count / min(seconds[1:]), float(loss.detach()), gradient))
    (fast, fast_loss, fast_gradient), (slow, slow_loss, slow_gradient) = found
    apart = float((fast_gradient - slow_gradient).norm() / slow_gradient.norm())
    return Comparison(fast, slow, abs(fast_loss - slow_loss), apart)


def write_queries(
    folder: Path, queries: int, *, width: int = 32, pool: int = 16, examples: int = 2000
) -> tuple[Path, Path]:
    """A candidate file of random queries, written as a stream, and its embeddings."""
    rng = np.random.default_rng(0)
    path, table = folder / f"candidates_{queries}.json", folder / f"embeddings_{queries}.npz"
    with path.open("w", encoding="utf-8") as file:
        file.write("{")
        for query in range(queries):
            items = rng.choice(examples, pool, replace=False).tolist()
            candidates = [
                {
                    "pointer": [items[slot] for slot in rng.permutation(pool)[:2]],
                    "gen_method": "random",
                    "beam_score": round(float(rng.random()), 4),
                    "vqa_correct": int(rng.integers(2)),
                }
                for _ in range(8)
            ]
            file.write(
                ("," if query else "") + f'"{query}":' + json.dumps({"pool": items, "pointer_candidates": candidates})
            )
        file.write("}")
    query_embeddings = rng.normal(size=(queries, width)).astype(np.float32)
    np.savez(
        table,
        query_embeddings=query_embeddings,
        candidate_embeddings=rng.normal(size=(examples, width)).astype(np.float32),
    )
    return path, table


@dataclass(frozen=True)
class Growth:
    """Milliseconds of CPU a query for reading and for one epoch of updates, and the process's peak memory so far (MiB).

    CPU time, so that what else the machine does is not counted.
    """

    queries: int
    read_ms: float
    train_ms: float
    peak_mib: float


def growth(folder: Path, queries: int, policy_config, reward_config, batch_size: int = 32) -> Growth:
    """Read `queries` queries from disk and train one epoch of RCE on them."""
    candidates, table = write_queries(folder, queries)
    started = time.process_time()
    data = read_data(candidates, table, table)
    tables = Tables(torch.from_numpy(rewards(data, reward_config)))
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
