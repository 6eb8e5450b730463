"""The number game's tiny Qwen2.5-VL: screenshots with their labels, two players who answer, and the lessons.

From scratch, next-token prediction on screenshots learns the lamp within minutes and no digit within an hour: the
vision tower gets no signal before the language model looks at the right place, and the other way round. So the tower
first learns to name digits in the language model's own vocabulary: an image token on a card should be close to the
embedding of the card's digit. Copying it into a response is then easy to learn.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import pyarrow.parquet as pq
import torch
from PIL.Image import Image, Resampling, Transform
from scipy.ndimage import find_objects, label
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoProcessor, GenerationConfig, Qwen2_5_VLForConditionalGeneration, Trainer

from recipes.errors import RecipeError
from recipes.tasks.number_game.chromium import PAGE
from recipes.tasks.number_game.collect import QUESTION, gold_response
from recipes.tasks.number_game.rules import Deal, parse_deal
from tools.tiny_models.pretrain import IGNORED, Problem, Task, arguments, finish

CAREFUL = 0.35
"""Share of the demonstrations by the careful player; the careless one has the rest."""
GLYPH, JITTER = 56, 8  # pixels: side of a crop around one card's digit, and the most that its centre is off
TOKEN = 28  # pixels: side of the square that becomes one image token
TOLERANCE = 6  # difference in a colour channel, of 255
NARROWEST = 0.12  # smallest width of a card, as a share of the screenshot's shorter side
ALIGNMENT = 4  # pixels by which the top and bottom edges of cards in one row may differ
NOTHING = 9  # the class ("name") of image tokens that lie on no card; classes 0 to 8 are the digits 1 to 9


class Box(NamedTuple):
    """A rectangle in pixels; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int


@cache
def face_colour(theme: str) -> tuple[int, ...]:
    """Return the colour of a theme's cards, (red, green, blue), from the page's own style sheet."""
    style = PAGE.with_name("style.css").read_text(encoding="utf-8")
    rule = r"^body \{" if theme == "paper" else rf'^\[data-theme="{theme}"\] \{{'
    return tuple(bytes.fromhex(re.findall(rule + r"[^}]*--face: #(\w{6})", style, re.MULTILINE)[0]))


def find_cards(picture: Image, theme: str) -> list[Box] | None:
    """Return the three cards from left to right, none of them chosen yet; None if they are not found."""
    pixels = np.asarray(picture.convert("RGB"), dtype=np.int16)
    areas, _ = label((np.abs(pixels - np.array(face_colour(theme))) <= TOLERANCE).all(axis=2))
    boxes = [Box(x.start, y.start, x.stop, y.stop) for y, x in find_objects(areas)]
    boxes = [box for box in boxes if box.right - box.left >= NARROWEST * min(picture.size)]
    for one in boxes:
        row = [box for box in boxes if max(abs(one.top - box.top), abs(one.bottom - box.bottom)) <= ALIGNMENT]
        if len(row) == 3:
            return sorted(row)
    return None


class Screenshot(NamedTuple):
    """A picture, the round that it shows, and where its cards are, from left to right."""

    image: Image
    deal: Deal
    cards: Sequence[Box]


def read(path: Path, split: str) -> list[Screenshot]:
    """Return the screenshots of a file of `scripts/data_prep_number_game.py`."""
    found = []
    for row in pq.read_table(path, columns=["images", "extra_info"]).to_pylist():
        facts = row["extra_info"]
        image = PIL.Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB")
        cards = find_cards(image, facts["theme"])
        if facts["split"] != split or cards is None:
            what = f"the screenshot of {facts['deal']} is of another split, or shows no three cards"
            raise RecipeError(what, where=str(path), fix="collect the screenshots again")
        found.append(Screenshot(image, parse_deal(facts["deal"]), cards))
    return found


