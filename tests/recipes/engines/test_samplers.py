"""Dynamic sampling: verl's own buffer over a queue in memory, and the bound that keeps it from going on for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

GROUP, BATCH = 2, 2


class Queue:
    """As much of TransferQueue as the buffer asks for; every prompt is answered at once."""

    def __init__(self, answers):
        self.answers = iter(answers)
        self.tags, self.fields, self.prompts = {}, {}, 0

    def add(self, prompts):
        for _ in range(prompts):
            uid = f"p{self.prompts}"
            self.prompts += 1
            self.tags[uid] = {"is_prompt": True, "status": "finished", "global_steps": 1}
            for session, accuracy in enumerate(next(self.answers)):
                key = f"{uid}_{session}_0"
                self.tags[key] = {}
                self.fields[key] = {"reward_extra_info": {"accuracy": accuracy}}

    def kv_list(self):
        return {"train": dict(self.tags)}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {"extra_fields": [self.fields[key] for key in keys]}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.tags.pop(key, None)


@pytest.fixture
def buffer_over(monkeypatch):
    """A buffer whose prompts get these answers, and its queue, which holds the first batch already."""
    from verl.trainer.ppo.v1 import replay_buffer

    from recipes.engines.samplers import BoundedReplayBuffer

    def make(answers, most):
        queue = Queue(answers)
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
        return buffer, queue

    return make


def test_groups_that_agree_are_replaced_until_the_batch_is_whole(buffer_over):
    answers = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 0), (1, 0)]
    buffer, _ = buffer_over(answers, most=20)
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=BATCH)
    assert len(batch.keys) == BATCH * GROUP
    assert {key.split("_")[0] for key in batch.keys} <= {"p1", "p3", "p5"}
    assert metrics["training/filter_groups/evicted_samples"] >= 2


@pytest.mark.parametrize(("most", "generated"), [(3, 3 * BATCH), (1, BATCH)])
def test_a_reward_that_never_differs_ends_the_step(buffer_over, most, generated):
    buffer, queue = buffer_over(iter(lambda: (0, 0), None), most=most)
    with pytest.raises(RuntimeError, match=f"{most} batches of 2 prompts did not give 2 groups .* 'accuracy'"):
        buffer.sample(global_steps=1, partition_id="train", batch_size=BATCH)
    assert queue.prompts == generated


FILTER = ("algorithm.online_filtering=true", "algorithm.filter_key=accuracy")


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [(FILTER, 20), ((*FILTER, "trainer.max_try_make_batch=-1"), 0), ((), None), (("+data.gen_batch_size=2",), None)],
)
def test_verl_makes_our_buffer_as_it_makes_its_own(composed, arguments, limit):
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    class Trainer:
        trainer_mode = "sync"
        _build_replay_buffer = PPOTrainer._build_replay_buffer
        _resolve_filter_groups_metric = PPOTrainer._resolve_filter_groups_metric

        def _add_prompts_to_generate(self, prompts): ...

    trainer, made = Trainer(), []
    config = composed(*arguments, hardware="cpu")
    for place in (None, "pkg://recipes.engines.samplers"):
        sampler = {"custom_sampler": {"path": place, "name": "BoundedReplayBuffer"}}
        trainer.config = OmegaConf.merge(config, {"trainer": {"v1": {"sampler": sampler}}})
        buffer = trainer._build_replay_buffer()
        made.append({key: value for key, value in vars(buffer).items() if isinstance(value, str | int | float | None)})
    assert type(buffer).__name__ == "BoundedReplayBuffer"
    assert made[0].items() <= made[1].items()
    assert made[1]["filter_groups_metric"] == ("accuracy" if limit is not None else None)
    assert buffer._most == (limit or 0)
    sampler = composed(*arguments).trainer.v1.sampler.custom_sampler
    assert sampler.name == ("BoundedReplayBuffer" if limit else None), "on GPUs ours is used where it bounds something"
