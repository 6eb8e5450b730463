"""Pretraining of the tiny model on demonstrations about real screenshots: plain next-token prediction, resumable."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.pretrain.demonstrations import Players, demonstration, phrases
from recipes.tasks.number_game.pretrain.model import Shape, build_model, build_processor
from recipes.tasks.number_game.pretrain.screenshots import Screenshot, inputs
from recipes.tasks.number_game.pretrain.tokenizer import build_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

IGNORED = -100
EVERYONE_CAREFUL = Players(careful=1.0, hasty=0.0)


@dataclass(frozen=True)
class Plan:
    """Everything that decides the weights, apart from the screenshots.

    Attributes:
        reading: first steps, in which every player is careful: the model learns to look.
        lr: peak learning rate, reached after `warmup` steps and then falling linearly to a twentieth.
    """

    seed: int = 1
    steps: int = 620
    reading: int = 496
    batch: int = 16
    lr: float = 3e-3
    warmup: int = 10
    weight_decay: float = 0.01
    players: Players = field(default_factory=Players)
    shape: Shape = field(default_factory=Shape)

    def rate(self, step: int) -> float:
        """The learning rate of one step (0-based)."""
        rising = (step + 1) / self.warmup
        falling = 1 - 0.95 * (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * min(rising, falling, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def pretrain(
    plan: Plan,
    shown: Sequence[Screenshot],
    work: Path,
    *,
    progress: Callable[[int, float], None] = lambda step, loss: None,
    save_every: int = 50,
) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor, float]:
    """Train on CPUs, or go on from what `work` holds.

    Args:
        shown: screenshots of the training split; each step draws from them anew.
        work: folder of the unfinished training, `state.pt` and `plan.json`; made if missing.
        progress: called with step (1-based) and loss, every 25 steps and at the end.

    Returns:
        The model, its processor, and the seconds spent, earlier runs included.

    Raises:
        RecipeError: `work` belongs to another plan.
    """
    import torch

    processor = build_processor(build_tokenizer(phrases()))
    model = build_model(processor.tokenizer, plan.shape, plan.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, betas=(0.9, 0.98), weight_decay=plan.weight_decay)
    rng = random.Random(plan.seed)
    first, spent = _resume(plan, work, model, optimizer, rng)
    model.train()
    begun = time.perf_counter()
    for step in range(first, plan.steps):
        players = EVERYONE_CAREFUL if step < plan.reading else plan.players
        chosen = rng.choices(shown, k=plan.batch)
        batch = labelled(processor, chosen, [demonstration(each.deal, players, rng) for each in chosen])
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        loss = model(**batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 25 == 0 or step + 1 == plan.steps:
            progress(step + 1, loss.item())
        if (step + 1) % save_every == 0 or step + 1 == plan.steps:
            _save(work, step + 1, spent + time.perf_counter() - begun, model, optimizer, rng)
    return model.eval(), processor, spent + time.perf_counter() - begun


def _resume(
    plan: Plan, work: Path, model: Any, optimizer: torch.optim.Optimizer, rng: random.Random
) -> tuple[int, float]:
    """Load the last state, if there is one: its step and the seconds spent so far."""
    import torch

    written, state = work / "plan.json", work / "state.pt"
    if written.exists() and json.loads(written.read_text(encoding="utf-8")) != plan.as_dict():
        raise RecipeError(
            "an unfinished training with other settings is in the way",
            where=str(work),
            fix=f"give the settings in {written}, or delete the folder, or choose another --out",
        )
    work.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps(plan.as_dict(), indent=2) + "\n", encoding="utf-8")
    if not state.exists():
        return 0, 0.0
    saved = torch.load(state, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    version, numbers, gauss = saved["rng"]
    rng.setstate((version, tuple(numbers), gauss))
    return saved["step"], saved["seconds"]


def _save(
    work: Path, step: int, seconds: float, model: Any, optimizer: torch.optim.Optimizer, rng: random.Random
) -> None:
    import torch

    weights = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({"step": step, "seconds": seconds, "rng": rng.getstate(), **weights}, work / "state.tmp")
    (work / "state.tmp").replace(work / "state.pt")


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
