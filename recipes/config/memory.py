"""How many tokens fit a pass on a GPU, from the model's shape and the GPU's memory.

Memory of the update, in bytes of one GPU, for a dense decoder (hidden h, MLP i, query width q, key width k, L layers,
P parameters, R ranks that share them; 16-bit activations, liger's kernels, packed attention):

- what stays: 4 P weights + 4 P gradients + 8 P for Adam's moments in float32, over R; `ASIDE` for vLLM asleep, the
  contexts of the processes, and one gathered layer; `SHARE` of the memory at most, since verl's micro-batches are
  balanced by work and some are larger than the budget;
- each token that keeps its activations, in each layer: 2 (4 h + 3 i + 4 q) bytes: residual and norm twice; gate, up and
  their product; queries, keys and values repeated for each query head, and the attention's output; with norms on
  queries and keys, as in Qwen3, 2 (q + k) more;
- each token whose layers are computed again in the backward pass: 2 h for each layer, and one layer as above;
- 8 h for embedding and last norm. The fused head keeps no logits.

At the Qwen3-4B shape that is 4.41 MB a token, and 0.327 MB with recomputation; measured on an H200 between 8,192 and
20,480 tokens 4.44 MB, between 16,384 and 32,768 tokens 0.323 MB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIGABYTE = 10**9
ASIDE = 6 * GIGABYTE
SHARE = 0.9
STATE_BYTES = {"weights": 4, "gradients": 4, "moments": 8}
"""Bytes a parameter."""
ADAPTER_STATE_BYTES = 4
"""With LoRA the base has weights only; adapters are a hundredth of them."""

MOST_TOKENS = 32_768
"""Of an update's pass; more was not faster: 376 TFLOP/s at 16,384 tokens, 382 at 32,768 (Qwen3-4B shape, H200)."""
LEAST_KEPT = 8_192
"""Tokens under which activations are computed again: 442 TFLOP/s at 8,192 kept, 459 at 16,384, 382 computed again."""
MOST_TOKENS_FORWARD = 65_536
"""Of a pass without gradients; 478 TFLOP/s at 32,768 tokens, 483 at 65,536."""
UNKNOWN_MODEL = 16_384
"""Tokens of a pass for a model whose shape or GPU is not known, with recomputation."""
ROUND = 1_024


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
        layer = self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.intermediate)
        total = self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)
        if self.vision:
            hidden, intermediate, layers, _ = self.vision
            total += layers * hidden * (4 * hidden + 3 * intermediate)
        return total

    def activations(self, recompute: bool, image_share: float = 0.0) -> float:
        """Bytes that a token holds until the backward pass reaches it.

        Args:
            recompute: whether layers are computed again.
            image_share: share of the tokens that stand for a part of an image.
        """
        widths = 4 * self.hidden + 3 * self.intermediate + 4 * self.queries
        kept = _kept(
            2 * (widths + (self.queries + self.keys) * self.norms_queries), self.hidden, self.layers, recompute
        )
        total = kept + 8 * self.hidden
        if self.vision and image_share:
            hidden, intermediate, layers, patches = self.vision
            total += image_share * patches * _kept(2 * (8 * hidden + 3 * intermediate), hidden, layers, recompute)
        return total


def _kept(layer: float, hidden: int, layers: int, recompute: bool) -> float:
    return 2 * hidden * layers + layer if recompute else layer * layers


def _config(folder: Path | None) -> dict[str, Any]:
    """`config.json`; empty where there is none. One that cannot be read is what the check of the model speaks of."""
    path = folder / "config.json" if folder else None
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else {}
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def model_type(folder: Path | None) -> str | None:
    """transformers' name of the architecture; None where it is not known."""
    return _config(folder).get("model_type")


def shape(folder: Path | None) -> Shape | None:
    """The shape in a model's `config.json`; None where there is none, or it is no dense decoder."""
    try:
        return shape_of(_config(folder))
    except (KeyError, TypeError):
        return None


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """As `shape`, from what `config.json` holds. Raises KeyError where a size is missing."""
    text = {**config, **(config.get("text_config") or {})}
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
class Passes:
    """Tokens of a pass of the update and of one without gradients, and whether the update computes layers again."""

    update: int
    forward: int
    recompute: bool


def passes(
    model: Shape | None,
    memory: int | None,
    *,
    ranks: int,
    longest: int,
    image_share: float = 0.0,
    networks: int = 1,
    adapters: bool = False,
    recompute: bool | None = None,
) -> Passes:
    """What fits.

    Args:
        model: its shape; None where it is not known.
        memory: bytes of one GPU; None where it is not known.
        ranks: GPUs that share the weights.
        longest: tokens of the longest prompt and response together, which a pass has to hold.
        image_share: share of the tokens that stand for images.
        networks: models of this shape that are trained (two with a critic).
        adapters: whether only LoRA's adapters are trained.
        recompute: what the user decided; None: as memory asks.
    """
    if model is None or memory is None:
        unknown = max(longest, UNKNOWN_MODEL)
        return Passes(unknown, unknown, recompute is not False)
    state = ADAPTER_STATE_BYTES if adapters else sum(STATE_BYTES.values())
    free = SHARE * memory - ASIDE - networks * state * model.parameters / ranks

    def fitting(again: bool, most: int) -> int:
        return min(most, max(0, int(free / model.activations(again, image_share))) // ROUND * ROUND)

    kept = fitting(again=False, most=MOST_TOKENS)
    again = recompute if recompute is not None else kept < max(LEAST_KEPT, 2 * longest)
    update = fitting(again=True, most=MOST_TOKENS) if again else kept
    # Without gradients one layer's activations are alive at a time, and these are fewer bytes than the count below.
    layer = model.activations(True, image_share)
    forward = min(MOST_TOKENS_FORWARD, max(0, int(free / layer)) // ROUND * ROUND)
    return Passes(max(longest, update), max(longest, forward), again)


def decoding(responses: int) -> int:
    """Responses that one vLLM engine decodes at once: all of a step's, 256 (for validations) to 1,024."""
    return max(256, min(1_024, -(-responses // 64) * 64))


def graph_sizes(most: int) -> list[int]:
    """Batch sizes with a CUDA graph: fewer than vLLM's own 67 for 512, which take 10 s, and up to `most`.

    Between two sizes a batch is filled up; decoding reads all weights whatever the batch, so that costs little.
    """
    sizes = [1, 2, 4, 8, 16, *range(32, 257, 32), *range(320, 1_025, 64)]
    return [size for size in sizes if size < most] + [most]
