"""Responses of a prompt with pictures stay together where every update's share of a rank has whole groups."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.transferqueue_utils import KVBatchMeta

from recipes.engines.verl import trainer


@pytest.mark.parametrize(
    ("of_update", "shuffle", "budget", "together"),
    [(8, False, 40, 2), (2, False, 40, 1), (8, True, 40, 1), (8, False, 19, 1)],
)
def test_whole_groups_in_each_update(monkeypatch, of_update, shuffle, budget, together):
    monkeypatch.setattr(PPOTrainerSync, "_balance_batch", lambda self, batch, metrics: batch)
    passes = {"log_prob_max_token_len_per_gpu": budget}
    actor = {"use_dynamic_bsz": True, "shuffle": shuffle, "ppo_mini_batch_size": of_update}
    actor["ppo_max_token_len_per_gpu"] = budget
    settings = {"actor_rollout_ref": {"actor": actor, "rollout": {**passes, "n": 2}, "ref": passes}}
    ours = object.__new__(trainer.Trainer)
    ours.config, ours.processor = OmegaConf.create(settings), object()
    ours.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1, 2, 3]})
    keys = [f"{prompt}_{session}_0" for session in range(2) for prompt in "abcdefgh"]
    batch = KVBatchMeta(keys=keys, tags=[{"seq_len": 10} for _ in keys], partition_id="train")
    ours._balance_batch(batch, {})
    assert ours._together == together
    pairs = zip(batch.keys[::2], batch.keys[1::2], strict=True)
    assert all(one[0] == other[0] for one, other in pairs) == (together == 2)
