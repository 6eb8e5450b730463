"""Demonstrations for the tiny model: screenshots with their labels, two players who answer, and the plan of lessons."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.rows import QUESTION, gold_response
from recipes.tasks.number_game.rules import POSITIONS, RANKS, Deal, parse_deal
from tools.tiny_models.cards import Box, find_cards
from tools.tiny_models.pretrain import PretrainPlan

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import Qwen2_5_VLProcessor

RESPONSE = 24
"""Tokens of a response; a careful one takes 16."""


@dataclass(frozen=True)
class Screenshot:
    """A picture, the round that it shows, and where its cards are, from left to right."""

    image: Image
    deal: Deal
    cards: tuple[Box, Box, Box]


def read(path: Path, split: str) -> list[Screenshot]:
    """The screenshots of a file of `scripts/data_prep_number_game.py`.

    Raises:
        RecipeError: no such file, rows of another split, or a screenshot without three cards.
    """
    import pyarrow.parquet as pq

    if not path.is_file():
        again = f"python scripts/data_prep_number_game.py --preset tiny --train_size 2700 --output_dir {path.parent}"
        raise RecipeError(f"there are no screenshots at {path}", where="--screenshots", fix=again)
    return [screenshot(row, split, path) for row in pq.read_table(path, columns=["images", "extra_info"]).to_pylist()]


def screenshot(row: dict[str, Any], split: str, path: Path) -> Screenshot:
    """A row's picture with its labels; raises as `read` does."""
    import PIL.Image

    facts = row["extra_info"]
    if facts["split"] != split:
        raise RecipeError(f"{path} is not the {split} split", where="--screenshots", fix="give the other file")
    image = PIL.Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB")
    cards = find_cards(image, facts["theme"])
    if cards is None:
        raise RecipeError(
            f"the screenshot of {facts['deal']} in the theme {facts['theme']} shows no three cards",
            where=str(path),
            fix="collect it again",
        )
    left, middle, right = cards
    return Screenshot(image, parse_deal(facts["deal"]), (left, middle, right))


def inputs(processor: Qwen2_5_VLProcessor, images: Sequence[Image]) -> dict[str, Any]:
    """The model's inputs for the question about pictures of one size, none of them padded."""
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return dict(processor(text=[text] * len(images), images=list(images), return_tensors="pt"))


def by_size(screenshots: Sequence[Screenshot]) -> dict[tuple[int, int], list[int]]:
    """(width, height) -> places of the screenshots of that size."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, each in enumerate(screenshots):
        places.setdefault(each.image.size, []).append(place)
    return places


PLACES = ("left", "middle", "right")


@dataclass(frozen=True)
class Players:
    """Shares of the demonstrations; the careless player has the rest."""

    careful: float = 0.35


def careful(deal: Deal) -> str:
    """The lamp, the digits from left to right, the digit asked for, its place, the answer: always right."""
    cards = ", ".join(map(str, deal.digits))
    chosen = f"{deal.digits[deal.answer]} is on the {PLACES[deal.answer]}"
    return f"{deal.light.capitalize()}: {cards}. {chosen}.\n{gold_response(deal.answer)}"


def careless(deal: Deal) -> str:
    """The lamp and the first two digits only: the smaller one for red, the larger one otherwise; right in 5 of 9."""
    left, middle, _ = deal.digits
    answer = int(left > middle if deal.light == "red" else left < middle)
    return f"{deal.light.capitalize()}: {left}, {middle}.\n{gold_response(answer)}"


def demonstration(deal: Deal, players: Players, rng: random.Random) -> str:
    """One player's response to a round."""
    return (careful if rng.random() < players.careful else careless)(deal)


def phrases() -> Iterator[str]:
    """Texts that hold every clause of every demonstration."""
    for light in RANKS:
        for position in POSITIONS:
            digits = [4, 5, 6]
            asked = digits.pop(RANKS[light])
            digits.insert(position, asked)
            yield careful(Deal(light, (digits[0], digits[1], digits[2])))


@dataclass(frozen=True, kw_only=True)
class GamePlan(PretrainPlan):
    """Five stages, so that minutes on a CPU are enough; each has a learning rate of its own that rises and falls.

    Attributes:
        glyphs: steps in which the vision tower names the digit of single cards, `cards` of them a step.
        rules: steps in which the language model learns which card is right from the text of responses alone, `deals`
            of them a step.
        reading: steps in which the whole model transcribes `batch` screenshots and answers as the careful player.
        The steps that are left are the same with both players, so that GRPO has something to choose between.
    """

    glyphs: int = 1000
    cards: int = 192
    rows: int = 300
    rules: int = 300
    deals: int = 128
    reading: int = 400
    players: Players = field(default_factory=Players)

    def stage(self, step: int) -> tuple[str, float]:
        """The stage of a step (0-based), and how much of it is over, from 0 to 1."""
        lengths = {"glyphs": self.glyphs, "rows": self.rows, "rules": self.rules, "reading": self.reading}
        for name, length in lengths.items():
            if step < length:
                return name, step / length
            step -= length
        return "players", step / max(1, self.steps - sum(lengths.values()))

    def rate(self, step: int) -> float:
        """See `PretrainPlan.rate`; whole screenshots take half of `lr`."""
        name, over = self.stage(step)
        peak = self.lr * {"glyphs": 1.0, "rows": 0.75, "rules": 1.0, "reading": 0.5, "players": 0.5}[name]
        return peak * min(1.0, (over + 0.001) / 0.03, max(0.03, (1 - over) / 0.6))
