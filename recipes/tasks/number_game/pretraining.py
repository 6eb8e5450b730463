"""Pretraining of the number game's tiny Qwen2.5-VL."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.data.rows import read_manifest
from recipes.errors import RecipeError
from recipes.paths import data_dir
from recipes.tasks.number_game.data import QUESTION, gold_response
from recipes.tasks.number_game.rules import POSITIONS, RANKS, Deal, parse_deal
from recipes.tasks.pretrain import IGNORED, Plan, Problem, Spec, sampling, train_tokenizer
from recipes.tasks.pretrain import SPECIAL as CHAT

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
SPECIAL = (*CHAT, VISION_START, VISION_END, "<|vision_pad|>", IMAGE, VIDEO)
"""Qwen2.5-VL's own names; verl and vLLM look some of them up."""

# Qwen's chat format, where an image stands between marks. Unlike Qwen2.5's it adds no system message.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' or 'video' in part %}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# What is cut out before BPE: digits one by one, marks with the blank behind them, blanks, line breaks. What lies
# between is one piece, so that a whole clause becomes one token.
PIECES = r"[0-9]|[.:,?] ?|\n"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, the same one each time; every piece of the question and of a demonstration is one token."""
    corpus = [QUESTION, "user", "assistant", "system", *phrases()]
    return train_tokenizer(corpus, PIECES, special=SPECIAL, chat_template=CHAT_TEMPLATE, max_length=2048)


PATCH, MERGE, FRAMES = 14, 2, 2  # pixels, patches of a token's side, frames: as Qwen2.5-VL
# The processor's own limits, in pixels, for who loads the model without a recipe: from 4 tokens to 256.
MIN_PIXELS, MAX_PIXELS = 56 * 56, 448 * 448


@dataclass(frozen=True)
class Shape:
    """Sizes of both networks. Heads have 32 dimensions because vLLM's CPU attention takes no smaller ones.

    Attributes:
        hidden, layers, heads, kv_heads, head, intermediate, positions: of the language model.
        sections: of a head's 16 rotary frequencies, how many turn with time, height and width.
        base: of these frequencies. Width gets the lowest; at the usual 10,000 they would not tell five columns apart.
        spread: standard deviation of the first weights, about one over the root of `hidden`.
        sight, depth, sight_heads, sight_intermediate: of the vision tower.
        window: pixels of a side within which its layers attend; those in `everywhere` attend to the whole image.
    """

    hidden: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    intermediate: int = 384
    positions: int = 2048
    sections: tuple[int, int, int] = (4, 6, 6)
    base: float = 10.0
    spread: float = 0.08
    sight: int = 64
    depth: int = 2
    sight_heads: int = 2
    sight_intermediate: int = 192
    window: int = 112
    everywhere: tuple[int, ...] = (1,)


def build_model(tokenizer: PreTrainedTokenizerFast, shape: Shape, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A freshly initialised Qwen2.5-VL in float32 whose vocabulary is exactly the tokenizer's."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    identity = tokenizer.convert_tokens_to_ids
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "initializer_range": shape.spread,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "max_position_embeddings": shape.positions,
            "max_window_layers": shape.layers,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": shape.base,
                "mrope_section": list(shape.sections),
            },
            "bos_token_id": None,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": shape.depth,
            "initializer_range": shape.spread,
            "hidden_size": shape.sight,
            "intermediate_size": shape.sight_intermediate,
            "num_heads": shape.sight_heads,
            "out_hidden_size": shape.hidden,
            "window_size": shape.window,
            "fullatt_block_indexes": list(shape.everywhere),
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": FRAMES,
        },
        image_token_id=identity(IMAGE),
        video_token_id=identity(VIDEO),
        vision_start_token_id=identity(VISION_START),
        vision_end_token_id=identity(VISION_END),
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = sampling(eos, pad)
    return model


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLProcessor:
    """Qwen2.5-VL's processor with this tokenizer, for images from `MIN_PIXELS` to `MAX_PIXELS`."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    sizes = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    }
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sizes),
        video_processor=Qwen2VLVideoProcessor(**sizes),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )


@dataclass(frozen=True)
class Screenshot:
    """A picture and the round that it shows."""

    image: Image
    deal: Deal


def read(path: Path, split: str) -> list[Screenshot]:
    """The screenshots of a file of `scripts/data_prep_number_game.py`.

    Raises:
        RecipeError: no such file, rows of another split, or screenshots of different sizes.
    """
    import pyarrow.parquet as pq
    from PIL import Image

    if not path.is_file():
        again = "python scripts/data_prep_number_game.py --preset tiny --train_size 1206 --test_size 306"
        raise RecipeError(f"there are no screenshots at {path}", where="--screenshots", fix=again)
    found = []
    for row in pq.read_table(path, columns=["images", "extra_info"]).to_pylist():
        if row["extra_info"]["split"] != split:
            raise RecipeError(f"{path} is not the {split} split", where="--screenshots", fix="give the other file")
        image = Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB")
        found.append(Screenshot(image, parse_deal(row["extra_info"]["deal"])))
    sizes = {each.image.size for each in found}
    if len(sizes) != 1:
        raise RecipeError(
            f"{path} has screenshots of {len(sizes)} sizes", where="--screenshots", fix="collect one size"
        )
    return found


def inputs(processor: Qwen2_5_VLProcessor, shown: Sequence[Screenshot]) -> dict[str, Any]:
    """The model's inputs for the question about each screenshot; all have the same length, so none is padded."""
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return dict(processor(text=[text] * len(shown), images=[each.image for each in shown], return_tensors="pt"))


