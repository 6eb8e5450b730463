"""A prompt's pictures as the engine gets them: bytes instead of floats, and each shown to the vision tower once a pass.

verl stores a picture's patches with every response, in float32 and each twice (Qwen's towers read pairs of frames):
13.5 MB for 560 x 1008 pixels. `pack` keeps the bytes that the patches were made of, an eighth of that, and `unpack`
makes the same floats of them, on the GPU. The responses of a prompt show the same picture: where a pass has several of
them, `show_once` has the tower see it once. `align` pads the tower's MLP.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

PATCHES, GRID = "pixel_values", "image_grid_thw"
"""The image processor's features: float32 (patches, channels x frames x pixels of a patch), and (pictures, 3)."""
BYTES, DIGESTS = "pixel_bytes", "picture_digests"
"""`pack` makes these of patches: uint8 (patches, channels x pixels of a patch), and int64 (pictures, 2)."""


def pack(features: Mapping[str, Any], processor: Any) -> dict[str, Any]:
    """The image processor's features with bytes and digests of the pictures in place of patches.

    They stay as they are where bytes would not give back exactly these patches.
    """
    images, patches = processor.image_processor, features.get(PATCHES)
    frames = getattr(images, "temporal_patch_size", None)
    if frames is None or patches is None or not (images.do_rescale and images.do_normalize):
        return dict(features)
    mean, deviation = _colours(images, patches.device)
    first = patches.unflatten(1, (mean.size(1), frames, -1))[:, :, 0]
    pixels = (first * deviation + mean).round().clamp(0, 255).to(torch.uint8).flatten(1)
    if not torch.equal(unpack(pixels, processor), patches):
        return dict(features)
    pictures = pixels.split(features[GRID].prod(dim=1).tolist())
    digests = b"".join(hashlib.blake2b(each.numpy(), digest_size=16).digest() for each in pictures)
    packed = {BYTES: pixels, DIGESTS: torch.frombuffer(bytearray(digests), dtype=torch.int64).view(-1, 2)}
    return {name: value for name, value in features.items() if name != PATCHES} | packed


def unpack(pixels: torch.Tensor, processor: Any) -> torch.Tensor:
    """The patches, float32, of the bytes that `pack` made of them; on the device of the bytes."""
    mean, deviation = _colours(processor.image_processor, pixels.device)
    first = (pixels.unflatten(1, (mean.size(1), -1)).float() - mean) / deviation
    return first[:, :, None].expand(-1, -1, processor.image_processor.temporal_patch_size, -1).flatten(1)


def _colours(images: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of each colour as the image processor computes them, in units of a byte: (1, channels, 1)."""
    mean, deviation = (
        torch.tensor(each) * (1.0 / images.rescale_factor) for each in (images.image_mean, images.image_std)
    )
    return mean[None, :, None].to(device), deviation[None, :, None].to(device)


def show(inputs: dict[str, Any], processor: Any, *, once: bool) -> None:
    """Replace packed pictures in the arguments of a model's forward by patches, in place.

    Args:
        once: whether the model's tower went through `show_once`. A picture that several responses have then comes
            once, and the grid gets a fourth column, the number of each response's picture.
    """
    pixels, digests = inputs.pop(BYTES, None), inputs.pop(DIGESTS, None)
    if pixels is None:
        return
    grid, device = inputs[GRID], inputs["input_ids"].device
    numbers: dict[tuple[int, ...], int] = {}
    column = [numbers.setdefault(tuple(digest), len(numbers)) for digest in digests.tolist()]
    if once and len(numbers) < len(column):
        pictures = pixels.split(grid.prod(dim=1).tolist())
        pixels = torch.cat([pictures[column.index(number)] for number in range(len(numbers))])
        inputs[GRID] = torch.cat([grid, torch.tensor(column, device=grid.device)[:, None]], dim=1)
    inputs[PATCHES] = unpack(pixels.to(device, non_blocking=True), processor)


def show_once(tower: torch.nn.Module) -> None:
    """Let the tower of Qwen2-VL or Qwen2.5-VL take a grid with a fourth column, as `show` makes it.

    It returns features of all pictures, those of several responses repeated, and sums their gradients.
    """
    forward = tower.forward

    def shown(hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
        if grid_thw.size(1) == 3:
            seen = forward(hidden_states, grid_thw=grid_thw, **kwargs)
            # verl shows an empty picture to a pass without any, and takes the output for a tensor
            # (verl/models/transformers/qwen2_vl.py:394 (`image_embeds.mean()`)).
            seen.mean = seen.pooler_output.mean
            return seen
        column = grid_thw[:, 3].tolist()
        firsts = [column.index(number) for number in range(max(column) + 1)]
        grid = grid_thw[firsts, :3]
        seen = forward(hidden_states, grid_thw=grid, **kwargs)
        features = seen.pooler_output.split((grid.prod(dim=1) // tower.spatial_merge_size**2).tolist())
        seen.pooler_output = torch.cat([features[number] for number in column])
        return seen

    tower.forward = shown


ALIGNED = 8
"""Columns: 16 bytes in bf16, which Hopper's matrix kernels need."""


def align(mlp: torch.nn.Module) -> None:
    """Have a gated MLP of the vision tower compute with its intermediate size padded to a multiple of `ALIGNED`.

    Zeros are added to the weights for the time of a pass, so results are the same. Qwen2.5-VL's tower has 3,420
    columns, for which cuBLAS has only older GPUs' kernels.
    """
    forward, missing = mlp.forward, -mlp.gate_proj.out_features % ALIGNED

    def widened(layer: torch.nn.Linear, hidden_state: torch.Tensor) -> torch.Tensor:
        bias = None if layer.bias is None else functional.pad(layer.bias, (0, missing))
        return functional.linear(hidden_state, functional.pad(layer.weight, (0, 0, 0, missing)), bias)

    def padded(hidden_state: torch.Tensor) -> torch.Tensor:
        gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        if any(type(layer) is not torch.nn.Linear for layer in (gate, up, down)):
            return forward(hidden_state)  # adapters stand around them
        product = mlp.act_fn(widened(gate, hidden_state)) * widened(up, hidden_state)
        return functional.linear(product, functional.pad(down.weight, (0, missing)), down.bias)

    if missing:
        mlp.forward = padded


def prepare_tower(model: torch.nn.Module) -> bool:
    """Change a model's vision tower as `show_once` and `align` do; return whether it has one that they know."""
    tower: Any = getattr(getattr(model, "model", None), "visual", None)
    if type(tower).__name__ not in (
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2VisionTransformerPretrainedModel",
    ):
        return False
    show_once(tower)
    for block in tower.blocks:
        if hasattr(block.mlp, "gate_proj"):
            align(block.mlp)
    return True
