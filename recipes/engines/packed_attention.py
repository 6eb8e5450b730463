"""Attention over packed responses on CPUs, and on GPUs that have no flash-attn.

Responses packed into one row, one after the other, need an attention that keeps them apart. verl and transformers ask
the package flash-attn for it, which has to be compiled against the installed torch. PyTorch brings the same kernel for
GPUs: `torch.nn.attention.varlen.varlen_attn`, with its backward pass, from torch 2.11 on; on CPUs `one_by_one` replaces
it. This module offers it to transformers under the name `NAME`, for text models and vision towers. Qwen2-VL and
Qwen2.5-VL keep transformers' attention, which verl would replace by one that calls flash-attn.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from recipes.config.gpus import PACKED_ATTENTION
from recipes.errors import RecipeError

NAME = PACKED_ATTENTION
"""The attention's name in transformers. It contains "flash" because transformers then hands over the bounds of packed
images to vision towers instead of calling the attention once for each window."""

UNLIMITED = (-1, -1)
"""flash-attn's window that sees everything."""


def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = UNLIMITED,
) -> torch.Tensor:
    """flash-attn's `flash_attn_varlen_func`: each sequence attends only to itself.

    Args:
        q: (tokens, heads, dim), as the result; sequence i is `q[cu_seqlens_q[i]:cu_seqlens_q[i + 1]]`.
        k, v: (tokens, key heads, dim); query heads are a multiple of the key heads. With fewer queries than keys the
            last query is aligned with the last key.
        cu_seqlens_q, cu_seqlens_k: int32 bounds, one more than there are sequences.
        window_size: keys seen to the left and to the right, -1 for all.

    Raises RecipeError for dropout, and for a dtype that the GPU kernel does not take.
    """
    if dropout_p:
        what = f"PyTorch's packed attention has no dropout, and the model asks for {dropout_p}"
        where = "attention_dropout in the model's config.json"
        raise RecipeError(what, where=where, fix="set it to 0, or install flash-attn")
    if q.is_cuda and q.dtype not in (torch.bfloat16, torch.float16):
        what = f"packed attention on GPUs computes in bf16 or fp16, and the queries are {q.dtype}"
        where = "worker.actor.fsdp.mp_param_dtype"
        raise RecipeError(what, where=where, fix="set it to bf16, or worker.actor.padding_free to false")
    options: Any = {"scale": softmax_scale, "window_size": (window_size[0], 0) if causal else window_size}
    if not q.is_cuda:
        return one_by_one(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    from torch.nn.attention.varlen import varlen_attn

    if q.size(1) != k.size(1):  # torch 2.11's kernel wants a key head for each query head
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    return varlen_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), **options)


def one_by_one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bounds_q: torch.Tensor,
    bounds_k: torch.Tensor,
    *,
    scale: float | None,
    window_size: tuple[int, int],
) -> torch.Tensor:
    """`varlen_attn` on any device, one sequence after the other; there may be fewer key heads than query heads.

    On a CPU it costs less than padding: 64 responses of 25 tokens on average and 64 at most took 0.57 s of processor
    time with their gradients, and 0.90 s padded.
    """
    outputs = []
    queries, keys, values = (
        x.transpose(0, 1)[None].split(bounds.diff().tolist(), dim=2)  # with a batch, for PyTorch's fused kernel
        for x, bounds in ((q, bounds_q), (k, bounds_k), (v, bounds_k))
    )
    for query, key, value in zip(queries, keys, values, strict=True):
        lengths = query.size(2), key.size(2)
        causal = window_size == (-1, 0) and lengths[0] == lengths[1]
        seen = None if causal or window_size == UNLIMITED else _window(*lengths, window_size, q.device)
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=seen, is_causal=causal, scale=scale, enable_gqa=True
            )
        )
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)


def _window(queries: int, keys: int, window_size: tuple[int, int], device: torch.device) -> torch.Tensor:
    """The keys that each query sees, (queries, keys), where the last query and the last key are aligned."""
    at_query = torch.arange(keys - queries, keys, device=device)
    offset = torch.arange(keys, device=device)[None, :] - at_query[:, None]
    left, right = (torch.inf if limit < 0 else limit for limit in window_size)
    return (offset >= -left) & (offset <= right)


