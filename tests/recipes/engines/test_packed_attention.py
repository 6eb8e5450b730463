"""Packed attention: the same logits and gradients as each sequence alone under transformers' own attention."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2_5_VLConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3ForTokenClassification
from transformers.integrations import flash_attention
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils import model as verl_model

from recipes.engines import packed_attention
from recipes.errors import RecipeError

packed_attention.register()

LENGTHS = (5, 1, 9)
TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
IMAGE, VISION_START = 60, 61


@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=4),
    causal=st.booleans(),
    left=st.integers(-1, 3),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
)
@settings(deadline=None, max_examples=40)
def test_each_sequence_sees_itself_through_its_window(lengths, causal, left, heads):
    """Against softmax written out over lists of positions; keys may be longer than queries, as with a cache."""
    torch.manual_seed(0)
    ends_q = torch.tensor([0, *(q for q, _ in lengths)]).cumsum(0).to(torch.int32)
    ends_k = torch.tensor([0, *(q + more for q, more in lengths)]).cumsum(0).to(torch.int32)
    q = torch.randn(int(ends_q[-1]), heads[0], 8)
    k, v = torch.randn(2, int(ends_k[-1]), heads[1], 8)
    answer = packed_attention.packed_attention(
        q, k, v, ends_q, ends_k, 6, 11, softmax_scale=0.3, causal=causal, window_size=(left, -1)
    )
    for i, (queries, more) in enumerate(lengths):
        for place in range(queries):
            at, first = place + more, int(ends_k[i])
            seen = [j for j in range(queries + more) if (not causal or j <= at) and (left < 0 or j >= at - left)]
            for head in range(heads[0]):
                of_keys = head // (heads[0] // heads[1])
                rows = torch.tensor(seen) + first
                weights = torch.softmax(0.3 * k[rows, of_keys] @ q[int(ends_q[i]) + place, head], 0)
                torch.testing.assert_close(answer[int(ends_q[i]) + place, head], weights @ v[rows, of_keys])


def text_model(kind, **more):
    torch.manual_seed(0)
    return kind(Qwen3Config(**TEXT, head_dim=8, pad_token_id=0, attn_implementation="sdpa", **more))


def with_packed_attention(model):
    packed = copy.deepcopy(model)
    packed.set_attn_implementation(packed_attention.NAME)
    return packed


def gradients(model):
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same_gradients(left, right):
    ours, theirs = gradients(left), gradients(right)
    assert ours
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5)


def positions_of(lengths):
    return torch.cat([torch.arange(length) for length in lengths])


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: text_model(Qwen3ForCausalLM), id="policy"),
        pytest.param(
            lambda: text_model(Qwen3ForTokenClassification, num_labels=1, classifier_dropout=0.0), id="critic"
        ),
        pytest.param(
            lambda: text_model(Qwen3ForCausalLM, use_sliding_window=True, sliding_window=3, max_window_layers=1),
            id="sliding window",
        ),
    ],
)
def test_packed_is_each_alone_and_padded_too(model):
    plain = model()
    rows = [torch.randint(1, 60, (length,)) for length in LENGTHS]
    weights = torch.randn(sum(LENGTHS), plain.config.num_labels if plain.config.num_labels == 1 else 64)

    alone = torch.cat([plain(input_ids=row[None], use_cache=False).logits[0] for row in rows])
    (alone * weights).sum().backward()

    packed = with_packed_attention(plain)
    packed.zero_grad()
    packed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    packed.train()
    together = packed(
        input_ids=torch.cat(rows)[None], attention_mask=None, position_ids=positions_of(LENGTHS)[None], use_cache=False
    ).logits[0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    (together * weights).sum().backward()
    assert_same_gradients(packed, plain)

    padded = torch.nested.nested_tensor(rows).to_padded_tensor(0)
    mask = torch.arange(padded.shape[1]) < torch.tensor(LENGTHS)[:, None]
    logits = packed(input_ids=padded, attention_mask=mask.long(), use_cache=False).logits
    torch.testing.assert_close(logits[mask], alone, rtol=1e-4, atol=1e-5)


def test_the_bounds_are_found_once_for_all_layers_and_their_recomputation(monkeypatch):
    found = []
    original = packed_attention._bounds
    monkeypatch.setattr(packed_attention, "_bounds", lambda positions: found.append(1) or original(positions))
    model = with_packed_attention(text_model(Qwen3ForCausalLM))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    for passes in (1, 2):
        ids = torch.randint(1, 60, (1, sum(LENGTHS)))
        model(input_ids=ids, position_ids=positions_of(LENGTHS)[None], use_cache=False).logits.sum().backward()
        assert len(found) == passes


def vision_model():
    """A tiny Qwen2.5-VL whose vision tower has one layer with windows and one without."""
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={
            **TEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "out_hidden_size": 32,
            "patch_size": 4,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
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
    grids = [(1, 8, 4), (1, 12, 8)]
    rows, positions, pixels = [], [], []
    for grid in grids:
        images = grid[0] * grid[1] * grid[2] // 4
        ids = torch.tensor([3, VISION_START, *[IMAGE] * images, *torch.randint(1, 50, (6,)).tolist()])
        places, _ = plain.model.get_rope_index(
            ids[None],
            mm_token_type_ids=(ids == IMAGE).int()[None],
            image_grid_thw=torch.tensor([grid]),
            attention_mask=torch.ones_like(ids)[None],
        )
        rows.append(ids)
        positions.append(torch.cat([torch.arange(len(ids))[None], places[:, 0]]))
        pixels.append(torch.randn(grid[0] * grid[1] * grid[2], 3 * 2 * 4 * 4))
    alone = torch.cat(
        [
            plain(
                input_ids=ids[None],
                position_ids=places[:, None],
                pixel_values=image,
                image_grid_thw=torch.tensor([grid]),
                use_cache=False,
            ).logits[0]
            for ids, places, image, grid in zip(rows, positions, pixels, grids, strict=True)
        ]
    )
    weights = torch.randn_like(alone)
    (alone * weights).sum().backward()

    packed = with_packed_attention(plain)
    packed.zero_grad()
    assert packed.model.visual.config._attn_implementation == packed_attention.NAME
    verl_patches(packed)
    together = packed(
        input_ids=torch.cat(rows)[None],
        attention_mask=None,
        position_ids=torch.cat(positions, dim=1)[:, None],
        pixel_values=torch.cat(pixels),
        image_grid_thw=torch.tensor(grids),
        use_cache=False,
    ).logits[0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    (together * weights).sum().backward()
    assert_same_gradients(packed, plain)


def test_verl_loads_its_critic_with_the_configured_attention(tmp_path):
    text_model(Qwen3ForCausalLM).save_pretrained(tmp_path)
    config = Qwen3Config.from_pretrained(tmp_path, attn_implementation=packed_attention.NAME, num_labels=1)
    critic = verl_model.load_valuehead_model(str(tmp_path), torch.float32, config, False)
    assert critic.config._attn_implementation == packed_attention.NAME
    assert critic.score.out_features == 1


def test_what_the_kernel_lacks_is_refused():
    model = with_packed_attention(text_model(Qwen3ForCausalLM, attention_dropout=0.5)).train()
    with pytest.raises(RecipeError, match="dropout"):
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(RecipeError, match="softcap"):
        packed_attention.attention_forward(model, q, q, q, None, softcap=30.0)
