"""How good the tiny model is before GRPO, judged by the reward that GRPO uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recipes.tasks.number_game.pretrain.screenshots import Screenshot, inputs
from recipes.tasks.rewards import Score

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

RESPONSE = 24  # tokens; a careful response takes 16
BATCH = 72  # responses at once


def assess(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    shown: Sequence[Screenshot],
    score: Score,
    *,
    seed: int,
    samples: int = 4,
) -> dict[str, Any]:
    """Greedy and sampled accuracy on screenshots that the model has not seen.

    Returns:
        The number of screenshots, `greedy_accuracy`, `sampled_accuracy`, `sampled_score`, `mixed_groups` (the share of
        screenshots whose samples earn different scores, without which GRPO has nothing to learn) and `reasons`.
    """
    import torch

    torch.manual_seed(seed)
    greedy = _scored(model, processor, shown, score, do_sample=False)
    sampled = _scored(model, processor, [each for each in shown for _ in range(samples)], score, do_sample=True)
    groups = [sampled[start : start + samples] for start in range(0, len(sampled), samples)]
    mixed = sum(len({found["score"] for found in group}) > 1 for group in groups)
    return {
        "screenshots": len(shown),
        "samples": samples,
        "greedy_accuracy": _mean(greedy, "accuracy"),
        "sampled_accuracy": _mean(sampled, "accuracy"),
        "sampled_score": _mean(sampled, "score"),
        "mixed_groups": round(mixed / len(shown), 4),
        "reasons": dict(Counter(found["reason"] for found in sampled).most_common()),
    }


def _scored(model: Any, processor: Any, shown: Sequence[Screenshot], score: Score, *, do_sample: bool) -> list[dict]:
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if do_sample else {}
    found = []
    for start in range(0, len(shown), BATCH):
        part = shown[start : start + BATCH]
        batch = inputs(processor, part)
        written = model.generate(**batch, max_new_tokens=RESPONSE, do_sample=do_sample, **settings)
        responses = processor.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        found += [score("number_game", text, str(each.deal.answer)) for text, each in zip(responses, part, strict=True)]
    return found


def _mean(scored: Sequence[dict[str, Any]], key: str) -> float:
    return round(sum(found[key] for found in scored) / len(scored), 4)
