"""verl's replay buffer, polled every 0.05 s, with a limit on refills; `trainer.v1.sampler.custom_sampler` names it.

verl asks every 2.0 s whether the responses are finished (verl/trainer/ppo/v1/replay_buffer.py:409
(`time.sleep(self.poll_interval)`)): up to 2 s are lost in every step and validation.

Where the reward raises for a response, verl drops the response, fills the batch up with copies, and only logs that
(verl/trainer/ppo/v1/agent_loop_tq.py:140 (`status = "failure"`)). Here such a response ends the run.

verl 0.9.1 replaces groups that give no signal for as long as it takes (it warns that
`algorithm.filter_groups.max_num_gen_batches` is ignored): with a reward that is the same for every response, for ever.
"""

from typing import Any

from verl.trainer.ppo.v1 import replay_buffer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from recipes.errors import RESPONSE_FAILED
from recipes.rewards.contract import ACCURACY
from recipes.rewards.metrics import filter_metric

POLL_SECONDS = 0.05


class BoundedReplayBuffer(ReplayBuffer):
    """`ReplayBuffer` that gives a step up after `max_num_gen_batches` batches of prompts; 0 or less: never.

    verl gives a custom buffer no group filter (verl/trainer/ppo/v1/trainer_base.py:165 (`if not has_custom_sampler`)),
    so `sampler_kwargs` has the same keys.
    """

    filter_groups_metric: str | None

    def __init__(
        self, *, sampler_kwargs: Any, refill_fn: Any = None, poll_interval: float = POLL_SECONDS, **kwargs: Any
    ) -> None:
        given = sampler_kwargs or {}
        groups = given.get("filter_groups") or {}
        self._most = max(0, int(groups.get("max_num_gen_batches") or 0)) if groups.get("enable") else 0
        self._replaced, self._refill = 0, refill_fn
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            refill_fn=None if refill_fn is None else self._refill_within_bounds,
            poll_interval=poll_interval,
            **_filtering(given),
            **kwargs,
        )

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """A step's batch. Raises RuntimeError if the allowed batches of prompts give too few groups to train on."""
        self._replaced = 0
        return super().sample(*args, **kwargs)

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: Any) -> Any:
        """verl's choice. Raises RuntimeError for a failed response, unless the user lets verl replace failed groups.

        verl replaces none in a validation: it leaves them out.
        """
        failed = len(self.failure_keys[partition_id])
        if failed and (partition_id == "val" or not self.sync_refill_failed_groups):
            raise RuntimeError(f"{RESPONSE_FAILED} for {failed} of the prompts; the first error is in the log")
        return super()._sampleable_terminal_keys(partition_id, eviction_reasons)

    def _dapo_filtered_keys(self, partition_id: str) -> Any:
        """verl's choice of groups, by the accuracy that the reward states, or by its score where it states none."""
        if self.filter_groups_metric in ACCURACY and partition_id != "val":
            finished = self.finished_keys[partition_id]
            key = next((key for key in self.partitions[partition_id] if key.split("_")[0] in finished), None)
            if key is not None:
                asked = {"partition_id": partition_id, "select_fields": ["extra_fields"]}
                data = replay_buffer.tq.kv_batch_get(keys=[key], **asked)
                fields = next(iter(data["extra_fields"]))
                parts = getattr(fields, "data", fields).get("reward_extra_info", {})
                self.filter_groups_metric = filter_metric(self.filter_groups_metric, parts)
        return super()._dapo_filtered_keys(partition_id)

    def _refill_within_bounds(self, prompts: int) -> Any:
        prompts = min(prompts, self._left()) if self._most else prompts
        self._replaced += prompts
        return self._refill(prompts) if prompts else None

    def _left(self) -> int:
        """Prompts that the step may still draw."""
        return (self._most - 1) * (self.train_batch_size or 1) - self._replaced

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> Any:
        """verl's pause, taken where too few groups can be trained on. Raises RuntimeError where no more will come."""
        in_flight = self.pending_keys[partition_id] or self.running_keys[partition_id]
        if self._most and partition_id != "val" and not in_flight and not self._left():
            size = self.train_batch_size
            raise RuntimeError(
                f"dynamic sampling: {self._most} batches of {size} prompts did not give {size} groups whose responses "
                f"differ in {self.filter_groups_metric!r}. The task is too hard or too easy for the model, or the "
                "reward is constant: see trainer.max_try_make_batch and algorithm.filter_key"
            )
        return super()._wait_for_next_poll(partition_id, last_debug_time)


def _filtering(given: Any) -> dict[str, Any]:
    """The arguments that verl gives its own synchronous buffer (`PPOTrainer._build_replay_buffer`)."""
    groups = given.get("filter_groups") or {}
    filtered, refill = groups.get("enable", False), bool(given.get("sync_refill_failed_groups", False))
    size = given.get("train_batch_size")
    arguments = {
        "train_batch_size": size,
        "gen_batch_size": 1 if filtered or refill else given.get("gen_batch_size") or size,
        "sync_refill_failed_groups": refill,
    }
    if filtered:
        arguments["filter_groups_metric"] = str(groups["metric"])
        arguments["max_inflight_gen_batches"] = groups.get("max_inflight_gen_batches", 1)
    return arguments
