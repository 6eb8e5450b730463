"""Shared by the tiny models: transformers' arguments, an assessment by the task's reward, and the written folder."""

from __future__ import annotations

import json
import shlex
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from recipes.errors import RecipeError
from recipes.files import sha256, whole_folder
from recipes.paths import ROOT, git_commit
from recipes.rewards.loading import load_reward

PLAIN_SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}  # the distribution as it is
IGNORED = -100  # the label that cross-entropy leaves out
SAMPLES = 8


class Problem(NamedTuple):
    """A held-out problem: what the model is shown, and what the reward compares its response with."""

    prompt: Any
    truth: Any
    source: str


@dataclass
class Task(ABC):
    """One tiny model: how it is built, trained and asked."""

    name: ClassVar[str]
    reward: ClassVar[str]  # file below reward_functions
    together: ClassVar[int] = 512  # responses generated at a time
    response: ClassVar[int]  # tokens that a response may take
    seed: int = 1

    @property
    def shipped(self) -> Path:
        """The folder of the model that ships with the repository."""
        return ROOT / "recipes" / "tasks" / self.name / "tiny"

    @abstractmethod
    def build(self) -> tuple[Any, Any]:
        """Return a freshly initialised model in float32 and its tokenizer or processor."""

    @abstractmethod
    def train(self, model: Any, processor: Any, work: Path, share: float) -> float:
        """Train in place for a share of the task's steps, with checkpoints in `work`; returns the last logged loss."""

    @abstractmethod
    def held_out(self, count: int) -> list[Problem]:
        """Return problems that neither pretraining nor RL trains on."""

    @abstractmethod
    def inputs(self, processor: Any, prompts: Sequence[Any]) -> dict[str, Any]:
        """Return the model's inputs for some prompts, padded on the left."""

    def respond(self, model: Any, processor: Any, prompts: Sequence[Any], **sampling: Any) -> list[str]:
        """Return one response to each prompt."""
        batch = {name: each.to(model.device) for name, each in self.inputs(processor, prompts).items()}
        written = model.generate(**batch, max_new_tokens=self.response, **sampling)
        return processor.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def arguments(task: Task, work: Path, **given: Any) -> TrainingArguments:
    """Return transformers' arguments: AdamW, a warm-up of 50 steps and a linear decay."""
    return TrainingArguments(
        output_dir=str(work),
        seed=task.seed,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        warmup_steps=50,
        adam_beta2=0.98,
        logging_steps=25,
        save_steps=500,
        save_total_limit=1,
        report_to="none",
        dataloader_pin_memory=False,
        **given,
    )


def finish(trainer: Trainer) -> float:
    """Train to the end, from the last checkpoint in the trainer's folder on; returns the last logged loss."""
    work = trainer.args.output_dir
    trainer.train(resume_from_checkpoint=get_last_checkpoint(work) if Path(work).is_dir() else None)
    return float([entry.get("loss", entry.get("train_loss")) for entry in trainer.state.log_history][-2:][0])


def assess(task: Task, model: Any, processor: Any, count: int) -> dict[str, Any]:
    """Return greedy and sampled accuracy on held-out problems, by the task's reward.

    `mixed_groups` is the share of problems whose samples earn different scores: from the others GRPO learns nothing.
    """
    compute_score = load_reward(ROOT / "reward_functions" / f"{task.reward}.py").compute_score
    problems = task.held_out(count)
    model.eval()
    torch.manual_seed(task.seed)

    def results(asked: Sequence[Problem], **sampling: Any) -> list[dict[str, Any]]:
        texts: list[str] = []
        for start in range(0, len(asked), task.together):
            part = [problem.prompt for problem in asked[start : start + task.together]]
            texts += task.respond(model, processor, part, **sampling)
        return [compute_score(each.source, text, each.truth) for each, text in zip(asked, texts, strict=True)]

    greedy = results(problems, do_sample=False)
    sampled = results([problem for problem in problems for _ in range(SAMPLES)], **PLAIN_SAMPLING)
    groups = [sampled[start : start + SAMPLES] for start in range(0, len(sampled), SAMPLES)]
    return {
        "problems": count,
        "greedy_pass@1": fmean(each["accuracy"] for each in greedy),
        "sampled_pass@1": fmean(each["accuracy"] for each in sampled),
        f"sampled_pass@{SAMPLES}": fmean(any(each["accuracy"] == 1 for each in group) for group in groups),
        "mixed_groups": fmean(len({each["score"] for each in group}) > 1 for group in groups),
        "reasons": Counter(each["reason"] for each in sampled),
    }


def make(task: Task, out: Path, *, share: float, problems: int) -> dict[str, Any]:
    """Train a task's model; write weights in bfloat16, tokenizer and manifest into a new folder; return the manifest.

    Raises RecipeError where the folder exists: a finished model is never overwritten.
    """
    if out.exists():
        raise RecipeError(f"{out} exists", where="--out", fix="choose another folder, or delete this one first")
    model, processor = task.build()
    loss = task.train(model, processor, out.with_name(f"{out.name}.unfinished"), share)
    with whole_folder(out) as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        processor.save_pretrained(folder)
        manifest = {
            "command": f"python -m tools.tiny_models {shlex.join(sys.argv[1:])}",
            "commit": git_commit(Path(__file__).parent),
            "parameters": model.num_parameters(),
            "loss": loss,
            "sha256": {path.name: sha256(path) for path in sorted(folder.iterdir())},
            "held_out": assess(task, model.float(), processor, problems),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest
