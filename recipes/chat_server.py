"""A client of servers that speak OpenAI's chat completions; their errors become `RecipeError`s."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from recipes.errors import RecipeError

T = TypeVar("T")
REFUSALS = {
    401: "set OPENAI_API_KEY to a key that it accepts",
    403: "set OPENAI_API_KEY to a key that may use this model",
    404: "check --api_base, which ends in /v1 as a rule, and the model's name",
}
# vLLM writes minus infinity as this number, because JSON has none.
MINUS_INFINITY = -9999.0


class Choice(NamedTuple):
    """One response.

    Attributes:
        text: its content, without what a reasoning parser took out.
        tokens: its length; None where the server does not say it.
        finish: why it ended, such as "stop" or "length".
        logprobs: of each token, in nats; None where the server gives none.
        reasoning: whether a reasoning parser took the thinking out.
    """

    text: str
    tokens: int | None
    finish: str
    logprobs: list[float] | None
    reasoning: bool


class ChatServer:
    """A connection to one model of a server; may be used by several threads.

    Requests run on an event loop in a thread of its own, so that several are in flight at once, and a program that is
    stopped waits for none of them.

    Args:
        api_base: address with its /v1.
        model: the name under which it serves the model.
        retries: tries after the first one, 0.5, 1, 2, 4, then 8 seconds apart, or as the server's Retry-After says.
        timeout: seconds for one request.
        refused: what to do where the server refuses and its status alone does not tell.
        kept: what is not lost, added to the advice of every error.

    Raises:
        RecipeError: `api_base` is no address.
    """

    def __init__(
        self, api_base: str, model: str, *, retries: int, timeout: float, refused: str, kept: str = ""
    ) -> None:
        import openai

        if not re.match(r"https?://[^/\s]", api_base):
            fix = "write scheme and host, for instance http://localhost:8000/v1"
            raise RecipeError("the server's address is no URL", where=api_base, fix=fix)
        self.api_base, self.model = api_base, model
        self._retries, self._refused, self._kept = retries, refused, f"; {kept}" if kept else ""
        # A server of one's own needs no key, and the client refuses to do without.
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._client = openai.AsyncOpenAI(base_url=api_base, api_key=key, max_retries=retries, timeout=timeout)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def owner(self, option: str) -> str | None:
        """Return who serves the model ("vllm", "sglang"), as the server's list says; None where it has no list.

        Args:
            option: the argument that names the model.

        Raises:
            RecipeError: the server lists models, and not this one.
        """
        import openai

        try:
            listed = self._submit(self._payload(self._client.models.with_raw_response.list())).result()
        except RecipeError as error:
            if isinstance(error.__cause__, openai.NotFoundError):
                return None
            raise
        owners = {str(model["id"]): model.get("owned_by") for model in listed.get("data") or [] if "id" in model}
        if owners and self.model not in owners:
            raise RecipeError(
                f"the server has no model {self.model}, but {', '.join(owners)}",
                where=self.api_base,
                fix=f"name it with {option}",
            )
        return owners.get(self.model)

    def complete(self, messages: list[dict[str, Any]], **request: Any) -> Future[list[Choice]]:
        """Ask for responses to a chat; `request` has further arguments of the client's `chat.completions.create`."""
        return self._submit(self._complete({"model": self.model, "messages": messages, **request}))

    def close(self) -> None:
        """Close the connections."""
        if self._loop.is_running():
            self._submit(self._client.close()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    async def _complete(self, request: dict[str, Any]) -> list[Choice]:
        reply = await self._payload(self._client.chat.completions.with_raw_response.create(**request))
        try:
            choices = reply["choices"]
            usage = (reply.get("usage") or {}).get("completion_tokens") if len(choices) == 1 else None
            return [_choice(choice, usage) for choice in choices]
        except (KeyError, TypeError, AttributeError) as error:
            raise self._error(
                "the server's reply is no chat completion",
                f"is that an OpenAI-compatible server? Its reply: {str(reply)[:300]}",
            ) from error

    async def _payload(self, call: Awaitable[Any]) -> dict[str, Any]:
        """The body of a raw reply. Read here, not by the client's objects, a reply of 16,000 tokens is cheap."""
        import openai

        try:
            body = json.loads((await call).http_response.content)
        except openai.APIConnectionError as error:
            what = f"the server did not answer, after {self._retries} more tries"
            raise self._error(what, "start it again, or check --api_base") from error
        except openai.APIStatusError as error:
            said = error.body.get("message") if isinstance(error.body, dict) else None
            what = f"the server refused with status {error.status_code}: {str(said or error.message)[:300]}"
            raise self._error(what, REFUSALS.get(error.status_code, self._refused)) from error
        except json.JSONDecodeError as error:
            raise self._error("the server's reply is not JSON", "is --api_base right?") from error
        if not isinstance(body, dict):
            raise self._error("the server's reply is no JSON object", "is --api_base right?")
        return body

    def _error(self, what: str, fix: str) -> RecipeError:
        return RecipeError(what, where=self.api_base, fix=fix + self._kept)


def _choice(choice: dict[str, Any], usage: int | None) -> Choice:
    message = choice["message"]
    content = (choice.get("logprobs") or {}).get("content")
    return Choice(
        text=message.get("content") or "",
        tokens=len(content) if content else usage,
        finish=choice.get("finish_reason") or "stop",
        logprobs=[_logprob(token["logprob"]) for token in content] if content else None,
        reasoning=bool(message.get("reasoning") or message.get("reasoning_content")),
    )


def _logprob(value: float | None) -> float:
    if value is None:
        return float("nan")
    return float("-inf") if value <= MINUS_INFINITY else value
