"""Responses of a model: the settings that decide them, what they hold, and what a generator has to offer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from recipes.errors import RecipeError
from recipes.evaluation.questions import Question


@dataclass(frozen=True)
class Sampling:
    """Everything that decides which responses a model gives to a prompt.

    Attributes:
        n: responses per question.
        temperature: 0 is greedy.
        top_p: nucleus size; 1 switches it off.
        top_k: most likely tokens that are drawn from; -1 for all.
        max_tokens: longest response, in tokens.
        seed: one number for the whole evaluation; each question gets its own through `request_seed`.
    """

    n: int
    temperature: float
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0
    top_k: int = -1

    def __post_init__(self) -> None:
        limits = {
            "n": self.n >= 1,
            "temperature": 0.0 <= self.temperature < float("inf"),
            "top_p": 0.0 < self.top_p <= 1.0,
            "max_tokens": self.max_tokens >= 1,
            "top_k": self.top_k == -1 or self.top_k >= 1,
            "seed": self.seed >= 0,
        }
        for name in (name for name, kept in limits.items() if not kept):
            raise RecipeError(
                f"{name} cannot be {getattr(self, name)}",
                where="sampling",
                fix="use n >= 1, temperature >= 0, 0 < top_p <= 1, max_tokens >= 1, seed >= 0, top_k >= 1 or -1 "
                "for all",
            )
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
    """One answer of a model.

    Attributes:
        text: the answer without special tokens.
        tokens: its length in tokens, or None where the generator does not report it.
        finish: why it ended: "stop", "length" (cut off at the limit), or the generator's own word.
        logprob: sum over its tokens of the log-probability (nats) under the distribution that was sampled, or None.
    """

    text: str
    tokens: int | None
    finish: str
    logprob: float | None

    @property
    def truncated(self) -> bool:
        """Return whether the limit on tokens cut the answer off."""
        return self.finish == "length"


@dataclass(frozen=True, slots=True)
class Group:
    """All responses to one question; `row` is the question's row in its data file."""

    row: int
    responses: tuple[Response, ...]

    def check(self, n: int) -> None:
        """Raise a `RecipeError` unless there are `n` responses with finite log-probabilities."""
        if len(self.responses) != n:
            raise RecipeError(f"row {self.row} got {len(self.responses)} responses instead of {n}", where="generation")
        for sample, response in enumerate(self.responses):
            if response.logprob is not None and not math.isfinite(response.logprob):
                raise RecipeError(
                    f"the log-probability of response {sample} to row {self.row} is {response.logprob}",
                    where="generation",
                    fix="the model's weights or its precision are broken: look for NaN in the weights, or try float32",
                )


class Sampler(Protocol):
    """A source of responses.

    `generate` yields one `Group` of `sampling.n` responses per question, in any order, as each is finished. It sets
    `Response.logprob` only where the log-probabilities are those of the distribution that was sampled, since minus
    their mean estimates the entropy only then. Failures that a user can mend are `RecipeError`s.
    """

    def generate(self, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]: ...

    def close(self) -> None: ...


def clean_text(text: str) -> str:
    """`text` with lone surrogates, which UTF-8 cannot hold, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
