"""Dynamic sampling: verl's own buffer over a queue in memory replaces groups without signal, within the bound."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.v1 import replay_buffer

from recipes.engines.verl.samplers import BoundedReplayBuffer
from recipes.errors import RESPONSE_FAILED

BATCH = 3
SIGNAL, RIGHT, WRONG, FAILED = (0, 1), (1, 1), (0, 0), ()
GROUPS = st.lists(st.sampled_from([SIGNAL, RIGHT, WRONG]), min_size=1, max_size=12)


class Queue:
    """As much of TransferQueue as the buffer asks for. Prompts get the accuracies given, in turn, by waiting.

    In each wait `at_once` prompts finish, the oldest first.
    """

    def __init__(self, groups: list[tuple[int, ...]], name: str, at_once: int = BATCH) -> None:
        self.groups, self.tags, self.prompts, self.name, self.waited_s = groups, {}, 0, name, 0.0
        self.at_once, self.partition = at_once, "train"

    def wait(self, seconds: float) -> None:
        self.waited_s += seconds
        running = [(uid, tag) for uid, tag in self.tags.items() if tag.get("status") == "running"]
        assert running, "nothing will ever finish"
        for uid, tag in running[: self.at_once]:
            tag["status"] = "finished" if self.groups[int(uid[1:]) % len(self.groups)] else "failure"

    def add(self, prompts: int) -> None:
        for _ in range(prompts):
            uid = f"p{self.prompts}"
            self.prompts += 1
            self.tags[uid] = {"is_prompt": True, "status": "running", "global_steps": 1}
            sessions = range(len(self.groups[int(uid[1:]) % len(self.groups)]))
            self.tags |= {f"{uid}_{session}_0": {} for session in sessions}

    def accuracy(self, key: str) -> int:
        uid, session, _ = key.split("_")
        return self.groups[int(uid[1:]) % len(self.groups)][int(session)]

    def kv_list(self):
        return {"train": {}, "val": {}, self.partition: dict(self.tags)}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {"extra_fields": [{"reward_extra_info": {self.name: self.accuracy(key)}} for key in keys]}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.tags.pop(key, None)


def filled(patch, groups, most, enable=True, inflight=1, name="accuracy", at_once=2 * BATCH, **more):
    """A buffer with a step's first prompts, and its queue; the reward calls its accuracy `name`."""
    queue = Queue(groups, name, at_once)
    patch.setattr(replay_buffer, "tq", queue)
    patch.setattr(replay_buffer.time, "sleep", queue.wait)
    filtering = {"metric": "accuracy", "max_num_gen_batches": most, "max_inflight_gen_batches": inflight}
    buffer = BoundedReplayBuffer(
        trainer_mode="sync",
        trainer_config=SimpleNamespace(),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={"filter_groups": {"enable": enable, **filtering}, "train_batch_size": BATCH, **more},
        refill_fn=queue.add,
    )
    queue.add(BATCH)
    return buffer, queue


def sample(buffer: BoundedReplayBuffer):
    return buffer.sample(global_steps=1, partition_id="train", batch_size=BATCH)


@settings(deadline=None, max_examples=50)
@given(GROUPS, st.integers(1, 5), st.integers(1, 2), st.integers(1, 2 * BATCH))
def test_a_step_has_only_groups_with_signal_or_ends_at_its_bound(groups, most, inflight, at_once):
    with pytest.MonkeyPatch.context() as patch:
        buffer, queue = filled(patch, groups, most, inflight=inflight, at_once=at_once)
        batch, given_up = None, ""
        try:
            batch, _ = sample(buffer)
        except RuntimeError as error:
            given_up = str(error)
        drawn = [groups[prompt % len(groups)] for prompt in range(queue.prompts)]
        if batch is None:
            assert "trainer.max_try_make_batch" in given_up, "the key"
            assert drawn.count(SIGNAL) < BATCH, "a step that has its groups is not given up"
            assert len(drawn) == most * BATCH, "nor one whose batches are not used up"
        else:
            assert len(batch.keys) == 2 * BATCH
            assert all({queue.accuracy(f"{key.split('_')[0]}_{s}_0") for s in (0, 1)} == {0, 1} for key in batch.keys)
            assert not [tag for tag in queue.tags.values() if tag.get("is_prompt")], "what was not taken is gone"
        assert len(drawn) <= most * BATCH


@pytest.mark.parametrize("name", ["acc", "score"])
def test_a_group_is_judged_by_whatever_name_the_reward_gives_its_accuracy(monkeypatch, name):
    buffer, _ = filled(monkeypatch, [SIGNAL, RIGHT, WRONG, SIGNAL, SIGNAL], most=0, name=name)
    batch, _ = sample(buffer)
    assert len({key.split("_")[0] for key in batch.keys} - {"p1", "p2", "p6", "p7"}) == BATCH


def test_the_bound_counts_each_step_anew(monkeypatch):
    buffer, queue = filled(monkeypatch, [SIGNAL, SIGNAL, WRONG, SIGNAL], most=2)
    for _ in range(4):
        batch, _ = sample(buffer)
        assert len(batch.keys) == 2 * BATCH
        queue.add(BATCH)


def test_without_filtering_every_group_is_trained_on(monkeypatch):
    buffer, queue = filled(monkeypatch, [WRONG], most=1, enable=False)
    batch, _ = sample(buffer)
    assert (len(batch.keys), queue.prompts) == (2 * BATCH, BATCH)
    assert 0 < queue.waited_s < 0.1, "verl's own interval of 2 s would round each step up"


def test_a_prompt_that_failed_ends_the_run_or_is_replaced_where_verls_key_asks_for_it(monkeypatch):
    groups = [SIGNAL, FAILED, SIGNAL, SIGNAL]
    buffer, queue = filled(monkeypatch, groups, most=0, enable=False, sync_refill_failed_groups=True)
    batch, _ = sample(buffer)
    assert ({key.split("_")[0] for key in batch.keys}, queue.prompts) == ({"p0", "p2", "p3"}, BATCH + 1)
    buffer, _ = filled(monkeypatch, groups, most=0, enable=False)
    with pytest.raises(RuntimeError, match=RESPONSE_FAILED):
        sample(buffer)


@pytest.mark.parametrize("replaces", [True, False])
def test_a_prompt_that_failed_in_a_validation_ends_the_run(monkeypatch, replaces):
    groups = [SIGNAL, FAILED, SIGNAL]
    buffer, queue = filled(monkeypatch, groups, most=0, enable=False, sync_refill_failed_groups=replaces)
    queue.partition = "val"
    with pytest.raises(RuntimeError, match=RESPONSE_FAILED):
        buffer.sample(global_steps=1, partition_id="val", batch_size=BATCH)
