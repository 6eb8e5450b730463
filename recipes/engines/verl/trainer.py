"""verl's trainer with the row's id, its data source and the reward's whole result in every line of its dumps.

verl identifies a response by a `uid` that it draws anew for every batch, so a question cannot be found again in the
next validation, and verl's training dumps keep only the score of a reward's result. verl's manager of agent loops
(`agent_loops.py`), through which all prompts pass in the same process, tells `Trainer` their rows. `recipes/dumps.py`
documents what a line has.
"""

import json
from pathlib import Path
from typing import Any

import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions, log_seqlen_unbalance
from verl.utils.transferqueue_utils import KVBatchMeta, kv_batch_meta2batch_meta

from recipes.dumps import COLUMN, DATA_SOURCE, DUMPED, ENDED, ROW_ID, TURNS
from recipes.engines.checkpoints import is_to_stop, keep_last, name_the_type, refuse_nan, withdraw_stop
from recipes.rewards.metrics import reward_metrics

IMAGES = "multi_modal_inputs"
"""The only column of a batch that a model reads although it is no tensor."""

_known: dict[str, dict[str, Any]] = {}
"""uid -> columns to add to its lines of the dump; kept until these are written."""


def remember_rows(prompts: TensorDict) -> None:
    """Record the id and the data source of each prompt's row. A row without the column `id` is dumped without one."""
    if COLUMN in prompts:
        sources = prompts["data_source"] if "data_source" in prompts else [None] * len(prompts)
        for uid, row, source in zip(prompts["uid"], prompts[COLUMN], sources, strict=True):
            _known[uid] = {ROW_ID: row, DATA_SOURCE: source}


