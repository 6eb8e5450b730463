"""Tiny language models that learn from demonstrations: shapes, batches, loss and responses, for every task in text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from recipes.errors import RecipeError
from tools.tiny_models.pretrain import IGNORED, PLAIN_SAMPLING, PretrainPlan, Spec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class Example(NamedTuple):
    """One demonstration: the user's message and the response."""

    prompt: str
    response: str


@dataclass(frozen=True)
class TextShape:
    """Sizes of a language model. `head` is 32 because vLLM's CPU attention takes no smaller one."""

    hidden: int = 160
    layers: int = 4
    heads: int = 5
    kv_heads: int = 5
    head: int = 32
    intermediate: int = 448
    positions: int = 512


SIZES = {
    "6m": (TextShape(hidden=320, layers=5, heads=5, kv_heads=5, head=64, intermediate=896), 1.5e-3),
    "27m": (TextShape(hidden=512, layers=8, heads=8, kv_heads=8, head=64, intermediate=1536), 1e-3),
    "110m": (TextShape(hidden=768, layers=12, heads=12, kv_heads=12, head=64, intermediate=3072), 6e-4),
}
"""Millions of parameters -> the shape of a larger model than the one that ships, and the peak learning rate that suits
it; for a GPU, where 1,200 steps of Countdown's 27m take about two minutes."""


Annotators = TypeVar("Annotators")
Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class TextPlan(PretrainPlan, Generic[Annotators, Settings]):
    """A plan whose demonstrations are drawn before the first step.

    Attributes:
        examples: distinct demonstrations; with `steps * batch` larger than that they are seen again.
        annotators, settings: the task's own dataclasses: who wrote the demonstrations, and of which problems.
    """

    examples: int
    annotators: Annotators
    settings: Settings
    shape: TextShape = TextShape()


class TextSpec(Spec[TextPlan[Annotators, Settings]], Generic[Annotators, Settings]):
    """A tiny Qwen2 or Qwen3 that learns from demonstrations by imperfect annotators.

    Attributes:
        architecture: as transformers names it in front of `Config` and `ForCausalLM`.
        response: tokens that a response may take.
    """

    architecture: str
    response: int

    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer, the same one each time."""

    @abstractmethod
    def examples(self, plan: TextPlan[Annotators, Settings], seed: int, count: int) -> Iterator[Example]:
        """Demonstrations, none of a held-out problem; the same seed gives the same ones."""

    def build(self, plan: TextPlan[Annotators, Settings]) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """See `Spec.build`. The vocabulary is exactly the tokenizer's."""
        import torch
        import transformers

        tokenizer, shape = self.tokenizer(), plan.shape
        torch.manual_seed(plan.seed)
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        config = getattr(transformers, f"{self.architecture}Config")(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head,
            max_position_embeddings=shape.positions,
            max_window_layers=shape.layers,
            tie_word_embeddings=True,
            bos_token_id=None,
            **ends,
        )
        model = getattr(transformers, f"{self.architecture}ForCausalLM")(config)
        ends["eos_token_id"] = [tokenizer.eos_token_id, tokenizer.pad_token_id]
        model.generation_config = transformers.GenerationConfig(**ends, **PLAIN_SAMPLING)
        return model, tokenizer

    def losses(
        self, plan: TextPlan[Annotators, Settings], model: PreTrainedModel, processor: Any
    ) -> Callable[[int], torch.Tensor]:
        """See `Spec.losses`: cross-entropy of the responses and their end marks."""
        import torch

        if plan.batch > plan.examples:
            raise RecipeError(f"--batch {plan.batch} is larger than --examples {plan.examples}", fix="make it smaller")
        drawn = list(self.examples(plan, plan.seed, plan.examples))
        batches = encode(processor, drawn, str(model.device), plan.seed)
        if model.device.type == "cpu":
            model.set_attn_implementation("eager")  # with sdpa half of a step is spent in attention's backward pass

        def loss(step: int) -> torch.Tensor:
            inputs, labels = batches.at(step, plan.batch)
            with torch.autocast(model.device.type, dtype=torch.bfloat16):
                hidden = model.model(input_ids=inputs).last_hidden_state
                learned = labels != IGNORED
                logits = model.lm_head(hidden[learned])
            return torch.nn.functional.cross_entropy(logits.float(), labels[learned])

        return loss

    def respond(self, model: PreTrainedModel, processor: Any, prompts: Sequence[str], *, sample: bool) -> list[str]:
        """See `Spec.respond`."""
        import torch

        texts = chat_texts(processor, prompts)
        inputs = processor(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=self.response,
                **(PLAIN_SAMPLING if sample else {"do_sample": False}),
            )
        return processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def save_processor(self, processor: Any, folder: Path) -> None:
        """Write the tokenizer with its chat template inside."""
        processor.save_pretrained(folder, save_jinja_files=False)


@dataclass(frozen=True)
class Batches:
    """All demonstrations: `inputs` and `labels`, both (count, length) int64, padded on the right.

    Causal attention keeps the padding from what stands before it, so no mask is needed. Only the response and its end
    mark are learned.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    seed: int

    def at(self, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of one step; each epoch has its own order."""
        epoch, place = divmod(step, len(self.inputs) // size)
        rows = _order(len(self.inputs), self.seed * 1000 + epoch)[place * size : (place + 1) * size]
        rows = rows.to(self.inputs.device)
        return self.inputs[rows], self.labels[rows]


@lru_cache(maxsize=1)
def _order(count: int, seed: int) -> torch.Tensor:
    """A random order of `count` demonstrations."""
    import torch

    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def chat_texts(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> list[str]:
    """User messages in the chat format, up to where the model's turn begins."""
    mark = "\0"  # the template is rendered once: it takes longer than everything else
    chat = [{"role": "user", "content": mark}]
    before, after = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True).split(mark)
    return [before + prompt + after for prompt in prompts]


def encode(tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], device: str, seed: int) -> Batches:
    """Tokenize demonstrations; the prompt's labels are ignored."""
    import numpy as np
    import torch

    def ids(texts: list[str]) -> list[list[int]]:
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    distinct = list(dict.fromkeys(example.prompt for example in examples))
    known = dict(zip(distinct, ids(chat_texts(tokenizer, distinct)), strict=True))
    prompts = [known[example.prompt] for example in examples]
    responses = ids([example.response + tokenizer.eos_token for example in examples])
    length = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)) - 1
    inputs = np.full((len(examples), length), tokenizer.pad_token_id)
    labels = np.full((len(examples), length), IGNORED)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens = prompt + response
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        labels[row, len(prompt) - 1 : len(tokens) - 1] = response
    return Batches(torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device), seed)
