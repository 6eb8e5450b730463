"""Tiny language models that learn from demonstrations, and their tokenizers, whose training takes milliseconds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import transformers
from datasets import Dataset
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DataCollatorForSeq2Seq, GenerationConfig, PreTrainedTokenizerFast, Trainer

from tools.tiny_models.pretrain import IGNORED, PLAIN_SAMPLING, Task, arguments, finish


class Example(NamedTuple):
    """One demonstration: the user's message and the response."""

    prompt: str
    response: str


class Shape(NamedTuple):
    """Sizes of a language model. A head has 32 dimensions or more: vLLM's CPU attention takes no smaller one."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    head: int = 32
    lr: float = 2e-3


SIZES = {"27m": Shape(512, 8, 8, 1536, 64, 1e-3)}
"""Millions of parameters -> the shape of a larger model than the one that ships, for a GPU."""


@dataclass
class TextTask(Task):
    """A tiny Qwen2 or Qwen3 that learns from demonstrations by imperfect annotators."""

    pieces: ClassVar[str]  # see `train_tokenizer`, and `tags`
    tags: ClassVar[Sequence[str]]
    architecture: ClassVar[str]  # as transformers names it in front of `Config` and `ForCausalLM`
    tiny: ClassVar[Shape]
    demonstrations: ClassVar[int]  # number of distinct ones; they repeat if training sees more
    steps: ClassVar[int]
    batch: ClassVar[int]
    size: str = ""  # a key of `SIZES`; empty: the shape that ships

    @abstractmethod
    def corpus(self) -> Iterator[str]:
        """Yield the texts that the tokenizer's merges are learned from."""

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer, the same one each time."""
        return train_tokenizer(self.corpus(), self.pieces, self.tags)

    @abstractmethod
    def examples(self, seed: int) -> Iterator[Example]:
        """Yield demonstrations without end, none of a held-out problem; the same seed gives the same ones."""

    def build(self) -> tuple[Any, PreTrainedTokenizerFast]:
        """See `Task.build`. The vocabulary is exactly the tokenizer's."""
        tokenizer, shape = self.tokenizer(), SIZES.get(self.size, self.tiny)
        torch.manual_seed(self.seed)
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        config = getattr(transformers, f"{self.architecture}Config")(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            head_dim=shape.head,
            max_position_embeddings=512,
            max_window_layers=shape.layers,
            tie_word_embeddings=True,
            bos_token_id=None,
            **ends,
        )
        model = getattr(transformers, f"{self.architecture}ForCausalLM")(config)
        ends["eos_token_id"] = [tokenizer.eos_token_id, tokenizer.pad_token_id]
        model.generation_config = GenerationConfig(**ends, **PLAIN_SAMPLING)
        return model, tokenizer

    def train(self, model: Any, processor: Any, work: Path, share: float) -> float:
        """See `Task.train`; the loss is that of the responses and their end marks."""
        steps = max(2, round(self.steps * share))
        given = arguments(
            self,
            work,
            bf16=True,
            max_steps=steps,
            per_device_train_batch_size=self.batch,
            learning_rate=SIZES.get(self.size, self.tiny).lr,
            weight_decay=0.05,
        )
        if given.use_cpu:
            model.set_attn_implementation("eager")  # sdpa spends half of a step in its backward pass
        drawn = islice(self.examples(self.seed), min(self.demonstrations, steps * self.batch))
        return finish(Trainer(model, given, DataCollatorForSeq2Seq(processor), dataset(processor, drawn)))

    def inputs(self, processor: Any, prompts: Sequence[str]) -> dict[str, Any]:
        """See `Task.inputs`."""
        texts = chats(processor, prompts)
        batch = processor(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        return {name: batch[name] for name in ("input_ids", "attention_mask")}


def chats(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> list[str]:
    """Return user messages in the chat format, up to where the model's turn begins."""
    mark = "\0"  # the template is rendered once: it takes longer than everything else
    chat = [{"role": "user", "content": mark}]
    before, after = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True).split(mark)
    return [before + prompt + after for prompt in prompts]


def dataset(tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example]) -> Dataset:
    """Return the demonstrations as tokens; the prompts' labels are ignored."""
    prompts, responses = zip(*examples, strict=True)
    asked = tokenizer(chats(tokenizer, prompts), add_special_tokens=False)["input_ids"]
    ended = [text + tokenizer.eos_token for text in responses]
    pairs = list(zip(asked, tokenizer(ended, add_special_tokens=False)["input_ids"], strict=True))
    labels = [[IGNORED] * len(prompt) + response for prompt, response in pairs]
    return Dataset.from_dict({"input_ids": [prompt + response for prompt, response in pairs], "labels": labels})


# --- Tokenizers ---

PAD, START, EOS = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Qwen's chat format. Like Qwen3's it adds no system message of its own.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def train_tokenizer(
    corpus: Iterable[str],
    pieces: str,
    tags: Sequence[str] = (),
    *,
    special: Sequence[str] = SPECIAL,
    chat_template: str = CHAT_TEMPLATE,
    max_length: int = 512,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer; the same texts give the same one. It has all 256 bytes, so any text comes back unchanged.

    Args:
        corpus: texts whose every piece becomes one token.
        pieces: regular expression of what is cut out before BPE; what lies between two matches is a piece as well.
        tags: added tokens that are not special, so that decoding without special tokens keeps them.
        special: special tokens in the order of their numbers; `PAD` and `EOS` are among them.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=10_000,  # never reached: training ends when every piece of the corpus is one token
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(special),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[token for token in special if token not in (PAD, EOS)],
        chat_template=chat_template,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
