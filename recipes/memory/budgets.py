"""Tokens that fit a pass on a GPU, from the model's shape and the GPU's memory.

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

from dataclasses import dataclass

from recipes.memory.shape import Shape

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
class TokenBudgets:
    """Tokens of a pass with gradients (`update`) and without (`forward`); whether the update recomputes activations."""

    update: int
    forward: int
    recompute: bool


def state_bytes(model: Shape, adapters: bool) -> int:
    """Bytes that stay of a trained network on all its ranks: weights, gradients and moments; with LoRA the weights."""
    return (ADAPTER_STATE_BYTES if adapters else STATE_BYTES) * model.parameters


def token_budgets(
    model: Shape | None,
    memory: int | None,
    *,
    ranks: int,
    longest: int,
    image_share: float = 0.0,
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
        adapters: whether only LoRA's adapters are trained.
        recompute: what the user decided; None: as memory asks.
        liger: as for `Shape.activations`.
    """
    if model is None or memory is None:
        unknown = max(longest, TOKENS_OF_UNKNOWN_MODEL)
        return TokenBudgets(unknown, unknown, recompute is not False)
    state = state_bytes(model, adapters) / ranks
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
