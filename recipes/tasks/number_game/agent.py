"""The player: a model behind any OpenAI-compatible server, shown one screenshot at a time."""

from __future__ import annotations

import base64
import os
import time
from dataclasses import dataclass
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.prompt import DATA_SOURCE, QUESTION
from recipes.tasks.number_game.rules import POSITIONS
from recipes.tasks.rewards import Score


@dataclass(frozen=True)
class Server:
    """How to reach a server and how to sample; temperature, top_p and max_tokens are those of the recipe's validation.

    Attributes:
        api_base: address with its /v1, of vLLM, Ollama or another.
        model: the name under which it serves the model.
        retries: tries after the first where the server does not answer or refuses, 0.5, 1, 2, 4, 8 seconds apart.
        asks: how often a screenshot is shown where the response has no answer; one where the temperature is 0.
        timeout: seconds for one request.
    """

    api_base: str
    model: str
    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 128
    retries: int = 4
    asks: int = 3
    timeout: float = 120.0


@dataclass(frozen=True)
class Decision:
    """What the model made of a screenshot.

    Attributes:
        answer: the card, or None where the last response had none.
        responses: all of them; the last one counts.
        reason: the reward's code for a response without an answer, "answered" otherwise.
        seconds: from the first request to the last response.
    """

    answer: int | None
    responses: tuple[str, ...]
    reason: str
    seconds: float


class Agent:
    """Asks a server for decisions; may be used by several threads. Responses are read as the reward reads them."""

    def __init__(self, server: Server, score: Score) -> None:
        """Check that the server answers and has the model.

        Args:
            server: where the model is.
            score: the reward file's `compute_score`.
        """
        from openai import OpenAI

        self.server = server
        self._score = score
        self._client = OpenAI(
            base_url=server.api_base,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            max_retries=server.retries,
            timeout=server.timeout,
        )
        self._check_model()

    def decide(self, image: bytes) -> Decision:
        """Show a screenshot (PNG) until a response has an answer, `asks` times at most."""
        begin = time.perf_counter()
        responses: list[str] = []
        for _ in range(self.server.asks if self.server.temperature > 0 else 1):
            responses.append(self._ask(image))
            answer, reason = self.read(responses[-1])
            if answer is not None:
                break
        return Decision(answer, tuple(responses), reason, time.perf_counter() - begin)

    def read(self, response: str) -> tuple[int | None, str]:
        """The card that a response names, by the reward's own rule, and the reason where it names none."""
        results = [self._score(DATA_SOURCE, response, str(position), None) for position in POSITIONS]
        right = [position for position, result in zip(POSITIONS, results, strict=True) if result["accuracy"] == 1.0]
        return (right[0], "answered") if right else (None, str(results[0]["reason"]))

    def _ask(self, image: bytes) -> str:
        picture = "data:image/png;base64," + base64.b64encode(image).decode()
        content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": QUESTION}]
        reply = self._request(
            self._client.chat.completions.create,
            model=self.server.model,
            messages=[{"role": "user", "content": content}],
            temperature=self.server.temperature,
            top_p=self.server.top_p,
            max_tokens=self.server.max_tokens,
        )
        # Where a server answers 200 with something else, the client hands on what it could make of it.
        choices = getattr(reply, "choices", None)
        if choices is None:
            raise RecipeError(
                f"the server's reply is not a chat completion: {str(reply)[:100]!r}",
                where=self.server.api_base,
                fix="is --api_base right? it usually ends in /v1; finished episodes are kept",
            )
        message = choices[0].message if choices else None
        return str(message.content or "") if message else ""

    def _check_model(self) -> None:
        models = self._request(self._client.models.list, missing_is_fine=True)
        names = [model.id for model in getattr(models, "data", None) or []]
        if names and self.server.model not in names:
            raise RecipeError(
                f"the server has no model {self.server.model}, but {', '.join(names)}",
                where=self.server.api_base,
                fix="name it with --model",
            )

    def _request(self, call: Any, *, missing_is_fine: bool = False, **arguments: Any) -> Any:
        import openai

        try:
            return call(**arguments)
        except openai.APIConnectionError as error:
            raise RecipeError(
                f"the server did not answer, after {self.server.retries} more tries",
                where=self.server.api_base,
                fix="start it again, or check --api_base; finished episodes are kept",
            ) from error
        except openai.NotFoundError as error:
            if missing_is_fine:
                return None
            raise self._refused(error) from error
        except openai.APIStatusError as error:
            raise self._refused(error) from error
        except ValueError as error:
            raise RecipeError(
                f"the server's reply is not JSON: {error}", where=self.server.api_base, fix="is --api_base right?"
            ) from error

    def _refused(self, error: Any) -> RecipeError:
        return RecipeError(
            f"the server refused with status {error.status_code}: {str(error.message)[:300]}",
            where=self.server.api_base,
            fix="does it serve a vision-language model under this name? finished episodes are kept",
        )
