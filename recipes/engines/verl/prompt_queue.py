"""The queue in which verl's agent loops put the rows of a step, a prompt at a time."""

from contextvars import ContextVar
from typing import Any

import torch
import transfer_queue
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

SHARED: ContextVar[dict[str, Any]] = ContextVar("what the responses of a prompt share")
ROWS = "rows"


class PromptQueue:
    """verl's queue as its worker of agent loops calls it: the rows of a prompt go in together, before its status.

    verl's worker hands over dictionaries, since `upstream.rows_of_a_prompt_together` also leaves its
    `list_of_dict_to_tensordict` for here, where all rows are known.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(transfer_queue, name)

    async def async_kv_batch_put(
        self, *, keys: list[str], fields: list[dict[str, Any]], tags: list[dict[str, Any]], partition_id: str
    ) -> None:
        """Keep rows until their prompt's status is put."""
        SHARED.get().setdefault(ROWS, []).extend(zip(keys, fields, tags, strict=True))

    async def async_kv_put(self, *, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        """Put a prompt's status, and its rows before it."""
        alike: dict[Any, list[Any]] = {}  # a loop may give some responses fields that others lack
        for row in SHARED.get().pop(ROWS, ()):
            kinds = frozenset((name, isinstance(value, torch.Tensor)) for name, value in row[1].items())
            alike.setdefault(kinds, []).append(row)
        for rows in alike.values():
            keys, fields, tags = map(list, zip(*rows, strict=True))
            columns = list_of_dict_to_tensordict(fields)
            await transfer_queue.async_kv_batch_put(keys=keys, fields=columns, tags=tags, partition_id=partition_id)
        await transfer_queue.async_kv_put(key=key, partition_id=partition_id, tag=tag)
