"""Pretraining of the number game's tiny Qwen2.5-VL."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.data.rewards import load_reward
from recipes.data.rows import read_manifest
from recipes.errors import RecipeError
from recipes.paths import ROOT, data_dir
from recipes.tasks.number_game.data import QUESTION, gold_response
from recipes.tasks.number_game.pixels import Box, find_cards
from recipes.tasks.number_game.rules import POSITIONS, RANKS, Deal, parse_deal
from recipes.tasks.pretrain import PLAIN_SAMPLING, PretrainPlan, Problem, Spec, train_tokenizer
from recipes.tasks.pretrain import SPECIAL as CHAT

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

SPECIAL = (*CHAT, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
"""Qwen2.5-VL's own names; verl and vLLM look some of them up."""

# What is cut out before BPE: digits one by one, marks with the blank behind them, blanks, line breaks. What lies
# between is one piece, so that a whole clause becomes one token.
PIECES = r"[0-9]|[.:,?] ?|\n"


def build_tokenizer(chat_template: str) -> PreTrainedTokenizerFast:
    """The tokenizer, the same one each time; every piece of the question and of a demonstration is one token."""
    corpus = [QUESTION, "user", "assistant", "system", *phrases()]
    return train_tokenizer(corpus, PIECES, special=SPECIAL, chat_template=chat_template, max_length=2048)


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
    from PIL import Image

    facts = row["extra_info"]
    if facts["split"] != split:
        raise RecipeError(f"{path} is not the {split} split", where="--screenshots", fix="give the other file")
    image = Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB")
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


def by_size(shown: Sequence[Screenshot]) -> dict[tuple[int, int], list[int]]:
    """(width, height) -> places of the screenshots of that size."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, each in enumerate(shown):
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


class NumberGame(Spec):
    """The number game's tiny Qwen2.5-VL."""

    name = "number_game"
    what = "a tiny Qwen2.5-VL for the number game, pretrained on demonstrations about real screenshots"
    auto_model, auto_processor = "AutoModelForImageTextToText", "AutoProcessor"
    together, problems = 96, 288
    response = 24  # tokens; a careful response takes 16
    plan = GamePlan(steps=2700, batch=32, lr=2e-3, weight_decay=0.02)

    def __init__(self, screenshots: Path | None = None) -> None:
        """Take the folder that holds train.parquet and test.parquet."""
        self.screenshots = screenshots or data_dir("number_game_tiny")

    def build(self, plan: GamePlan) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
        """See `Spec.build`. Network, processor and chat template are those of the shipped folder's files.

        Heads have 32 dimensions because vLLM's CPU attention takes no smaller ones. Of the rotary frequencies width
        gets the lowest; at Qwen's base of 10,000 they would not tell five columns apart, so it is 10. The standard
        deviation of the first weights is about one over the root of the hidden size, and all layers of the vision
        tower attend to the whole image, in one window of 448 pixels, so that tokens keep their order.
        """
        import torch
        from transformers import AutoConfig, AutoProcessor, GenerationConfig, Qwen2_5_VLForConditionalGeneration

        torch.manual_seed(plan.seed)
        model = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(self.tiny))
        model.generation_config = GenerationConfig.from_pretrained(self.tiny)
        processor = AutoProcessor.from_pretrained(self.tiny)
        processor.tokenizer = build_tokenizer(processor.chat_template)
        return model, processor

    def losses(self, plan: GamePlan, model: Any, processor: Any) -> Callable[[int], torch.Tensor]:
        """See `Spec.losses`: what each stage of the plan teaches."""
        from recipes.tasks.number_game.lessons import Lessons  # imports torch

        return Lessons(plan, model, processor, read(self.screenshots / "train.parquet", "train")).loss

    def held_out(self, plan: GamePlan, count: int) -> list[Problem]:
        """Screenshots of the test split, whose deals training does not have."""
        shown = read(self.screenshots / "test.parquet", "test")[:count]
        return [Problem(each, str(each.deal.answer)) for each in shown]

    def respond(self, model: Any, processor: Any, prompts: Sequence[Screenshot], *, sample: bool) -> list[str]:
        """See `Spec.respond`."""
        choice = PLAIN_SAMPLING if sample else {"do_sample": False}
        responses = [""] * len(prompts)
        for places in by_size(prompts).values():
            batch = inputs(processor, [prompts[place].image for place in places])
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            written = model.generate(**batch, max_new_tokens=self.response, **choice)
            texts = processor.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
            for place, text in zip(places, texts, strict=True):
                responses[place] = text
        return responses

    def findings(self, model: Any, processor: Any, problems: Sequence[Problem]) -> dict[str, Any]:
        """What greedy responses depend on; see `ablation`."""
        shown = [problem.prompt for problem in problems]
        responses = []
        for start in range(0, len(shown), self.together):
            responses += self.respond(model, processor, shown[start : start + self.together], sample=False)
        return {"ablation": ablation([each.deal for each in shown], responses)}

    def facts(self) -> dict[str, Any]:
        """The screenshots, for the manifest."""
        kept = ("rows", "source", "command", "seed", "sha256")
        manifests = {split: read_manifest(self.screenshots / f"{split}.parquet") for split in ("train", "test")}
        return {"screenshots": {split: {name: each[name] for name in kept} for split, each in manifests.items()}}


def ablation(deals: Sequence[Deal], responses: Sequence[str], seed: int = 0) -> dict[str, float]:
    """Greedy accuracy as it is, and with the truth of another screenshot in part or in whole.

    That is the accuracy on pictures whose lamp, digits or both were exchanged at random: a model that does not look at
    what was exchanged loses nothing, one that looks falls to a third.
    """
    score = load_reward(ROOT / "reward_functions" / "number_game.py").compute_score
    others = random.Random(seed).sample(list(deals), len(deals))
    truths = {
        "as shown": deals,
        "lamp exchanged": [Deal(other.light, deal.digits) for deal, other in zip(deals, others, strict=True)],
        "digits exchanged": [Deal(deal.light, other.digits) for deal, other in zip(deals, others, strict=True)],
        "both exchanged": others,
    }
    accuracies = {}
    for name, exchanged in truths.items():
        pairs = zip(responses, exchanged, strict=True)
        right = sum(score("number_game", text, str(truth.answer))["accuracy"] for text, truth in pairs)
        accuracies[name] = round(right / len(deals), 4)
    return accuracies
