"""How answers are drawn: the settings, and what a generator has to offer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.evaluation.records import Group


@dataclass(frozen=True)
class Sampling:
    """Everything that decides which answers a model gives to a prompt.

    Attributes:
        n: responses per question.
        temperature: 0 is greedy.
        top_p: nucleus size; 1 switches it off.
        max_tokens: longest response, in tokens.
        seed: one number for the whole evaluation; each question gets its own through `request_seed`.
    """

    n: int
    temperature: float
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        for name, good in {
            "n": self.n >= 1,
            "temperature": 0.0 <= self.temperature < float("inf"),
            "top_p": 0.0 < self.top_p <= 1.0,
            "max_tokens": self.max_tokens >= 1,
        }.items():
            if not good:
                limits = "n >= 1, temperature >= 0, 0 < top_p <= 1, max_tokens >= 1"
                raise RecipeError(f"{name} cannot be {getattr(self, name)}", where="sampling", fix=f"use {limits}")
        if self.greedy and self.n > 1:
            raise RecipeError(
                f"temperature 0 gives the same answer {self.n} times",
                where="sampling",
                fix="use a temperature above 0, such as the 1.0 that training samples at",
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def request_seed(self, row: int) -> int:
        """A seed in [0, 2^31) of its own for each row, whatever else is evaluated with it."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{row}".encode()).digest()[:4], "big") >> 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the cache's key and the report."""
        return asdict(self)


class Sampler(Protocol):
    """A source of responses.

    `generate` yields one `Group` of `sampling.n` responses per question, in any order, as each is finished. It sets
    `Response.logprob` only where the log-probabilities are those of the distribution that was sampled, since minus
    their mean estimates the entropy only then. Failures that a user can mend are `RecipeError`s.
    """

    def generate(self, questions: Sequence[Question], sampling: Sampling) -> Iterator[Group]: ...

    def close(self) -> None: ...
