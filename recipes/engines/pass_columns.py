"""The columns of a batch that each pass of a model is sent, and their rows, which a pass divides into micro-batches.

verl/utils/transferqueue_utils.py:302 (`async def async_kv_batch_meta2batch_meta`) names all columns for each pass, also
texts and dictionaries of the rows. A pass reads tensors and `IMAGES` alone, one without a loss `INPUTS`. Fetching,
splitting and copying the other columns of 64 responses takes 0.06 s a pass, a quarter of a tiny model's pass on a CPU.

For each micro-batch verl asks all columns for their rows again: verl/utils/tensordict_utils.py:495
(`tensor_lst = tensor.unbind()`). While it does, nothing is computed. 13 columns of 256 responses took 0.16 s to divide
into 10 micro-batches on a CPU, and 0.05 s where each is asked once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

IMAGES = "multi_modal_inputs"
"""The one column of a batch that is no tensor and that a model reads."""
INPUTS = frozenset({"input_ids", "position_ids", "loss_mask", "routed_experts", IMAGES})
"""The columns that verl's engines read where no loss is computed (verl/workers/engine/fsdp/transformer_impl.py:1169
(`input_ids = micro_batch["input_ids"]`) and the next line; of the mask the number of tokens,
verl/workers/engine/fsdp/transformer_impl.py:730 (`batch_num_tokens = data["loss_mask"]`))."""
UNREAD = frozenset({"rm_scores", "token_level_rewards", "rollout_log_probs", "log_probs", "entropy"})
"""The columns that neither verl's engines nor its losses read: scores, whose advantages they read, log-probabilities
before they are named as old or as the reference's, and what an earlier pass reported."""


def rows_once(select: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return verl's choice of rows, for which a column of responses of different lengths is divided into rows once.

    Args:
        select: verl's `index_select_tensor_dict(batch, numbers of rows)`. Rows share their column's memory, so that the
            column can keep them: its `unbind()` returns the same ones from the first call on. They are rows of the
            column detached; a view keeps what it is a view of, and a column that kept its own views would never go.
    """

    @functools.wraps(select)
    def selected(batch: Any, indices: Any) -> Any:
        for column in () if batch is None else batch.values():
            if isinstance(column, torch.Tensor) and column.is_nested and "unbind" not in vars(column):
                setattr(column, "unbind", functools.partial(_same, column.detach().unbind()))  # noqa: B010
        return select(batch, indices)

    return selected


def _same(rows: Any) -> Any:
    return rows


@functools.cache
def register() -> None:
    """Name the columns that are read, in the driver's process, and divide them once, in those that hold a model."""
    from verl.utils import tensordict_utils, transferqueue_utils

    tensordict_utils.index_select_tensor_dict = rows_once(tensordict_utils.index_select_tensor_dict)

    all_columns = transferqueue_utils.async_kv_batch_meta2batch_meta

    @functools.wraps(all_columns)
    async def columns(meta: Any) -> Any:
        batch = await all_columns(meta)
        read = {name for name, column in batch.field_schema.items() if name == IMAGES or not column["is_non_tensor"]}
        if batch.extra_info.get("compute_loss") is False:  # verl says so of log-probabilities and values
            read &= INPUTS
        read -= UNREAD
        return batch.select_fields([name for name in batch.field_names if name in read])

    transferqueue_utils.async_kv_batch_meta2batch_meta = columns
