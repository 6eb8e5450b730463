"""The tiny model's shape, Qwen2.5-VL's architecture at under a million parameters, and its processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipes.tasks.number_game.pretrain import tokenizer as words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

PATCH, MERGE, FRAMES = 14, 2, 2  # pixels, patches of a token's side, frames: as Qwen2.5-VL
# The processor's own limits, in pixels, for who loads the model without a recipe: from 4 tokens to 256.
MIN_PIXELS, MAX_PIXELS = 56 * 56, 448 * 448


@dataclass(frozen=True)
class Shape:
    """Sizes of both networks. Heads have 32 dimensions because vLLM's CPU attention takes no smaller ones.

    Attributes:
        hidden, layers, heads, kv_heads, head, intermediate, positions: of the language model.
        sections: of a head's 16 rotary frequencies, how many turn with time, height and width.
        base: of these frequencies. Width gets the lowest; at the usual 10,000 they would not tell five columns apart.
        spread: standard deviation of the first weights, about one over the root of `hidden`.
        sight, depth, sight_heads, sight_intermediate: of the vision tower.
        window: pixels of a side within which its layers attend; those in `everywhere` attend to the whole image.
    """

    hidden: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    intermediate: int = 384
    positions: int = 2048
    sections: tuple[int, int, int] = (4, 6, 6)
    base: float = 10.0
    spread: float = 0.08
    sight: int = 64
    depth: int = 2
    sight_heads: int = 2
    sight_intermediate: int = 192
    window: int = 112
    everywhere: tuple[int, ...] = (1,)


def build_model(tokenizer: PreTrainedTokenizerFast, shape: Shape, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A freshly initialised Qwen2.5-VL in float32 whose vocabulary is exactly the tokenizer's."""
    import torch
    from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    identity = tokenizer.convert_tokens_to_ids
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "initializer_range": shape.spread,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "max_position_embeddings": shape.positions,
            "max_window_layers": shape.layers,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": shape.base,
                "mrope_section": list(shape.sections),
            },
            "bos_token_id": None,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": shape.depth,
            "initializer_range": shape.spread,
            "hidden_size": shape.sight,
            "intermediate_size": shape.sight_intermediate,
            "num_heads": shape.sight_heads,
            "out_hidden_size": shape.hidden,
            "window_size": shape.window,
            "fullatt_block_indexes": list(shape.everywhere),
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": FRAMES,
        },
        image_token_id=identity(words.IMAGE),
        video_token_id=identity(words.VIDEO),
        vision_start_token_id=identity(words.VISION_START),
        vision_end_token_id=identity(words.VISION_END),
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[eos, pad], pad_token_id=pad, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    return model


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLProcessor:
    """Qwen2.5-VL's processor with this tokenizer, for images from `MIN_PIXELS` to `MAX_PIXELS`."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    sizes = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    }
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sizes),
        video_processor=Qwen2VLVideoProcessor(**sizes),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