class Trainer(PPOTrainerSync):
    """verl's synchronous trainer.

    verl/trainer/ppo/v1/trainer_base.py:1262 (`def _dump_generations`) and
    verl/trainer/ppo/v1/trainer_base.py:1297 (`def _log_rollout_data`) write neither a row's id nor its data source, and
    the second does not read the reward's result.
    """

    _results: dict[str, dict[str, Any]]
    """Key of a training response (uid, session, index) -> what its reward returned, while one dump is made."""

    _together: int
    """Responses of a prompt that follow one another in the batch and share a pass."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self._results = {}

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Keep the responses of a prompt with pictures together, on one rank and in one pass.

        The vision tower then sees their picture once (`pictures.py`). verl spreads responses by their lengths alone;
        here it spreads whole groups, where these can be told apart, fit in a pass and divide by the ranks, in the step
        and in each update.
        """
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        self._together = 1
        actor, rollout, ref = (self.config.actor_rollout_ref[part] for part in ("actor", "rollout", "ref"))
        if self.processor is None or not actor.use_dynamic_bsz or actor.shuffle:
            return batch
        by_uid: dict[str, list[int]] = {}
        for position, key in enumerate(batch.keys):
            by_uid.setdefault(_uid(key), []).append(position)
        groups, lengths = list(by_uid.values()), [tag["seq_len"] for tag in batch.tags]
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        tokens = [sum(lengths[row] for row in rows) for rows in groups]
        of_log_probs = min(part.log_prob_max_token_len_per_gpu for part in (rollout, ref))
        divides = not (len(groups) % ranks or actor.ppo_mini_batch_size % ranks)
        fits = max(tokens) <= min(actor.ppo_max_token_len_per_gpu, of_log_probs)
        if {len(rows) for rows in groups} != {rollout.n} or not divides or not fits:
            return batch
        parts = get_seqlen_balanced_partitions(tokens, k_partitions=ranks, equal_size=True)
        order = [[row for group in part for row in groups[group]] for part in parts]
        metrics.update(log_seqlen_unbalance(seqlen_list=lengths, partitions=order, prefix="global_seqlen"))
        batch.reorder([row for rows in order for row in rows])
        self._together = rollout.n
        return batch

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return super()._compute_old_log_prob(self._without_texts(batch), metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return super()._compute_ref_log_prob(self._without_texts(batch), metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._update_actor(self._without_texts(batch), metrics)
        refuse_nan(metrics, self.global_steps)
        return batch

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        """Make a step; it is saved, and the last, if the run was asked to end."""
        batch, settings = super().step(metrics, timing_raw), self.config.trainer
        if settings.save_freq > 0 and is_to_stop(Path(settings.default_local_dir)):
            settings.save_freq = 1
        return batch

    def _without_texts(self, batch: Any) -> Any:
        """Select the columns that a model's pass reads, and keep the rows together that `_balance_batch` did.

        verl sends each pass the rows' texts and dictionaries too, and builds one object for each of them:
        verl/utils/transferqueue_utils.py:309 (`fields = meta.fields`).
        """
        first = KVBatchMeta(keys=batch.keys[:1], tags=batch.tags[:1], partition_id=batch.partition_id)
        columns = kv_batch_meta2batch_meta(first).field_schema
        images = {IMAGES} if self.processor is not None else set()
        batch.extra_info["force_group_size"] = self._together
        batch.fields = [name for name, column in columns.items() if name in images or not column["is_non_tensor"]]
        return batch

    def _validate(self) -> dict[str, float]:
        """Write the dump before the metrics are logged: the launcher then measures the validation by it."""
        metrics: dict[str, float] = super()._validate()
        for dump in self._dump_futures:
            dump.result()
        return metrics

    def _dump_generations(self, *, reward_extra_infos_dict: dict[str, list[Any]], **given: Any) -> None:
        """Add the row's id, its data source and the reward's result to each line."""
        keys = reward_extra_infos_dict["uid"]
        lines = [{**self._results.get(key, {}), **_known.get(_uid(key), {})} for key in keys]
        names = dict.fromkeys(name for line in lines for name in line)
        added = {name: [line.get(name) for line in lines] for name in names}
        parts = {name: each for name, each in reward_extra_infos_dict.items() if name == "uid" or name not in DUMPED}
        columns = {**parts, **added}
        if ENDED in columns:  # a conversation, whose turns travelled as text
            columns[TURNS] = [json.loads(turns or "[]") for turns in columns[TURNS]]
        super()._dump_generations(reward_extra_infos_dict=columns, **given)
        for key in keys:
            _known.pop(_uid(key), None)

    def _log_rollout_data(self, batch: Any, timing_raw: dict[str, Any], rollout_data_dir: str) -> None:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        for key, fields in zip(batch.keys, data.pop("extra_fields").tolist(), strict=True):
            result = (fields or {}).get("reward_extra_info") or {}
            self._results[key] = {name: value for name, value in result.items() if name not in DUMPED}
        try:
            super()._log_rollout_data(batch, timing_raw, rollout_data_dir)
        finally:
            self._results.clear()

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Add the metrics of the rewards, before the loggers get the step's metrics."""
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        fields = ["rm_scores", "extra_fields"]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        results = [(extra or {}).get("reward_extra_info") or {} for extra in data.pop("extra_fields").tolist()]
        metrics.update(reward_metrics(map(_uid, keys), data["rm_scores"].sum(dim=1).tolist(), results))


def _uid(key: str) -> str:
    """The prompt's uid in the key of a response, `<uid>_<session>_<index>`."""
    return key.rsplit("_", 2)[0]


class EndInOrder(CheckpointCallback):
    """Keeps to the limit on saved steps over all starts, and ends the run after a step if a stop was requested.

    verl has no key for that. `PPOTrainer.fit` loops while `global_steps <= total_training_steps`.
    """

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        keep_last(Path(checkpoint_dir).parent, trainer.config.trainer.max_actor_ckpt_to_keep)
        if withdraw_stop(Path(checkpoint_dir).parent):
            print(f"stop requested: step {global_step} is the last", flush=True)
            trainer.total_training_steps = global_step


class ExactModels(EndInOrder):
    """Writes the dtype of the saved weights into the saved config.json, so that loading does not round them."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        super().on_save(trainer, global_step, checkpoint_dir, **kwargs)
        for folder in Path(checkpoint_dir).glob("*/huggingface"):
            name_the_type(folder)
