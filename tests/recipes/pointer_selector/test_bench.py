"""The benchmark measures the same loss in both ways, and what it writes is read back."""

from __future__ import annotations

import numpy as np
import torch
from pointer_testing import make_policy, write_data

from recipes.pointer_selector import bench
from recipes.pointer_selector.batches import collate
from recipes.pointer_selector.config import PolicyConfig, RewardConfig
from recipes.pointer_selector.data import read_data
from recipes.pointer_selector.phases import Tables, rce_step
from recipes.pointer_selector.rewards import rewards


def test_one_at_a_time_is_the_same_loss(tmp_path):
    path, table = write_data(tmp_path, shots=(1, 3))
    data = read_data(path, table, table)
    tables = Tables(torch.from_numpy(rewards(data, RewardConfig(mode="probability"))))
    found = bench.compare(make_policy().float(), data, tables, queries=8, repeats=1)
    assert found.loss_difference < 1e-5
    assert found.gradient_difference < 1e-4
    assert found.speed_up > 1


def test_growth_reads_and_trains(tmp_path):
    found = bench.growth(tmp_path, 50, PolicyConfig(hidden=16), RewardConfig(mode="correctness"))
    assert found.queries == 50
    assert min(found.read_ms, found.train_ms, found.peak_mib) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_loss_does_not_depend_on_the_batch_it_is_in(tmp_path):
    """Padding again, end to end: the mean over queries one by one is the loss of all of them together."""
    path, table = write_data(tmp_path, shots=(1, 2))
    data = read_data(path, table, table)
    tables = Tables(torch.from_numpy(rewards(data, RewardConfig(mode="probability"))).double())
    policy, step = make_policy(), rce_step(0.5)

    def loss(queries):
        batch = collate(data, np.array(queries))
        batch = type(batch)(**{**batch.__dict__, "query": batch.query.double(), "pool": batch.pool.double()})
        return float(step(policy, batch, tables)[0].detach())

    alone = [loss([query]) for query in range(6)]
    assert abs(loss(range(6)) - np.mean(alone)) < 1e-9
