"""Pretraining of a tiny model on the annotators' demonstrations: plain next-token prediction, resumable."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.tasks.pretrain.batches import IGNORED, Batches, encode
from recipes.tasks.pretrain.model import Shape, build_model
from recipes.tasks.pretrain.task import Task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Plan:
    """Everything that decides the weights, apart from the device's rounding.

    Attributes:
        examples: distinct demonstrations; with `steps * batch` larger than that they are seen again.
        lr: peak learning rate, reached after `warmup` steps and then falling linearly to a twentieth.
        annotators, settings: the task's own dataclasses: who wrote the demonstrations, and of which problems.
    """

    seed: int
    examples: int
    steps: int
    batch: int
    lr: float
    annotators: Any
    shape: Shape
    settings: Any
    warmup: int = 50
    weight_decay: float = 0.05

    def rate(self, step: int) -> float:
        """The learning rate of one step (0-based)."""
        rising = (step + 1) / self.warmup
        falling = 1 - 0.95 * (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * min(rising, falling, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def pretrain(
    task: Task,
    plan: Plan,
    work: Path,
    *,
    device: str,
    stop: int | None = None,
    save_every: int = 200,
    compiled: bool = False,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, float]:
    """Train, or go on from what `work` holds.

    Args:
        work: folder of the unfinished training, `state.pt` and `plan.json`; made if missing.
        stop: end after this step, before the learning rate has fallen to its end; RL then has more left to teach.
        compiled: run the network through torch.compile, which needs a C++ compiler and half a minute; on a CPU a step
            then takes half the time.
        progress: called with step (1-based) and loss, every 50 steps and at the end.

    Returns:
        the model on `device`, the tokenizer, and the seconds spent in training steps, earlier runs included.

    Raises:
        RecipeError: `work` belongs to another plan.
    """
    import torch

    tokenizer = task.build_tokenizer()
    model = build_model(tokenizer, task.architecture, plan.shape, plan.seed).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, betas=(0.9, 0.98), weight_decay=plan.weight_decay)
    first, spent = _resume(plan, work, model, optimizer, device)
    last = min(stop or plan.steps, plan.steps)
    if first >= last:
        return model, tokenizer, spent
    drawn = list(task.examples(plan.annotators, plan.settings, plan.seed, plan.examples))
    batches = encode(tokenizer, drawn, device, plan.seed)
    model.train()
    if device == "cpu":
        model.set_attn_implementation("eager")  # with sdpa half of a step is spent in attention's backward pass
    if compiled:
        model.model.forward = torch.compile(model.model.forward, dynamic=False)
    begun = time.perf_counter()
    for step in range(first, last):
        loss = _step(plan, step, model, optimizer, batches, device)
        if (step + 1) % 50 == 0 or step + 1 == last:
            progress(step + 1, loss.item())
        if (step + 1) % save_every == 0 or step + 1 == last:
            _save(work, step + 1, spent + time.perf_counter() - begun, model, optimizer)
    return model, tokenizer, spent + time.perf_counter() - begun


def _step(
    plan: Plan, step: int, model: PreTrainedModel, optimizer: torch.optim.Optimizer, batches: Batches, device: str
) -> torch.Tensor:
    import torch

    inputs, labels = batches.at(step, plan.batch)
    for group in optimizer.param_groups:
        group["lr"] = plan.rate(step)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        hidden = model.model(input_ids=inputs).last_hidden_state
        wanted = labels != IGNORED
        logits = model.lm_head(hidden[wanted])
    loss = torch.nn.functional.cross_entropy(logits.float(), labels[wanted])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def _resume(
    plan: Plan, work: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, device: str
) -> tuple[int, float]:
    """Load the last state, if there is one: its step and the seconds spent so far."""
    import torch

    written = work / "plan.json"
    if written.exists():
        if json.loads(written.read_text(encoding="utf-8")) != plan.as_dict():
            raise RecipeError(
                "an unfinished training with other settings is in the way",
                where=str(work),
                fix=f"give the settings in {written}, or delete the folder, or choose another --out",
            )
    else:
        work.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(plan.as_dict(), indent=2) + "\n", encoding="utf-8")
    state = work / "state.pt"
    if not state.exists():
        return 0, 0.0
    saved = torch.load(state, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"], saved["seconds"]


def _save(work: Path, step: int, seconds: float, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    import torch

    temporary = work / "state.tmp"
    state = {"step": step, "seconds": seconds, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, temporary)
    temporary.replace(work / "state.pt")
