"""Random-weight models with the sizes of a published architecture, for timing where its weights are not available.

A random model gives all tokens about the same probability, so its responses hardly ever end. Here the end token has the
probability that the caller asks for: one dimension of the residual stream is a constant that no layer writes to, and
the end token's row of the output embedding reads it. Response lengths are then geometric, as varied as in real runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.memory.shape import published
from recipes.paths import ROOT

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SHAPES: dict[str, dict[str, Any]] = {
    **{name.rpartition("/")[2].lower(): sizes for name, sizes in published().items()},
    "tiny": {
        "architecture": "Qwen3",
        "vocab_size": 1024,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "tie_word_embeddings": True,
    },
}
"""Short name -> the sizes in `config.json`."""
VISION_TEMPLATE = ROOT / "recipes/tasks/number_game/tiny/chat_template.jinja"
SHARD = "4GB"
"""Largest size of one weights file."""
SPREAD = 0.02
CONSTANT = 1.0
"""The constant dimension's value: small, as tied embeddings add it to all logits and bf16 rounds large ones more."""


def build(
    name: str, folder: Path, texts: Iterable[str], *, mean_tokens: float, device: str | None = None, seed: int = 0
) -> None:
    """Write model, tokenizer and generation settings of a shape to a folder.

    Args:
        name: one of `SHAPES`.
        texts: the tokenizer's training texts; the other entries of its vocabulary only occur in sampled responses.
        mean_tokens: average length of responses without a length limit.
        device: where the weights are drawn; None: a GPU if there is one, as a CPU takes minutes for billions of them.
    """
    import torch

    sizes = SHAPES[name]
    vision = "vision_config" in sizes
    tokenizer = _tokenizer(texts, sizes["vocab_size"], vision)
    torch.manual_seed(seed)
    with torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")):
        model = _empty(sizes, tokenizer)
    with torch.no_grad():
        _end_with(model, tokenizer.eos_token_id, 1.0 / mean_tokens)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=SHARD)
    tokenizer.save_pretrained(folder)
    if vision:
        _processor(tokenizer).save_pretrained(folder)


def parameters(folder: Path) -> int:
    """Return the number of weights in a model's files; tied weights count once."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return total


def _tokenizer(texts: Iterable[str], size: int, vision: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer trained on the texts, with Qwen's special tokens and chat format, padded to `size` entries."""
    from tokenizers import Tokenizer

    from tools.tiny_models.text import CHAT_TEMPLATE, SPECIAL, train_tokenizer

    marks = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")

    tokenizer = train_tokenizer(
        texts,
        r"[0-9]|\s?[A-Za-z]+|[^\sA-Za-z0-9]|\s+",
        special=(*SPECIAL, *marks) if vision else SPECIAL,
        chat_template=VISION_TEMPLATE.read_text(encoding="utf-8") if vision else CHAT_TEMPLATE,
        max_length=32_768,
    )
    missing = size - len(tokenizer)
    if missing < 0:
        raise RecipeError(f"the texts have more pieces than {size}", where="tokenizer", fix="give fewer texts")
    # Entries of the BPE model load in a second; as many added tokens would take every process minutes.
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    first = len(tokenizer)
    content["model"]["vocab"] |= {f"\u0120word{index}": first + index for index in range(missing)}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(content))
    return tokenizer


def _processor(tokenizer: PreTrainedTokenizerFast) -> Any:
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessorFast, Qwen2VLVideoProcessor

    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessorFast(),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    )


def _empty(sizes: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """The model in bf16 with transformers' own random weights."""
    import torch
    import transformers

    others = ("architecture", "model_type", "mrope_section", "rope_theta")
    given = {key: value for key, value in sizes.items() if key not in others}
    rope = {"rope_type": "default", "rope_theta": sizes.get("rope_theta", 1e4)}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    common = {"initializer_range": SPREAD, "max_position_embeddings": 32_768, "rope_parameters": rope, **ends}
    if "vision_config" not in sizes:
        config = getattr(transformers, f"{sizes['architecture']}Config")(**given, **common)
        kind = getattr(transformers, f"{sizes['architecture']}ForCausalLM")
    else:
        rope["mrope_section"] = sizes["mrope_section"]
        vision, tied = given.pop("vision_config"), given["tie_word_embeddings"]
        identity = tokenizer.convert_tokens_to_ids
        config = transformers.Qwen2_5_VLConfig(
            text_config={**given, **common},
            vision_config=vision,
            image_token_id=identity("<|image_pad|>"),
            video_token_id=identity("<|video_pad|>"),
            vision_start_token_id=identity("<|vision_start|>"),
            vision_end_token_id=identity("<|vision_end|>"),
            tie_word_embeddings=tied,
            **ends,
        )
        kind = transformers.Qwen2_5_VLForConditionalGeneration
    model = kind._from_config(config, dtype=torch.bfloat16)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=ends["eos_token_id"], pad_token_id=ends["pad_token_id"], do_sample=True
    )
    return model


def _end_with(model: PreTrainedModel, end: int, probability: float) -> None:
    """Give the end token about this probability at every position, whatever the context."""
    import torch

    text = getattr(model.model, "language_model", model.model)
    for layer in text.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    inputs[:, 0] = CONSTANT
    ids = torch.randint(0, inputs.shape[0], (4, 64), device=inputs.device)
    hidden = text(input_ids=ids, use_cache=False).last_hidden_state.float()
    constant = hidden[..., 0].mean()
    others = outputs.float().clone()
    others[end, 1:] = 0
    logits = hidden.flatten(0, 1)[:64] @ others.T
    logits[:, end] = -math.inf
    wanted = math.log(probability / (1 - probability)) + logits.logsumexp(-1).mean()
    outputs[end, 1:] = 0
    outputs[end, 0] = (wanted / constant).to(outputs.dtype)
