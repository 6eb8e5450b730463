"""Pretraining of the number game's tiny Qwen2.5-VL."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.data.manifests import read_manifest
from recipes.data.rewards import load_reward
from recipes.paths import ROOT, data_dir
from recipes.tasks.number_game.rows import QUESTION
from recipes.tasks.number_game.rules import Deal
from tools.tiny_models.demonstrations import RESPONSE, GamePlan, Screenshot, by_size, inputs, phrases, read
from tools.tiny_models.pretrain import PLAIN_SAMPLING, Problem, Spec, train_tokenizer
from tools.tiny_models.pretrain import SPECIAL as CHAT

if TYPE_CHECKING:
    import torch
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


class NumberGame(Spec[GamePlan]):
    """The number game's tiny Qwen2.5-VL."""

    name = "number_game"
    what = "a tiny Qwen2.5-VL for the number game, pretrained on demonstrations about real screenshots"
    auto_model, auto_processor = "AutoModelForImageTextToText", "AutoProcessor"
    together, problems = 96, 288
    response = RESPONSE
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
        from tools.tiny_models.lessons import Lessons  # imports torch

        return Lessons(plan, model, processor, read(self.screenshots / "train.parquet", "train")).loss

    def held_out(self, plan: GamePlan, count: int) -> list[Problem]:
        """Screenshots of the test split, whose deals training does not have."""
        drawn = read(self.screenshots / "test.parquet", "test")[:count]
        return [Problem(each, str(each.deal.answer)) for each in drawn]

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
        """Return what greedy responses depend on; see `ablation`."""
        prompts = [problem.prompt for problem in problems]
        responses = []
        for start in range(0, len(prompts), self.together):
            responses += self.respond(model, processor, prompts[start : start + self.together], sample=False)
        return {"ablation": ablation([each.deal for each in prompts], responses)}

    def facts(self) -> dict[str, Any]:
        """The screenshots, for the manifest."""
        kept = ("rows", "source", "command", "seed", "sha256")
        manifests = {split: read_manifest(self.screenshots / f"{split}.parquet") for split in ("train", "test")}
        return {
            "screenshots": {split: {name: getattr(each, name) for name in kept} for split, each in manifests.items()}
        }


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
