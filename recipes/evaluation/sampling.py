"""Sampling parameters, and the interface of a generator of responses: vLLM in this process, or a server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from recipes.dumps import TURNS, as_text
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question


@dataclass(frozen=True)
class Sampling:
    """Everything that decides which responses a model gives to a prompt."""

    n: int  # responses per question
    temperature: float  # 0 is greedy
    top_p: float = 1.0  # nucleus size; 1 switches it off
    max_tokens: int = 1024  # longest response, in tokens
    seed: int = 0  # one number for the whole evaluation; each question gets its own through `request_seed`
    top_k: int = -1  # number of most likely tokens to sample from; -1 for all

    def __post_init__(self) -> None:
        if self.greedy and self.n > 1:
            raise RecipeError(
                f"temperature 0 gives the same answer {self.n} times",
                where="sampling",
                fix="use a temperature above 0, such as the 1.0 that training samples at",
            )

    @property
    def greedy(self) -> bool:
        """Return whether the most likely token is always taken."""
        return self.temperature == 0.0

    def request_seed(self, row: int) -> int:
        """Return the row's seed, in [0, 2^31); it does not depend on the other rows of the evaluation."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{row}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class Response:
    """One answer of a model."""

    text: str  # without special tokens; with tools the model's last turn
    tokens: (
        int | None
    )  # its length in tokens, those of tools among them, or None where the generator does not report it
    truncated: bool  # whether the limit on tokens cut it off
    # Sum of its tokens' log-probabilities (nats) under the distribution that was sampled from, or None.
    logprob: float | None
    # Of a response with tools, what its reward gets besides (`recipes/dumps.py`); None without tools.
    conversation: dict[str, Any] | None = None

    @property
    def shown(self) -> str:
        """The whole response for a reader."""
        return as_text(self.conversation[TURNS]) if self.conversation else self.text


@dataclass(frozen=True, slots=True)
class Group:
    """All responses to one question; `row` is the question's row in its data file."""

    row: int
    responses: tuple[Response, ...]


class Sampler(Protocol):
    """A generator of responses.

    `generate` yields one `Group` of `sampling.n` responses per question, in any order, as each is finished. Failures
    that a user can mend are `RecipeError`s.
    """

    def generate(self, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]: ...

    def close(self) -> None: ...
