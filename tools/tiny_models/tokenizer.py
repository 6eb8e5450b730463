"""The tokenizers of the tiny models, trained in milliseconds on the pieces of a task's texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

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
