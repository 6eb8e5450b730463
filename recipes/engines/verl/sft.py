"""verl's supervised trainer: its rows, tokenised as whole conversations, and its start on CPUs.

verl tokenises each message alone and raises where the pieces differ from the conversation
(verl/utils/dataset/multiturn_sft_dataset.py:425 (`def sanity_check`)). With Qwen3's template they differ: the template
puts an empty `<think>` block in front of the last answer only.

On CPUs `torch.distributed.run` starts this module in place of `verl.trainer.sft_trainer`.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset


class WholeConversations(MultiTurnSFTDataset):
    """Trains on the tokens of the last message, the answer; the prompt before it is masked out of the loss."""

    tokenizer: Any
    apply_chat_template_kwargs: Any

    def _process_single_message(
        self,
        index: int,
        message: dict[str, Any],
        full_message: list[dict[str, Any]],
        tools: Any = None,
        enable_thinking: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Tokens, loss mask and attention mask: the whole conversation's for the last message, else empty."""
        if index + 1 < len(full_message):
            none = torch.zeros(0, dtype=torch.long)
            return none, none, none, {}
        template = {"tokenize": True, "return_dict": False, **self.apply_chat_template_kwargs}
        if enable_thinking is not None:
            template["enable_thinking"] = enable_thinking
        ids = torch.tensor(self.tokenizer.apply_chat_template(full_message, **template))
        prompt = self.tokenizer.apply_chat_template(full_message[:-1], add_generation_prompt=True, **template)
        return ids, (torch.arange(len(ids)) >= len(prompt)).long(), torch.ones_like(ids), {}


def train_on_cpus() -> None:
    """Run verl's trainer with gloo alone."""
    from verl.trainer import sft_trainer
    from verl.utils import distributed

    from recipes.engines.verl import upstream

    upstream.apply("cpu verl")
    # verl names the CPU twice, which torch refuses
    distributed.initialize_global_process_group = lambda: torch.distributed.init_process_group("cpu:gloo")
    sft_trainer.main()


if __name__ == "__main__":
    train_on_cpus()