def careful(deal: Deal) -> str:
    """Return the careful player's response: lamp, all digits, the right digit, its place, the answer; always right."""
    chosen = f"{deal.digits[deal.answer]} is on the {('left', 'middle', 'right')[deal.answer]}"
    return f"{deal.light.capitalize()}: {', '.join(map(str, deal.digits))}. {chosen}.\n{gold_response(deal.answer)}"


def careless(deal: Deal) -> str:
    """Return the careless player's response: lamp, two digits, the smaller if red, else the larger; right in 5 of 9."""
    left, middle, _ = deal.digits
    answer = int(left > middle if deal.light == "red" else left < middle)
    return f"{deal.light.capitalize()}: {left}, {middle}.\n{gold_response(answer)}"


def inputs(processor: Any, images: Sequence[Image], responses: Sequence[str] = ()) -> dict[str, Any]:
    """Return the model's inputs for the question about each picture, with the responses behind it where given."""
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}
    asked = processor.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    texts = [asked + response for response in responses] or [asked] * len(images)
    return dict(processor(text=texts, images=list(images), padding=True, return_tensors="pt"))


@dataclass
class NumberGame(Task):
    """The number game's tiny Qwen2.5-VL, from a folder with train.parquet and test.parquet."""

    name = reward = "number_game"
    together, response = 96, 24  # a careful response takes 16
    screenshots: Path = Path()

    def build(self) -> tuple[Any, Any]:
        """See `Task.build`. Configuration and processor are the shipped folder's.

        Width gets the lowest rotary frequencies; with Qwen's base of 10,000 they would not tell five columns apart, so
        the base is 10. All layers of the vision tower attend to the whole image, in one window of 448 pixels.
        """
        torch.manual_seed(self.seed)
        model = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(self.shipped)).float()
        model.generation_config = GenerationConfig.from_pretrained(self.shipped)
        return model, AutoProcessor.from_pretrained(self.shipped)

    def train(self, model: Any, processor: Any, work: Path, share: float) -> float:
        """See `Task.train`: digits on single cards, then whole screenshots, by one player and by both."""
        shown, lessons = read(self.screenshots / "train.parquet", "train"), Lessons(processor, self.seed)
        loss = 0.0
        for name, collate, steps, batch, lr in (
            ("glyphs", lessons.glyphs, 1000, 64, 2e-3),
            ("reading", partial(lessons.screens, careful_share=1.0), 900, 32, 1e-3),
            ("players", partial(lessons.screens, careful_share=CAREFUL), 700, 32, 1e-3),
        ):
            given = arguments(
                self,
                work / name,
                max_steps=max(2, round(steps * share)),
                per_device_train_batch_size=batch,
                learning_rate=lr,
                weight_decay=0.02,
                remove_unused_columns=False,
            )
            loss = finish(Lesson(model, given, collate, shown, processing_class=processor))
        return loss

    def held_out(self, count: int) -> list[Problem]:
        """See `Task.held_out`: screenshots of the test split, whose deals training does not have."""
        drawn = read(self.screenshots / "test.parquet", "test")[:count]
        return [Problem(each, str(each.deal.answer), self.name) for each in drawn]

    def inputs(self, processor: Any, prompts: Sequence[Screenshot]) -> dict[str, Any]:
        """See `Task.inputs`."""
        return inputs(processor, [shown.image for shown in prompts])


