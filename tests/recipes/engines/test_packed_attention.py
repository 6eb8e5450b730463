"""Packed attention: the same logits and gradients as each sequence alone under transformers' own attention."""

import copy
import math

import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations import flash_attention
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from verl.models.transformers.monkey_patch import apply_monkey_patch

from recipes.engines import packed_attention

packed_attention.register()

LENGTHS = (5, 1, 9)
WIDTHS = {"hidden_size": 32, "intermediate_size": 48}
TEXT = {**WIDTHS, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXT |= {"vocab_size": 64, "max_position_embeddings": 128}
IMAGE, VISION_START = 60, 61


def with_packed_attention(model):
    packed = copy.deepcopy(model)
    packed.set_attn_implementation(packed_attention.NAME)
    return packed


def assert_same_gradients(left, right):
    ours, theirs = (
        {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        for model in (left, right)
    )
    assert ours
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def alone_with_gradients(model, sequences):
    """The logits of each sequence alone, and the weights of their sum that was derived."""
    alone = torch.cat([model(**inputs, use_cache=False).logits[0] for inputs in sequences])
    weights = torch.randn_like(alone)
    (alone * weights).sum().backward()
    return alone.detach(), weights


def assert_packed_is(alone, weights, packed, sequences):
    along = {"input_ids": -1, "position_ids": -1, "pixel_values": 0, "image_grid_thw": 0}
    inputs = {name: torch.cat([one[name] for one in sequences], dim=along[name]) for name in sequences[0]}
    together = packed(**inputs, attention_mask=None, use_cache=False).logits[0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    (together * weights).sum().backward()


def test_packed_is_each_alone_and_padded_too():
    """Of two layers the second has a window."""
    torch.manual_seed(0)
    window = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    config = Qwen3Config(**TEXT, **window, head_dim=8, pad_token_id=0, attn_implementation="sdpa")
    plain = Qwen3ForCausalLM(config)
    assert config.layer_types == ["full_attention", "sliding_attention"]
    packed = with_packed_attention(plain)
    packed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    packed.train()
    rows = [torch.randint(1, 60, (length,)) for length in LENGTHS]
    sequences = [{"input_ids": row[None], "position_ids": torch.arange(len(row))[None]} for row in rows]
    alone, weights = alone_with_gradients(plain, sequences)
    assert_packed_is(alone, weights, packed, sequences)
    assert_same_gradients(packed, plain)

    padded = torch.nested.nested_tensor(rows).to_padded_tensor(0)
    mask = torch.arange(padded.shape[1]) < torch.tensor(LENGTHS)[:, None]
    logits = packed(input_ids=padded, attention_mask=mask.long(), use_cache=False).logits
    torch.testing.assert_close(logits[mask], alone, rtol=1e-4, atol=1e-5)


def vision_model():
    """A tiny Qwen2.5-VL whose vision tower has one layer with windows and one without."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = {**WIDTHS, "depth": 2, "num_heads": 4, "out_hidden_size": 32, "patch_size": 4, "window_size": 16}
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={**vision, "fullatt_block_indexes": [1]},
        image_token_id=IMAGE,
        vision_start_token_id=VISION_START,
        attn_implementation="sdpa",
    )
    return qwen2_5_vl.Qwen2_5_VLForConditionalGeneration(config)


@pytest.fixture
def verl_patches(monkeypatch):
    """Let verl replace methods of transformers' classes as its trainer does, and put them back afterwards."""
    for module, prefix in ((qwen2_5_vl, "Qwen2_5_VL"), (qwen2_vl, "Qwen2VL")):
        for part in ("Model", "ForConditionalGeneration", "Attention"):
            owner = getattr(module, prefix + part)
            monkeypatch.setattr(owner, "forward", owner.forward)
    monkeypatch.setattr(flash_attention, "_flash_attention_forward", flash_attention._flash_attention_forward)
    return lambda model: apply_monkey_patch(model, use_remove_padding=True)


def test_vision_language_model_as_verl_patches_it(verl_patches):
    """Images of two sizes, so windows differ; verl's attention for this model asks for flash-attn's function."""
    plain = vision_model()
    sequences = []
    for grid in ([1, 8, 4], [1, 12, 8]):
        images = math.prod(grid) // 4
        ids = torch.tensor([[3, VISION_START, *[IMAGE] * images, *torch.randint(1, 50, (6,)).tolist()]])
        sizes = {"image_grid_thw": torch.tensor([grid])}
        places, _ = plain.model.get_rope_index(
            ids, mm_token_type_ids=(ids == IMAGE).int(), attention_mask=torch.ones_like(ids), **sizes
        )
        positions = torch.cat([torch.arange(ids.shape[1])[None, None], places])
        pixels = torch.randn(math.prod(grid), 3 * 2 * 4 * 4)
        sequences.append({"input_ids": ids, "position_ids": positions, "pixel_values": pixels, **sizes})
    alone, weights = alone_with_gradients(plain, sequences)
    packed = with_packed_attention(plain)
    packed.zero_grad()
    assert packed.model.visual.config._attn_implementation == packed_attention.NAME
    verl_patches(packed)
    assert_packed_is(alone, weights, packed, sequences)
    assert_same_gradients(packed, plain)
