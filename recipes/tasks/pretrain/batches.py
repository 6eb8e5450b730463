"""Demonstrations as token batches, in an order that depends on the seed and the step alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipes.tasks.pretrain.task import Example

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

IGNORED = -100  # what cross-entropy leaves out


@dataclass
class Batches:
    """All demonstrations: `inputs` and `labels`, both (count, length) int64, padded on the right.

    Causal attention keeps the padding from what stands before it, so no mask is needed. Only the response and its end
    mark are learned.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    seed: int
    epoch: int = -1
    order: torch.Tensor | None = None

    def at(self, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of one step; each epoch has its own order."""
        import torch

        epoch, place = divmod(step, len(self.inputs) // size)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(self.seed * 1000 + epoch)
            self.order = torch.randperm(len(self.inputs), generator=generator).to(self.inputs.device)
            self.epoch = epoch
        rows = self.order[place * size : (place + 1) * size]
        return self.inputs[rows], self.labels[rows]


def chat_texts(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> list[str]:
    """User messages in the chat format, up to where the model's turn begins."""
    mark = "\0"  # the template is rendered once: it takes longer than everything else
    chat = [{"role": "user", "content": mark}]
    before, after = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True).split(mark)
    return [before + prompt + after for prompt in prompts]


def encode(tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], device: str, seed: int) -> Batches:
    """Tokenize demonstrations; the prompt's labels are ignored."""
    import numpy as np
    import torch

    distinct = list(dict.fromkeys(example.prompt for example in examples))
    known = dict(zip(distinct, _ids(tokenizer, chat_texts(tokenizer, distinct)), strict=True))
    prompts = [known[example.prompt] for example in examples]
    responses = _ids(tokenizer, [example.response + tokenizer.eos_token for example in examples])
    length = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)) - 1
    inputs = np.full((len(examples), length), tokenizer.pad_token_id)
    labels = np.full((len(examples), length), IGNORED)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens = prompt + response
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        labels[row, len(prompt) - 1 : len(tokens) - 1] = response
    return Batches(torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device), seed)


def _ids(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