class Lesson(Trainer):
    """transformers' Trainer with a second loss, which classifies image tokens: their card's digit, or `NOTHING`."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **_: Any) -> Any:
        """Return the loss of the image tokens' names, plus the responses' loss if the batch has responses."""
        tower, names, seen, loss = model.model.visual, inputs.pop("names"), [], 0.0
        hook = tower.register_forward_hook(lambda _, __, out: seen.append(out.pooler_output))
        if "labels" in inputs:
            loss = model(**inputs).loss
        else:
            tower(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        hook.remove()
        words = self.processing_class.tokenizer.convert_tokens_to_ids([*"123456789", "<|vision_pad|>"])
        logits, on = seen[0] @ model.get_input_embeddings().weight[words].T, names != NOTHING
        loss = loss + cross_entropy(logits[on], names[on])
        return loss if on.all() else loss + 0.3 * cross_entropy(logits[~on], names[~on])


class Lessons:
    """Collators, which make a batch of what the Trainer draws."""

    def __init__(self, processor: Any, seed: int) -> None:
        self.processor, self.rng = processor, random.Random(seed)

    def glyphs(self, shown: Sequence[Screenshot]) -> dict[str, Any]:
        """Crops of single cards, whose image tokens all name the digit."""
        crops, names = [], []
        for image, deal, cards in shown:
            for card, digit in zip(cards, deal.digits, strict=True):
                middle = (card.left + card.right) // 2, (card.top + card.bottom) // 2
                x, y = (at - GLYPH // 2 + self.rng.randint(-JITTER, JITTER) for at in middle)
                crops.append(self.tinted(image.crop((x, y, x + GLYPH, y + GLYPH))))
                names += [digit - 1] * (GLYPH // TOKEN) ** 2
        return {**self.processor.image_processor(crops, return_tensors="pt"), "names": torch.tensor(names)}

    def screens(self, shown: Sequence[Screenshot], careful_share: float) -> dict[str, Any]:
        """Whole screenshots, moved and tinted, with a response of one of the players."""
        responses = [self.response(each.deal, careful_share) for each in shown]
        images, names = zip(*(self.moved(each) for each in shown), strict=True)
        batch = inputs(self.processor, images, responses)
        labels = torch.full_like(batch["input_ids"], IGNORED)
        for row, ids, text in zip(labels, batch["input_ids"], responses, strict=True):
            count = len(self.processor.tokenizer(text)["input_ids"])
            row[-count:] = ids[-count:]  # padded on the left
        return {**batch, "labels": labels, "names": torch.cat(names)}

    def response(self, deal: Deal, share: float) -> str:
        """Return one player's response; `share` is the probability of the careful one's."""
        return (careful if self.rng.random() < share else careless)(deal) + self.processor.tokenizer.eos_token

    def tinted(self, image: Image) -> Image:
        """Return the image with another contrast, colour cast and brightness."""
        factor, shift = self.rng.uniform(0.8, 1.15), self.rng.uniform(-20, 20)
        casts = [factor * self.rng.uniform(0.95, 1.05) for _ in "rgb"]
        return image.point([min(255, max(0, round(value * cast + shift))) for cast in casts for value in range(256)])

    def moved(self, shown: Screenshot) -> tuple[Image, torch.Tensor]:
        """Return the screenshot scaled and shifted by some percent, tinted, and the names of its image tokens."""
        size, scale = shown.image.size, self.rng.uniform(0.92, 1.08)
        shift = [self.rng.uniform(-0.05, 0.05) * side + (1 - scale) * side / 2 for side in size]
        affine = (scale, 0, shift[0], 0, scale, shift[1])  # from a place in the result to one in the screenshot
        turned = shown.image.transform(size, Transform.AFFINE, affine, Resampling.BILINEAR)
        cards = [Box(*(round((at - shift[i % 2]) / scale) for i, at in enumerate(card))) for card in shown.cards]
        return self.tinted(turned), names_of(size, cards, shown.deal)


def names_of(size: tuple[int, int], cards: Sequence[Box], deal: Deal) -> torch.Tensor:
    """Return for each image token the name of the digit on the card that its middle lies on, else `NOTHING`."""
    wide, tall = (torch.arange(side // TOKEN) * TOKEN + TOKEN / 2 for side in size)
    found = torch.full((len(tall), len(wide)), NOTHING)
    for card, digit in zip(cards, deal.digits, strict=True):
        inside = ((tall > card.top) & (tall < card.bottom))[:, None] & ((wide > card.left) & (wide < card.right))
        found[inside] = digit - 1
    return found.flatten()
