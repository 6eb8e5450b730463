"""Pictures reach the engine as bytes and go through the vision tower once: the same numbers as one by one."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from recipes.engines.verl import pictures
from recipes.paths import ROOT

TINY = ROOT / "recipes/tasks/number_game/tiny"


@pytest.fixture(scope="module")
def processor():
    return AutoProcessor.from_pretrained(TINY)


def features(processor, seeds, size=(84, 112)):
    """The image processor's features of random pictures."""
    images = [
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)) for seed in seeds
    ]
    return dict(processor.image_processor(images=images, return_tensors="pt"))


def test_bytes_give_back_the_processors_own_floats(processor):
    made = features(processor, [1, 2, 1])
    packed = pictures.pack(made, processor)
    assert pictures.PATCHES not in packed
    assert torch.equal(pictures.unpack(packed[pictures.BYTES], processor), made[pictures.PATCHES])
    assert packed[pictures.BYTES].nbytes * 8 == made[pictures.PATCHES].nbytes
    first, second, again = packed[pictures.DIGESTS].tolist()
    assert first == again != second


def test_floats_that_no_bytes_give_stay(processor):
    made = features(processor, [1])
    made[pictures.PATCHES] = made[pictures.PATCHES] + 1e-3
    assert torch.equal(pictures.pack(made, processor)[pictures.PATCHES], made[pictures.PATCHES])


def test_a_picture_of_several_responses_is_seen_once_with_all_their_gradients(processor):
    """Three responses show the pictures 1, 2 and 1: features, and gradients of the tower, as from three passes."""
    model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float64)
    plain = copy.deepcopy(model.model.visual)
    seen = []
    tower = model.model.visual
    tower.patch_embed.register_forward_hook(lambda _module, given, _made: seen.append(len(given[0])))
    assert pictures.prepare_tower(model)

    made = features(processor, [1, 2, 1])
    inputs = {"input_ids": torch.zeros(1, 1, dtype=torch.long), **pictures.pack(made, processor)}
    pictures.show(inputs, processor, once=True)
    once = tower(inputs[pictures.PATCHES], grid_thw=inputs[pictures.GRID]).pooler_output
    apart = plain(made[pictures.PATCHES], grid_thw=made[pictures.GRID]).pooler_output
    assert seen == [2 * len(made[pictures.PATCHES]) // 3]
    torch.testing.assert_close(once, apart)

    weights = torch.randn(once.shape, dtype=torch.float64)
    (once * weights).sum().backward()
    (apart * weights).sum().backward()
    for ours, theirs in zip(tower.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_a_padded_mlp_computes_the_same(processor):
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLConfig, Qwen2_5_VLMLP

    config = Qwen2_5_VLConfig().vision_config
    config.hidden_size, config.intermediate_size = 32, 43
    torch.manual_seed(0)
    mlp = Qwen2_5_VLMLP(config, bias=True)
    plain = copy.deepcopy(mlp)
    pictures.align(mlp)
    given = torch.randn(5, 32)
    torch.testing.assert_close(mlp(given), plain(given))
    mlp(given).sum().backward()
    plain(given).sum().backward()
    for ours, theirs in zip(mlp.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_a_pass_without_pictures_reaches_the_tower_too():
    """Text rows beside rows with pictures: every rank's pass has to use all weights."""
    from verl.models.transformers.qwen2_vl import _get_input_embeds

    model = AutoModelForImageTextToText.from_pretrained(TINY)
    pictures.prepare_tower(model)
    tokens = torch.arange(8)[None]
    embedded, _ = _get_input_embeds(model.model, tokens)
    assert torch.equal(embedded, model.get_input_embeddings()(tokens))
    embedded.sum().backward()
    assert all(weight.grad is not None for weight in model.model.visual.parameters())
