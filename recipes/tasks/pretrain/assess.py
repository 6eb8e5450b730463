"""How often a tiny model is right on held-out problems, greedily and by sampling, as the task's reward judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recipes.tasks.pretrain.batches import chat_texts
from recipes.tasks.pretrain.task import Problem, Task
from recipes.tasks.rewards import load_reward

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TOGETHER = 1024  # responses generated at a time


def respond(
    task: Task, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], *, sample: bool
) -> list[str]:
    """One response to each problem, greedy or at temperature 1 (torch's generator decides)."""
    import torch

    texts = chat_texts(tokenizer, [problem.prompt for problem in problems])
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    choice = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=task.response,
            **choice,
        )
    return tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def accuracies(task: Task, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
    """1.0 where the task's reward finds the answer right, otherwise 0.0."""
    judge = load_reward(task.reward).compute_score
    return [
        judge(task.data_source, response, problem.truth)["accuracy"]
        for problem, response in zip(problems, responses, strict=True)
    ]


def assess(
    task: Task,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    *,
    samples: int = 8,
    seed: int = 0,
) -> dict[str, float]:
    """Greedy pass@1, pass@1 and pass@`samples` at temperature 1, and the share of groups that are right and wrong."""
    import torch

    torch.manual_seed(seed)
    model.eval()
    greedy = accuracies(task, problems, respond(task, model, tokenizer, problems, sample=False))
    repeated = [problem for problem in problems for _ in range(samples)]
    right: list[float] = []
    for start in range(0, len(repeated), TOGETHER):
        part = repeated[start : start + TOGETHER]
        right += accuracies(task, part, respond(task, model, tokenizer, part, sample=True))
    groups = [sum(right[i : i + samples]) for i in range(0, len(right), samples)]
    return {
        "problems": len(problems),
        "samples": samples,
        "greedy_pass@1": sum(greedy) / len(greedy),
        "sampled_pass@1": sum(right) / len(right),
        f"sampled_pass@{samples}": sum(group > 0 for group in groups) / len(groups),
        "mixed_groups": sum(0 < group < samples for group in groups) / len(groups),
    }