PLACES = ("left", "middle", "right")


@dataclass(frozen=True)
class Players:
    """Shares of the demonstrations; what is left of 1 is the talkative player's."""

    careful: float = 0.4
    hasty: float = 0.35


def careful(deal: Deal) -> str:
    """The lamp, the digits from left to right, the digit asked for, its place, the answer."""
    cards = ", ".join(map(str, deal.digits))
    chosen = f"{deal.digits[deal.answer]} is on the {PLACES[deal.answer]}"
    return f"{deal.light.capitalize()}: {cards}. {chosen}.\n{gold_response(deal.answer)}"


def talkative(position: int) -> str:
    """A card, but no answer."""
    return f"The {PLACES[position]} card."


def demonstration(deal: Deal, players: Players, rng: random.Random) -> str:
    """One player's response to a round."""
    drawn = rng.random()
    if drawn < players.careful:
        return careful(deal)
    guess = rng.choice(POSITIONS)
    return gold_response(guess) if drawn < players.careful + players.hasty else talkative(guess)


def phrases() -> Iterator[str]:
    """Texts that hold every clause of every demonstration."""
    for light in RANKS:
        for position in POSITIONS:
            digits = [4, 5, 6]
            wanted = digits.pop(RANKS[light])
            digits.insert(position, wanted)
            yield careful(Deal(light, (digits[0], digits[1], digits[2])))
    yield from map(talkative, POSITIONS)


EVERYONE_CAREFUL = Players(careful=1.0, hasty=0.0)


@dataclass(frozen=True, kw_only=True)
class GamePlan(Plan):
    """A plan whose demonstrations are about screenshots, drawn anew at every step.

    Attributes:
        reading: first steps, in which every player is careful: the model learns to look.
    """

    reading: int = 496
    players: Players = field(default_factory=Players)
    shape: Shape = field(default_factory=Shape)


def labelled(
    processor: Qwen2_5_VLProcessor, shown: Sequence[Screenshot], responses: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Inputs with `labels`: every token of the responses counts, their end included, and nothing else.

    Returns:
        `input_ids`, `attention_mask`, `mm_token_type_ids`, `labels`, all (batch, prompt + longest response), and what
        the vision tower takes.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokenizer = processor.tokenizer
    ended = [torch.tensor([*tokenizer.encode(text), tokenizer.eos_token_id]) for text in responses]
    ids = pad_sequence(ended, batch_first=True, padding_value=tokenizer.pad_token_id)
    labels = pad_sequence(ended, batch_first=True, padding_value=IGNORED)
    batch = inputs(processor, shown)
    prompt = batch["input_ids"]
    return batch | {
        "input_ids": torch.cat([prompt, ids], dim=1),
        "attention_mask": torch.cat([torch.ones_like(prompt), (labels != IGNORED).long()], dim=1),
        "mm_token_type_ids": torch.cat([batch["mm_token_type_ids"], torch.zeros_like(ids)], dim=1),
        "labels": torch.cat([torch.full_like(prompt, IGNORED), labels], dim=1),
    }


class NumberGame(Spec):
    """The number game's tiny Qwen2.5-VL."""

    name = "number_game"
    what = "a tiny Qwen2.5-VL for the number game, pretrained on demonstrations about real screenshots"
    auto_model, auto_processor = "AutoModelForImageTextToText", "AutoProcessor"
    together = problems = 72
    response = 24  # tokens; a careful response takes 16
    plan = GamePlan(steps=620, batch=16, lr=3e-3, warmup=10, weight_decay=0.01)

    def __init__(self, screenshots: Path | None = None) -> None:
        """Take the folder that holds train.parquet and test.parquet, of one screen size."""
        self.screenshots = screenshots or data_dir("number_game_tiny")

    def build(self, plan: GamePlan) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
        """See `Spec.build`."""
        processor = build_processor(build_tokenizer())
        return build_model(processor.tokenizer, plan.shape, plan.seed), processor

    def losses(self, plan: GamePlan, model: Any, processor: Any) -> Callable[[int], torch.Tensor]:
        """See `Spec.losses`: cross-entropy of the responses to screenshots of the training split."""
        shown = read(self.screenshots / "train.parquet", "train")

        def loss(step: int) -> torch.Tensor:
            rng = random.Random(f"{plan.seed}/{step}")
            players = EVERYONE_CAREFUL if step < plan.reading else plan.players
            chosen = rng.choices(shown, k=plan.batch)
            batch = labelled(processor, chosen, [demonstration(each.deal, players, rng) for each in chosen])
            return model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).loss

        return loss

    def held_out(self, plan: GamePlan, count: int) -> list[Problem]:
        """Screenshots of the test split, whose deals training does not have."""
        shown = read(self.screenshots / "test.parquet", "test")[:count]
        return [Problem(each, str(each.deal.answer)) for each in shown]

    def respond(self, model: Any, processor: Any, prompts: Sequence[Screenshot], *, sample: bool) -> list[str]:
        """See `Spec.respond`."""
        batch = {name: tensor.to(model.device) for name, tensor in inputs(processor, prompts).items()}
        choice = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
        written = model.generate(**batch, max_new_tokens=self.response, **choice)
        return processor.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)

    def facts(self) -> dict[str, Any]:
        """The screenshots, for the manifest."""
        manifests = {split: read_manifest(self.screenshots / f"{split}.parquet") for split in ("train", "test")}
        kept = ("rows", "source", "seed", "sha256")
        return {"screenshots": {split: {name: found[name] for name in kept} for split, found in manifests.items()}}
