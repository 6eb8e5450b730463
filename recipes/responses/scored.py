"""A response as a model gave it, how it was sampled, and what its reward says of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from recipes.data.rows import first_id
from recipes.dumps import TURNS, as_text
from recipes.errors import RecipeError
from recipes.rewards.contract import Answer, is_right


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
    tokens: int | None  # its length, tokens of tools among them; None where the generator does not report it
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


def question_key(prompt: str, truth: str, row_id: str, images: bool) -> tuple[str, ...]:
    """A key that responses to the same question share, also those of different rows: prompt and truth.

    Prompts with images may be alike where the images differ: then the ids must be the same too, apart from the number
    of a repeated row.
    """
    return (prompt, truth, first_id(row_id)) if images else (prompt, truth)


@dataclass(frozen=True, slots=True)
class ScoredResponse(Answer):
    """A response with its reward's answer: score, accuracy and parts; `value` is the accuracy, or else the score."""

    reason: str = ""  # the reward's reason code, or "right", "wrong", "scored", `scoring.FAILED`; empty in a run's dump
    # Accuracy where an answer outside a marker counts too; None where the reward has no such switch.
    flexible: float | None = None
    failure: str = ""  # the error where the reward raised or its answer breaks the contract; else empty
    tokens: int | None = None  # as in `Response`; None and unknown in a run's dump, also the next two
    truncated: bool | None = None
    logprob: float | None = None
    # What the following say is known of a response that was read from a file.
    text: str = ""  # what was answered
    prompt: str = ""  # what was asked
    truth: str = ""  # the ground truth
    group: str = ""  # a key that the responses to one prompt of a batch share
    row_id: str | None = None  # the id of the prompt's row in the data; None where the file has no id for it
    question: tuple[str, ...] = ()  # its `question_key`

    @property
    def right(self) -> bool | None:
        """Return whether the response is right; None where the reward states no accuracy."""
        return is_right(self.accuracy)
