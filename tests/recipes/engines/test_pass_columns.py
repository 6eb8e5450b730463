"""A pass is sent the columns that it reads, and no others; they are divided into micro-batches as verl divides them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from recipes.engines import pass_columns


def test_a_pass_is_sent_the_columns_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    import torch
    from tensordict import NonTensorStack, TensorDict
    from transfer_queue import BatchMeta
    from transfer_queue.metadata import extract_field_schema
    from verl.utils import tensordict_utils, transferqueue_utils

    tensors = {name: torch.ones(2, 3) for name in ("input_ids", "position_ids", "loss_mask", "advantages", "prompts")}
    others: dict[str, Any] = {name: NonTensorStack({}, {}) for name in (pass_columns.IMAGES, "raw_prompt")}
    others |= {name: torch.ones(2, 3) for name in ("rm_scores", "rollout_log_probs", "log_probs")}
    schema = extract_field_schema(TensorDict({**tensors, **others}, batch_size=[2]))

    async def all_columns(information: dict[str, bool]) -> BatchMeta:
        return BatchMeta([0, 1], ["train"] * 2, schema, extra_info=information)

    monkeypatch.setattr(transferqueue_utils, "async_kv_batch_meta2batch_meta", all_columns)
    monkeypatch.setattr(tensordict_utils, "index_select_tensor_dict", tensordict_utils.index_select_tensor_dict)
    pass_columns.register.__wrapped__()
    for information, wanted in (
        ({}, {*tensors, pass_columns.IMAGES}),
        ({"compute_loss": False}, {"input_ids", "position_ids", "loss_mask", pass_columns.IMAGES}),
    ):
        batch = asyncio.run(transferqueue_utils.async_kv_batch_meta2batch_meta(information))
        assert set(batch.field_names) == wanted
        assert batch.extra_info == information


def test_columns_are_divided_into_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The micro-batches are those of verl alone, number by number; three-dimensional positions are those of images."""
    import torch
    from tensordict import NonTensorStack, TensorDict
    from torch.utils._python_dispatch import TorchDispatchMode
    from verl.utils import seqlen_balancing, tensordict_utils

    class Divisions(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten.unbind.int and args[0].is_nested
            return func(*args, **(kwargs or {}))

    def batch() -> TensorDict:
        random = torch.Generator().manual_seed(0)
        lengths = torch.randint(3, 40, (32,), generator=random).tolist()
        ids = [torch.randint(0, 99, (length,), generator=random) for length in lengths]
        places = tensordict_utils.nested_tensor_from_tensor_list([row.expand(4, -1).contiguous() for row in ids])
        scores = torch.nested.as_nested_tensor([torch.rand(length) for length in lengths], layout=torch.jagged)
        ragged = {"input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged), "position_ids": places}
        names = NonTensorStack(*map(str, lengths))
        return TensorDict({**ragged, "advantages": scores, "step": torch.arange(32), "uid": names}, batch_size=[32])

    def divided(data: TensorDict) -> tuple[int, list[TensorDict], list[list[int]]]:
        with Divisions() as divisions:
            parts, rows = seqlen_balancing.rearrange_micro_batches(data, max_token_len=128)
        return divisions.count, parts, rows

    data = batch()
    divisions, wanted, order = divided(data)
    select = tensordict_utils.index_select_tensor_dict
    monkeypatch.setattr(tensordict_utils, "index_select_tensor_dict", pass_columns.rows_once(select))
    fewer, parts, same_order = divided(data)
    assert len(parts) == len(wanted) > 4
    assert same_order == order
    assert (divisions, fewer) == (3 * len(wanted), 3)
    assert tensordict_utils.index_select_tensor_dict(None, [0]) is None
    for part, expected in zip(parts, wanted, strict=True):
        tensordict_utils.assert_tensordict_eq(part, expected)
        for name in ("input_ids", "position_ids", "advantages"):
            assert torch.equal(part[name].offsets(), expected[name].offsets())
            assert part[name]._ragged_idx == expected[name]._ragged_idx
    column = weakref.ref(data["input_ids"])
    del data
    gc.collect()
    assert column() is None, "a step's columns stay in memory"
