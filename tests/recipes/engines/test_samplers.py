"""Dynamic sampling: verl's own buffer over a queue in memory, and the bound that keeps it from going on for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from verl.trainer.ppo.v1 import replay_buffer

from recipes.engines.samplers import BoundedReplayBuffer

BATCH = 2


class Queue:
    """As much of TransferQueue as the buffer asks for; every prompt has two wrong responses at once."""

    def __init__(self, name="accuracy"):
        self.tags, self.prompts, self.name = {}, 0, name

    def add(self, prompts):
        for _ in range(prompts):
            uid = f"p{self.prompts}"
            self.prompts += 1
            self.tags[uid] = {"is_prompt": True, "status": "finished", "global_steps": 1}
            self.tags |= {f"{uid}_{session}_0": {} for session in range(2)}

    def kv_list(self):
        return {"train": dict(self.tags)}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {"extra_fields": [{"reward_extra_info": {self.name: 0, "format": len(key)}} for key in keys]}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.tags.pop(key, None)


@pytest.mark.parametrize(("most", "name"), [(1, "accuracy"), (3, "accuracy"), (1, "acc"), (1, "score")])
def test_a_reward_that_never_differs_ends_the_step_whatever_it_calls_its_accuracy(monkeypatch, most, name):
    queue = Queue(name)
    monkeypatch.setattr(replay_buffer, "tq", queue)
    groups = {"enable": True, "metric": "accuracy", "max_num_gen_batches": most, "max_inflight_gen_batches": 1}
    buffer = BoundedReplayBuffer(
        trainer_mode="sync",
        trainer_config=SimpleNamespace(),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={"filter_groups": groups, "train_batch_size": BATCH},
        refill_fn=queue.add,
        poll_interval=0,
    )
    queue.add(BATCH)
    with pytest.raises(RuntimeError, match=f"{most} batches of 2 prompts did not give 2 groups .* '{name}'"):
        buffer.sample(global_steps=1, partition_id="train", batch_size=BATCH)
    assert queue.prompts == most * BATCH
