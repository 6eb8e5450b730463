"""Countdown's part in the pretraining of a tiny model, and the plan that made the one that ships."""

from __future__ import annotations

from itertools import islice

from recipes.tasks.countdown.generate import generate
from recipes.tasks.countdown.pretrain.examples import Annotators, examples
from recipes.tasks.countdown.pretrain.tokenizer import build_tokenizer
from recipes.tasks.countdown.prompt import DATA_SOURCE, ground_truth, prompt
from recipes.tasks.countdown.settings import PRESETS, Settings
from recipes.tasks.pretrain.model import Shape
from recipes.tasks.pretrain.task import Problem, Task
from recipes.tasks.pretrain.train import Plan


def held_out(settings: Settings, count: int, seed: int) -> list[Problem]:
    """Problems whose multisets of numbers are in neither the pretraining bucket nor that of RL training."""
    return [
        Problem(prompt(found.numbers, found.target), ground_truth(found.numbers, found.target))
        for found in islice(generate(settings, ("test",), seed=seed), count)
    ]


COUNTDOWN = Task(
    name="countdown",
    title="Countdown",
    data_source=DATA_SOURCE,
    architecture="Qwen3",
    response=64,  # four trials and an answer take at most 60
    build_tokenizer=build_tokenizer,
    examples=examples,
    held_out=held_out,
)

PLAN = Plan(
    seed=1,
    examples=300_000,
    steps=2800,
    batch=512,
    lr=2e-3,
    annotators=Annotators(),
    shape=Shape(),
    settings=PRESETS["tiny"],
)
