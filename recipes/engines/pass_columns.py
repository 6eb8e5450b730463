"""The columns of a batch that each pass of a model is sent.

verl/utils/transferqueue_utils.py:302 (`async def async_kv_batch_meta2batch_meta`) names all columns for each pass, also
texts and dictionaries of the rows. A pass reads tensors and `IMAGES` alone, one without a loss `INPUTS`. Fetching,
splitting and copying the other columns of 64 responses takes 0.06 s a pass, a quarter of a tiny model's pass on a CPU.
"""

from __future__ import annotations

import functools
from typing import Any

IMAGES = "multi_modal_inputs"
"""The one column of a batch that is no tensor and that a model reads."""
INPUTS = frozenset({"input_ids", "position_ids", "loss_mask", "routed_experts", IMAGES})
"""The columns that verl's engines read where no loss is computed (verl/workers/engine/fsdp/transformer_impl.py:1169
(`input_ids = micro_batch["input_ids"]`) and the next line; of the mask the number of tokens,
verl/workers/engine/fsdp/transformer_impl.py:730 (`batch_num_tokens = data["loss_mask"]`))."""


@functools.cache
def register() -> None:
    """Name the columns that are read, in the driver, which chooses them for a pass, and in those that hold a model."""
    from verl.utils import transferqueue_utils

    all_columns = transferqueue_utils.async_kv_batch_meta2batch_meta

    @functools.wraps(all_columns)
    async def columns(meta: Any) -> Any:
        batch = await all_columns(meta)
        read = {name for name, column in batch.field_schema.items() if name == IMAGES or not column["is_non_tensor"]}
        if batch.extra_info.get("compute_loss") is False:  # verl says so of log-probabilities and values
            read &= INPUTS
        return batch.select_fields([name for name in batch.field_names if name in read])

    transferqueue_utils.async_kv_batch_meta2batch_meta = columns
