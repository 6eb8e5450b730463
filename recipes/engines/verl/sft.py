"""verl's supervised trainer: its rows, tokenised as whole conversations, and its start on CPUs.

verl tokenises each message alone and raises where the pieces differ from the conversation
(verl/utils/dataset/multiturn_sft_dataset.py:425 (`def sanity_check`)), as with Qwen3's template, which puts an empty
`<think>` block in front of the last answer only.

On CPUs `torch.distributed.run` starts this module in place of `verl.trainer.sft_trainer`.
"""

import json
from typing import Any

import torch
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from recipes.engines.worked_answers import answer_spans, unpacked


class WholeConversations(MultiTurnSFTDataset):
    """Trains on the answer, from the first message after the last of the user: its tools' messages are masked."""

    tools: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tools = None if self.tools is None else [json.loads(each) for each in self.tools]

    def _build_messages(self, example: dict[str, Any]) -> list[dict[str, Any]]:
        return unpacked(super()._build_messages(example))

    def _process_single_message(
        self,
        index: int,
        message: dict[str, Any],
        full_message: list[dict[str, Any]],
        tools: Any = None,
        enable_thinking: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Tokens, loss mask and attention mask: the whole conversation's for its first message, else empty."""
        if index:
            none = torch.zeros(0, dtype=torch.long)
            return none, none, none, {}
        template = dict(self.apply_chat_template_kwargs)
        if enable_thinking is not None:
            template["enable_thinking"] = enable_thinking
        if tools:
            template["tools"] = tools
        ids, mask = answer_spans(self.tokenizer, full_message, template)
        return torch.tensor(ids), torch.tensor(mask), torch.ones(len(ids), dtype=torch.long), {}


if __name__ == "__main__":
    from verl.trainer import sft_trainer
    from verl.utils import distributed

    from recipes.engines.verl import upstream

    upstream.apply("cpu verl")
    # verl names the CPU twice, which torch refuses
    distributed.initialize_global_process_group = lambda: torch.distributed.init_process_group("cpu:gloo")
    sft_trainer.main()
