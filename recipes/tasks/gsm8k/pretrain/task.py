"""GSM8K's part in the pretraining of a tiny model, and the plan that made the one that ships."""

from __future__ import annotations

from itertools import islice

from recipes.tasks.gsm8k.pretrain.examples import Annotators, examples
from recipes.tasks.gsm8k.pretrain.tokenizer import build_tokenizer
from recipes.tasks.gsm8k.prompt import DATA_SOURCE, prompt
from recipes.tasks.gsm8k.word_problems import TINY, WordSettings, word_problems
from recipes.tasks.pretrain.model import Shape
from recipes.tasks.pretrain.task import Problem, Task
from recipes.tasks.pretrain.train import Plan


def held_out(settings: WordSettings, count: int, seed: int) -> list[Problem]:
    """Problems whose calculations are in neither the pretraining bucket nor that of RL training."""
    drawn = islice(word_problems(settings, ("test",), seed=seed), count)
    return [Problem(prompt(problem.question), str(problem.gold)) for problem in drawn]


GSM8K = Task(
    name="gsm8k",
    title="word problems in GSM8K's format",
    data_source=DATA_SOURCE,
    architecture="Qwen2",  # the recipe's Qwen2.5 is of this architecture
    response=48,
    build_tokenizer=build_tokenizer,
    examples=examples,
    held_out=held_out,
)

# Where training was stopped: the arithmetic is nearly always right by then, and RL has the rest to teach.
STOP = 1000

PLAN = Plan(
    seed=1,
    examples=200_000,
    steps=2400,
    batch=128,
    lr=2e-3,
    annotators=Annotators(),
    shape=Shape(hidden=128, heads=4, kv_heads=4),
    settings=TINY,
)
