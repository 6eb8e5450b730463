"""What a task brings to the pretraining of its tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recipes.paths import ROOT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Example:
    """One demonstration: the user's message, the response, and whether its answer is right."""

    prompt: str
    response: str
    right: bool


class Problem(NamedTuple):
    """A problem to assess on: the user's message, and what the reward compares the response with."""

    prompt: str
    truth: str


@dataclass(frozen=True)
class Task:
    """A task whose tiny model is pretrained on demonstrations by imperfect annotators.

    Attributes:
        name: of the task, of its folder under `recipes/tasks`, and of its reward file.
        architecture: as transformers names it in front of `Config` and `ForCausalLM`.
        response: tokens that a response may take.
        build_tokenizer: makes the tokenizer, the same one each time.
        examples: (annotators, settings, seed, count) -> demonstrations, none of a held-out problem.
        held_out: (settings, count, seed) -> problems that neither pretraining nor RL trains on.
    """

    name: str
    title: str
    data_source: str
    architecture: str
    response: int
    build_tokenizer: Callable[[], PreTrainedTokenizerFast]
    examples: Callable[[Any, Any, int, int], Iterator[Example]]
    held_out: Callable[[Any, int, int], list[Problem]]

    @property
    def tiny(self) -> Path:
        """The folder of the model that ships with the repository."""
        return ROOT / "recipes" / "tasks" / self.name / "tiny"

    @property
    def reward(self) -> Path:
        """The reward file that judges responses."""
        return ROOT / "reward_functions" / f"{self.name}.py"
