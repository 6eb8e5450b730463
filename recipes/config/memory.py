"""How many tokens fit a pass on a GPU, from the model's shape and the GPU's memory.

Memory of the update, in bytes of one GPU, for a dense decoder (hidden h, MLP i, query width q, key width k, L layers,
P parameters, R ranks that share them; 16-bit activations, liger's kernels, packed attention):

- what stays: 4 P weights + 4 P gradients + 8 P for Adam's moments in float32, over R; what FSDP has whole
  (`Shape.gathered`); `RESERVED_BYTES` for vLLM asleep and the contexts of the processes;
  `USABLE_FRACTION` of the memory at most, since verl's micro-batches are balanced by work and some are larger than the
  budget;
- each token that keeps its activations, in each layer: 2 (4 h + 3 i + 4 q) bytes: residual and norm twice; gate, up and
  their product; queries, keys and values repeated for each query head, and the attention's output; with norms on
  queries and keys, as in Qwen3, 2 (q + k) more;
- each token whose layers are computed again in the backward pass: 2 h for each layer, and one layer as above;
- 8 h for embedding and last norm. The fused head keeps no logits;
- without liger, in each layer 8 h + 2 i, and 4 (q + k) with norms on queries and keys: float32 copies in the norms, and
  the activated gate.

At the Qwen3-4B shape that is 4.41 MB a token, and 0.327 MB with recomputation; measured on an H200 between 8,192 and
20,480 tokens 4.44 MB, between 16,384 and 32,768 tokens 0.323 MB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.model_files import model_config, text_config

GIGABYTE = 10**9
RESERVED_BYTES = 6 * GIGABYTE
"""Of a GPU, for vLLM asleep and the CUDA contexts of its processes."""
USABLE_FRACTION = 0.9
"""Of a GPU's memory: verl balances micro-batches by work, so that some exceed the token budget."""
STATE_BYTES = 4 + 4 + 8
"""A parameter's weight, gradient and moments."""
ADAPTER_STATE_BYTES = 4
"""With LoRA the base has weights only; adapters are a hundredth of them."""

MAX_UPDATE_TOKENS = 32_768
"""Tokens of one update pass; more is no faster: 376 TFLOP/s at 16,384 tokens, 382 at 32,768 (Qwen3-4B shape, H200)."""
MIN_TOKENS_WITHOUT_RECOMPUTE = 8_192
"""Below this budget activations are recomputed: 442 TFLOP/s at 8,192 tokens without, 459 at 16,384, 382 with."""
MAX_FORWARD_TOKENS = 65_536
"""Tokens of one pass without gradients; 478 TFLOP/s at 32,768 tokens, 483 at 65,536."""
TOKENS_OF_UNKNOWN_MODEL = 16_384
"""Tokens of a pass for a model whose shape or GPU is not known, with recomputation."""
TOKEN_MULTIPLE = 1_024
"""Token budgets are multiples of this."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense decoder, and of the vision tower in front of it where it has one."""

    hidden: int
    intermediate: int
    layers: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool
    norms_queries: bool
    vision: tuple[int, int, int, int] | None = None
    """Hidden, intermediate, layers, and patches an image token."""

    @property
    def parameters(self) -> int:
        """Weights of embeddings, layers and vision tower; norms and biases are a thousandth of them."""
        total = self.layers * self.layer_parameters + self.embedding_parameters
        if self.vision:
            hidden, intermediate, layers, _ = self.vision
            total += layers * hidden * (4 * hidden + 3 * intermediate)
        return total

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer of the decoder."""
        return self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.intermediate)

    @property
    def embedding_parameters(self) -> int:
        """Weights of embedding and head, which are one where they are tied."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int) -> int:
        """Weights of LoRA's adapters on every linear map of the decoder's layers."""
        widths = 7 * self.hidden + 2 * self.queries + 2 * self.keys + 3 * self.intermediate
        return self.layers * rank * widths

    def gathered(self, compute_bytes: int = 2, trained: bool = True) -> float:
        """Bytes of what FSDP has whole on each GPU: two layers and the ends, and where they are trained gradients of
        one layer and the ends, as computed and in float32."""
        gradients = (compute_bytes + 4) * trained
        return (2 * compute_bytes + gradients) * self.layer_parameters + (
            compute_bytes + gradients
        ) * self.embedding_parameters

    def layer_activations(self, liger: bool = True) -> float:
        """Bytes that a token holds in one layer."""
        normed = (self.queries + self.keys) * self.norms_queries
        kept = 2 * (4 * self.hidden + 3 * self.intermediate + 4 * self.queries + normed)
        return kept if liger else kept + 8 * self.hidden + 2 * self.intermediate + 4 * normed

    def activations(self, recompute: bool, image_share: float = 0.0, liger: bool = True) -> float:
        """Bytes that a token holds until the backward pass reaches it.

        Args:
            recompute: whether layers are computed again.
            image_share: share of the tokens that stand for a part of an image.
            liger: whether liger's kernels take the place of transformers' own.
        """
        total = _kept(self.layer_activations(liger), self.hidden, self.layers, recompute) + 8 * self.hidden
        if self.vision and image_share:
            hidden, intermediate, layers, patches = self.vision
            total += image_share * patches * _kept(2 * (8 * hidden + 3 * intermediate), hidden, layers, recompute)
        return total


def _kept(layer: float, hidden: int, layers: int, recompute: bool) -> float:
    return 2 * hidden * layers + layer if recompute else layer * layers


def model_type(folder: Path | None) -> str | None:
    """transformers' name of the architecture; None where it is not known."""
    return model_config(folder).get("model_type")


