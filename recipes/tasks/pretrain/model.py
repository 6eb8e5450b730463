"""A tiny model's shape: Qwen's architecture at about one million parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. `head` is 32 because vLLM's CPU attention takes no smaller one."""

    hidden: int = 160
    layers: int = 4
    heads: int = 5
    kv_heads: int = 5
    head: int = 32
    intermediate: int = 448
    positions: int = 512


def build_model(tokenizer: PreTrainedTokenizerFast, architecture: str, shape: Shape, seed: int) -> PreTrainedModel:
    """A freshly initialised model in float32 whose vocabulary is exactly the tokenizer's.

    Args:
        architecture: "Qwen2", which is Qwen2.5's as well, or "Qwen3".
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head,
        max_position_embeddings=shape.positions,
        max_window_layers=shape.layers,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=[eos, pad], pad_token_id=pad, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    return model
