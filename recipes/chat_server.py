"""A client of servers that speak OpenAI's chat completions; their errors become `RecipeError`s."""

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from recipes.errors import RecipeError


class Call(NamedTuple):
    """A call of a tool, as the server's parser found it; `arguments` is JSON as a rule."""

    id: str
    name: str
    arguments: str
    own: dict[str, Any]  # what else the server wrote, such as Gemini's signature, which it asks for again


class Completion(NamedTuple):
    text: str  # its content, without the thinking that the server's reasoning parser took out
    tokens: int | None  # its number of tokens; None where the server does not report it
    truncated: bool  # whether the limit on tokens cut it off
    reasoning: bool  # whether a reasoning parser took the thinking out
    prompt_tokens: int | None = None  # as `tokens`, of its prompt
    calls: tuple[Call, ...] = ()
    lost: bool = False  # whether it ended with calls in a form that is not read here


class ChatServer:
    """A connection to one model of a server at an address with its /v1; may be used by several threads.

    A request has `timeout` seconds and `retries` further tries, 0.5, 1, 2, 4, then 8 seconds apart, or as the server's
    Retry-After says. Raises RecipeError where the address is none, the server does not answer, or it lacks the model.
    """

    def __init__(self, api_base: str, model: str, *, retries: int, timeout: float) -> None:
        import openai

        self.api_base, self.model = api_base, model
        if not re.match(r"https?://[^/\s]", api_base):
            fix = "write scheme and host, for instance http://localhost:8000/v1"
            raise RecipeError("the server's address is no URL", where=api_base, fix=fix)
        # A local server needs no API key, but the client refuses to start without one.
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._client = openai.OpenAI(base_url=api_base, api_key=key, max_retries=retries, timeout=timeout)
        self.owner = self._owner()
        """The server's kind, such as "vllm" or "sglang"; None where it has no list of models."""

    def complete(self, messages: list[dict[str, Any]], **request: Any) -> Completion:
        """The response to a chat; `request` has further arguments of the client's `chat.completions.create`."""
        reply, choice = self._first_choice(self._client.chat.completions.create, messages=messages, **request)
        message, text, calls = choice.message, choice.message.content or "", []
        if isinstance(text, list):  # parts, of which some servers make a message
            text = "".join(part.get("text") or "" for part in text if isinstance(part, dict))
        for number, each in enumerate(getattr(message, "tool_calls", None) or ()):
            if function := getattr(each, "function", None):
                given = function.arguments
                arguments = given if isinstance(given, str) else json.dumps(given or {})
                own = getattr(each, "model_extra", None) or {}
                calls.append(Call(each.id or f"call_{number}", function.name, arguments, own))
        return Completion(
            text=text,
            tokens=reply.usage.completion_tokens if reply.usage else None,
            truncated=choice.finish_reason == "length",
            reasoning=bool(getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None)),
            prompt_tokens=reply.usage.prompt_tokens if reply.usage else None,
            calls=tuple(calls),
            lost=choice.finish_reason in ("tool_calls", "function_call") and not calls,
        )

    def continue_tokens(self, prompt: str | Sequence[int], **request: Any) -> tuple[list[int], list[int]]:
        """The tokens of a prompt, which is a text or tokens, and those that follow it; by vLLM's `return_token_ids`.

        `request` has further arguments of the client's `completions.create`.
        """
        extra = {**request.pop("extra_body", {}), "return_token_ids": True, "add_special_tokens": False}
        _, choice = self._first_choice(self._client.completions.create, prompt=prompt, extra_body=extra, **request)
        asked, answered = getattr(choice, "prompt_token_ids", None), getattr(choice, "token_ids", None)
        if asked is None or answered is None:
            fix = "serve the model with vLLM 0.10.2 or later"
            raise RecipeError("the server does not return the tokens of its responses", where=self.api_base, fix=fix)
        return asked, answered

    def _first_choice(self, create: Callable[..., Any], **request: Any) -> tuple[Any, Any]:
        import openai

        try:
            reply = create(model=self.model, **request)
        except openai.OpenAIError as error:
            raise self._error(error) from error
        choices = getattr(reply, "choices", None)
        if not choices or not (getattr(choices[0], "message", None) or hasattr(choices[0], "text")):
            what = f"the server's reply is no completion: {str(reply)[:300]}"
            raise RecipeError(what, where=self.api_base, fix="check the address, which ends in /v1 as a rule")
        return reply, choices[0]

    def close(self) -> None:
        self._client.close()

    def _owner(self) -> str | None:
        import openai

        try:
            listed = self._client.models.list()
        except openai.NotFoundError:
            return None
        except openai.OpenAIError as error:
            raise self._error(error) from error
        owners = {model.id: model.owned_by for model in getattr(listed, "data", None) or []}
        if owners and self.model not in owners:
            fix = f"name one of {', '.join(owners)}"
            raise RecipeError(f"the server has no model {self.model}", where=self.api_base, fix=fix)
        return owners.get(self.model)

    def _error(self, error: Exception) -> RecipeError:
        import openai

        what, fix = "gave no answer", "check its address (with /v1), that it runs, and OPENAI_API_KEY"
        if isinstance(error, openai.BadRequestError):  # for instance, fewer positions than --max_tokens wants
            what, fix = "refuses the request", "change what it names"
        what = f"the server {what}: {str(error)[:300]}"
        return RecipeError(what, where=self.api_base, fix=f"{fix}; finished answers are kept")