def shape(folder: Path | None) -> Shape | None:
    """The shape in a model's `config.json`; None where there is none, or it is no dense decoder."""
    try:
        return shape_of(model_config(folder))
    except (KeyError, TypeError):
        return None


def published_shape(name: str) -> Shape | None:
    """The shape of a model on a hub by its name, for one that was not fetched yet; None for a name not listed here."""
    plain = re.sub(r"-(instruct|base)(-\d+)?$", "", name.partition("@")[0].lower())
    config = next((config for known, config in PUBLISHED.items() if known.lower() == plain), None)
    return shape_of(config) if config else None


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """As `shape`, from what `config.json` holds. Raises KeyError where a size is missing."""
    text = text_config(config)
    if any("expert" in name for name in text):
        return None
    heads = text["num_attention_heads"]
    width = text.get("head_dim") or text["hidden_size"] // heads
    tower = config.get("vision_config")
    patches = (tower or {}).get("spatial_merge_size", 2) ** 2
    return Shape(
        hidden=text["hidden_size"],
        intermediate=text["intermediate_size"],
        layers=text["num_hidden_layers"],
        queries=heads * width,
        keys=text.get("num_key_value_heads", heads) * width,
        vocabulary=text["vocab_size"],
        tied=bool(text.get("tie_word_embeddings", False)),
        norms_queries=str(text.get("model_type", "")).startswith("qwen3"),
        vision=(tower["hidden_size"], tower["intermediate_size"], tower["depth"], patches) if tower else None,
    )


@dataclass(frozen=True)
class TokenBudgets:
    """Tokens of a pass with gradients (`update`) and without (`forward`); whether the update recomputes activations."""

    update: int
    forward: int
    recompute: bool


def token_budgets(
    model: Shape | None,
    memory: int | None,
    *,
    ranks: int,
    longest: int,
    image_share: float = 0.0,
    networks: int = 1,
    adapters: bool = False,
    recompute: bool | None = None,
    liger: bool = True,
) -> TokenBudgets:
    """The largest passes that fit a GPU.

    Args:
        model: its shape; None where it is not known.
        memory: bytes of one GPU; None where it is not known.
        ranks: GPUs that share the weights.
        longest: tokens of the longest prompt and response together, which a pass has to hold.
        image_share: share of the tokens that stand for images.
        networks: models of this shape that are trained (two with a critic).
        adapters: whether only LoRA's adapters are trained.
        recompute: what the user decided; None: as memory asks.
        liger: as for `Shape.activations`.
    """
    if model is None or memory is None:
        unknown = max(longest, TOKENS_OF_UNKNOWN_MODEL)
        return TokenBudgets(unknown, unknown, recompute is not False)
    state = networks * (ADAPTER_STATE_BYTES if adapters else STATE_BYTES) * model.parameters / ranks
    free = USABLE_FRACTION * memory - RESERVED_BYTES - state - model.gathered(trained=not adapters)

    def fitting(most: int, recompute: bool) -> int:
        tokens = int(max(0.0, free / model.activations(recompute, image_share, liger)))
        return min(most, tokens // TOKEN_MULTIPLE * TOKEN_MULTIPLE)

    update = fitting(MAX_UPDATE_TOKENS, recompute=False)
    if recompute is None:
        recompute = update < max(MIN_TOKENS_WITHOUT_RECOMPUTE, 2 * longest)
    if recompute:
        update = fitting(MAX_UPDATE_TOKENS, recompute=True)
    # Without gradients one layer's activations are alive at a time, and these are fewer bytes than those counted here.
    forward = fitting(MAX_FORWARD_TOKENS, recompute=True)
    return TokenBudgets(max(longest, update), max(longest, forward), recompute)


def max_num_seqs(responses: int) -> int:
    """Responses that one vLLM engine decodes at once: all of its step's, between 256 (for validation) and 1,024."""
    return max(256, min(1_024, -(-responses // 64) * 64))


def graph_sizes(most: int) -> list[int]:
    """Batch sizes with a CUDA graph: fewer than vLLM's own 67 for 512, which take 10 s, and up to `most`.

    Between two sizes a batch is filled up; decoding reads all weights whatever the batch, so that costs little.
    """
    sizes = [1, 2, 4, 8, 16, *range(32, 257, 32), *range(320, 1_025, 64)]
    return [size for size in sizes if size < most] + [most]


_QWEN2 = {"architecture": "Qwen2", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 151_936}
_QWEN3 = {**_QWEN2, "architecture": "Qwen3", "model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8}
_VISION = {"architecture": "Qwen2_5_VL", "mrope_section": [16, 24, 24]}
_TOWER = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, tied: bool, **others: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
        **others,
    }


_3B = _sizes(2048, 11_008, 36, 16, True, num_key_value_heads=2)
_7B = _sizes(3584, 18_944, 28, 28, False, num_key_value_heads=4, vocab_size=152_064)
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-4B": {**_QWEN3, **_sizes(2560, 9728, 36, 32, True)},
    "Qwen/Qwen3-0.6B": {**_QWEN3, **_sizes(1024, 3072, 28, 16, True)},
    "Qwen/Qwen2.5-3B": {**_QWEN2, **_3B},
    "Qwen/Qwen2.5-7B": {**_QWEN2, **_7B},
    "Qwen/Qwen2.5-VL-3B": {**_QWEN2, **_3B, **_VISION, "vision_config": {**_TOWER, "out_hidden_size": 2048}},
    "Qwen/Qwen2.5-VL-7B": {**_QWEN2, **_7B, **_VISION, "vision_config": {**_TOWER, "out_hidden_size": 3584}},
}
"""Sizes in the `config.json` of models on the hub; the forms -Instruct and -Base have the same."""
