"""The tiny model's tokenizer: byte-level BPE that holds the fixed prompt, the operators and the numbers to 99."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from recipes.tasks.countdown.prompt import prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, START, EOS = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Added tokens that are not special, as the think tags are in Qwen3: decoding without special tokens keeps them.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# Qwen's chat format. Like Qwen3's it adds no system message of its own.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# What is cut out before BPE: numbers (two digits at most), operators with their blanks, parentheses, line breaks. What
# lies between is one piece, blanks included, so that a whole clause of the fixed prompt becomes one token.
PIECES = r"[0-9]{1,2}| [-+*/=] |[()]|\n"


def corpus() -> Iterator[str]:
    """The texts that the merges are learned from: the prompt with every number from 1 to 99, roles, a calculation."""
    for number in range(1, 100):
        yield from re.split("|".join(TAGS), prompt([number] * 3, number))
    yield from ("user", "assistant", "system", "(1 + 2) * 3 - 4 / 5 = 2\n")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer (milliseconds, no randomness).

    All 256 bytes are in the vocabulary, so that any text can be encoded and comes back unchanged.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,  # never reached: training ends when every piece of the corpus is one token
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
