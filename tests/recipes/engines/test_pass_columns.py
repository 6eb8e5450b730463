"""A pass is sent the columns that it reads, and no others."""

from __future__ import annotations

import pytest

from recipes.engines import pass_columns


def test_a_pass_is_sent_the_columns_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    import torch
    from tensordict import NonTensorStack, TensorDict
    from transfer_queue import BatchMeta
    from transfer_queue.metadata import extract_field_schema
    from verl.utils import transferqueue_utils

    tensors = {name: torch.ones(2, 3) for name in ("input_ids", "position_ids", "loss_mask", "advantages", "prompts")}
    others = {name: NonTensorStack({}, {}) for name in (pass_columns.IMAGES, "raw_prompt", "extra_fields")}
    schema = extract_field_schema(TensorDict({**tensors, **others}, batch_size=[2]))

    async def all_columns(information: dict[str, bool]) -> BatchMeta:
        return BatchMeta([0, 1], ["train"] * 2, schema, extra_info=information)

    monkeypatch.setattr(transferqueue_utils, "async_kv_batch_meta2batch_meta", all_columns)
    pass_columns.register.__wrapped__()
    for information, wanted in (
        ({}, {*tensors, pass_columns.IMAGES}),
        ({"compute_loss": False}, {"input_ids", "position_ids", "loss_mask", pass_columns.IMAGES}),
    ):
        batch = asyncio.run(transferqueue_utils.async_kv_batch_meta2batch_meta(information))
        assert set(batch.field_names) == wanted
        assert batch.extra_info == information
