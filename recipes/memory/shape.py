"""The sizes of a model, from its `config.json` or from a list of published ones."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from recipes.model_files import model_config, text_config


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense decoder, and of the vision tower in front of it where it has one.

    `queries` and `keys` are widths, of all query heads and of all key heads together; `heads` counts the query heads.
    """

    hidden: int
    intermediate: int
    layers: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool
    norms_queries: bool
    heads: int = 1
    vision: tuple[int, int, int, int] | None = None
    """The vision tower's hidden and intermediate size, layers, and patches per image token."""

    @property
    def parameters(self) -> int:
        """Weights of embeddings, layers and vision tower; norms and biases are a thousandth of them."""
        hidden, intermediate, layers, _ = self.vision or (0, 0, 0, 0)
        tower = layers * hidden * (4 * hidden + 3 * intermediate)
        return self.layers * self.layer_parameters + self.embedding_parameters + tower

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer of the decoder."""
        return self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.intermediate)

    @property
    def embedding_parameters(self) -> int:
        """Weights of embedding and head, counted once where they are tied."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int) -> int:
        """Weights of LoRA's adapters on every linear module of the decoder's layers."""
        widths = 7 * self.hidden + 2 * self.queries + 2 * self.keys + 3 * self.intermediate
        return self.layers * rank * widths

    def gathered(self, compute_bytes: int = 2, trained: bool = True) -> float:
        """Bytes of what FSDP gathers whole on each GPU: two layers, embedding and head; if they are trained, also the
        gradients of one layer, embedding and head, in the compute dtype and in float32."""
        gradients = (compute_bytes + 4) * trained
        ends = (compute_bytes + gradients) * self.embedding_parameters
        return (2 * compute_bytes + gradients) * self.layer_parameters + ends

    def layer_activations(self, liger: bool = True) -> float:
        """Bytes of activations that a token holds in one layer of a dense decoder, in 16 bits.

        Residual and norm, twice; gate, up and their product; queries, keys and values repeated for each query head, and
        the attention's output; with norms on queries and keys, as in Qwen3, both once more. Without liger float32
        copies in the norms and the activated gate besides.
        """
        normed = (self.queries + self.keys) * self.norms_queries
        kept = 2 * (4 * self.hidden + 3 * self.intermediate + 4 * self.queries + normed)
        return kept if liger else kept + 8 * self.hidden + 2 * self.intermediate + 4 * normed

    def activations(self, recompute: bool, image_share: float = 0.0, liger: bool = True) -> float:
        """Bytes of activations that a token holds until the backward pass reaches it.

        With `recompute` that pass computes layers again; `image_share` of the tokens stand for a part of an image.
        """
        total = _kept(self.layer_activations(liger), self.hidden, self.layers, recompute) + 8 * self.hidden
        return total + image_share * self.image_activations(recompute)

    def image_activations(self, recompute: bool) -> float:
        """Bytes of activations that a token of an image holds in the vision tower."""
        hidden, intermediate, layers, patches = self.vision or (0, 0, 0, 0)
        return patches * _kept(2 * (8 * hidden + 3 * intermediate), hidden, layers, recompute)


def _kept(layer: float, hidden: int, layers: int, recompute: bool) -> float:
    return 2 * hidden * layers + layer if recompute else layer * layers


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys of `config.json` without which a model's sizes are not known."""


def shape(folder: Path | None) -> Shape | None:
    """The shape in a model's `config.json`; None where a size is missing or 0, or the model is no dense decoder."""
    try:
        return shape_of(model_config(folder))
    except (KeyError, TypeError):
        return None


def published_shape(name: str) -> Shape | None:
    """The shape of a model on a hub by its name, for a model that was not fetched yet; None if it is not listed."""
    return shape_of(config) if (config := published_config(name)) else None


def published_config(name: str) -> dict[str, Any]:
    """The sizes in the `config.json` of a model on a hub, by its name; empty if it is not listed."""
    plain = re.sub(r"-(instruct|base)(-\d+)?$", "", name.partition("@")[0].lower())
    return next((config for known, config in published().items() if known.lower() == plain), {})


@cache
def published() -> dict[str, dict[str, Any]]:
    """Sizes in the `config.json` of models on the hub, by name; the forms -Instruct and -Base have the same."""
    return yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))["models"]


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """As `shape`, from what `config.json` holds. Raises KeyError where a size is missing."""
    text = text_config(config)
    are_sizes = all(isinstance(text[name], int) and text[name] > 0 for name in SIZES)
    if not are_sizes or any("expert" in name for name in text):
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
        heads=heads,
        vision=(tower["hidden_size"], tower["intermediate_size"], tower["depth"], patches) if tower else None,
    )