def batched_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = UNLIMITED,  # EasyR1 gives it where the signature names it
) -> torch.Tensor:
    """flash-attn's `flash_attn_func`: rows of one length, (batch, tokens, heads, dim) in and out."""
    batch, queries, keys = q.size(0), q.size(1), k.size(1)
    ends = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    query, key, value = (x.flatten(0, 1) for x in (q, k, v))
    options = (dropout_p, softmax_scale, causal, window_size)
    packed = packed_attention(query, key, value, ends * queries, ends * keys, queries, keys, *options)
    return packed.unflatten(0, (batch, queries))


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention registered with transformers: transformers' flash-attn forward, with bounds computed once a pass.

    transformers computes the bounds of packed sequences in every layer, and each time the host waits for the GPU. All
    layers get the same tensor of positions or bounds, so here the results are cached on that tensor. Positions,
    (batch, tokens), are 0 where a sequence starts.

    Raises RecipeError where the model needs what the kernel lacks (soft capping, attention sinks, dropout).
    """
    from transformers.integrations.flash_attention import flash_attention_forward

    for feature in ("softcap", "s_aux"):
        if kwargs.get(feature) is not None:
            what = f"PyTorch's packed attention lacks {feature}, which {type(module).__name__} asks for"
            where = "the model's architecture"
            raise RecipeError(what, where=where, fix="set worker.actor.padding_free to false, or install flash-attn")
    if kwargs.get("cu_seq_lens_q") is not None:
        for side in ("q", "k"):
            kwargs[f"max_length_{side}"] = _longest(kwargs[f"cu_seq_lens_{side}"])
    elif _is_packed(query, key, attention_mask, position_ids):
        bounds = _kept(position_ids, "_packed_bounds", _bounds)
        kwargs |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
        kwargs |= {"max_length_q": _longest(bounds), "max_length_k": _longest(bounds)}
        position_ids = None
    return flash_attention_forward(module, query, key, value, attention_mask, position_ids=position_ids, **kwargs)


def _is_packed(
    query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> bool:
    """Return whether rows are packed and whole; sequences that ranks share (Ulysses) are left to verl."""
    from verl.utils.ulysses import get_ulysses_sequence_parallel_world_size

    return (
        attention_mask is None
        and position_ids is not None
        and position_ids.shape == (query.size(0), query.size(2))
        and query.size(2) == key.size(2)
        and get_ulysses_sequence_parallel_world_size() == 1
    )


def _bounds(position_ids: torch.Tensor) -> torch.Tensor:
    """The starts of sequences, and the end of the last: int32, (sequences + 1,)."""
    starts = position_ids == 0
    starts[:, 0] = True
    end = torch.tensor([position_ids.numel()], device=position_ids.device)
    return torch.cat([starts.flatten().nonzero().flatten(), end]).to(torch.int32)


def _longest(bounds: torch.Tensor) -> int:
    return _kept(bounds, "_longest_sequence", lambda tensor: int(tensor.diff().max()))


def _kept(tensor: torch.Tensor, name: str, compute: Callable[[torch.Tensor], Any]) -> Any:
    """`compute(tensor)`, cached on the tensor and freed with it."""
    if not hasattr(tensor, name):
        setattr(tensor, name, compute(tensor))
    return getattr(tensor, name)


@functools.cache
def registered() -> str:
    """Make `NAME` known to transformers; return it."""
    from transformers import AttentionInterface, AttentionMaskInterface, modeling_flash_attention_utils
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(NAME, attention_forward)
    # Without a mask function transformers drops the mask of padded rows; this one builds none for packed rows.
    AttentionMaskInterface.register(NAME, flash_attention_mask)

    import_functions = modeling_flash_attention_utils._lazy_imports

    @functools.wraps(import_functions)
    def import_ours(implementation: str | None, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if implementation != NAME:
            return import_functions(implementation, *args, **kwargs)
        pads = modeling_flash_attention_utils._pad_input, modeling_flash_attention_utils._unpad_input
        return (batched_attention, packed_attention, None, *pads)

    modeling_flash_attention_utils._lazy_imports = import_ours
    return NAME


@functools.cache
def register() -> None:
    """Make `NAME` known to transformers, and give verl the functions that it would import from flash-attn."""
    registered()
    from verl.models.transformers import qwen2_vl

    # Names that the module takes from flash-attn where it is installed
    # (verl/models/transformers/qwen2_vl.py:45 (`is_flash_attn_2_available()`)).
    qwen2_vl.flash_attn_varlen_func = packed_attention
    qwen2_vl._flash_supports_window_size = True
    qwen2_vl._flash_supports_deterministic = False
    qwen2_vl._flash_use_top_left_mask = False
    qwen2_vl.qwen2_vl_attn_forward = _qwen2_vl_forward(qwen2_vl.qwen2_vl_attn_forward)


def _qwen2_vl_forward(shared_by_ranks: Callable[..., Any]) -> Callable[..., Any]:
    """The attention that verl gives to Qwen2-VL and Qwen2.5-VL (verl/models/transformers/monkey_patch.py:411
    (`Qwen2VLAttention.forward`)).

    verl's own is needed where ranks share sequences (Ulysses). Elsewhere transformers' own does the same, looks for the
    bounds once a pass, keeps the dtype and uses liger's kernels where they are on.
    """
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLAttention
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLAttention
    from verl.utils.ulysses import get_ulysses_sequence_parallel_world_size

    own = {layer: layer.forward for layer in (Qwen2_5_VLAttention, Qwen2VLAttention)}

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if get_ulysses_sequence_parallel_world_size() > 1:
            return shared_by_ranks(self, *args, **kwargs)
        return own[type(self)](self, *args, **kwargs)

    return forward
