"""Generation through any server that speaks OpenAI's chat completions: bounded concurrency, retries with back-off."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from recipes.chat_server import client_options, owner, payload, server_errors
from recipes.data.rows import structured
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question, data_url
from recipes.evaluation.sampling import Group, Response, Sampling, clean_text
from recipes.evaluation.vllm_engine import Engine

# Such servers take the model's generation_config.json (top_k 20, repetition_penalty 1.05 for Qwen2.5) for what a
# request leaves open, and the samples would not be those of training. OpenAI itself refuses these keys.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0}
TAKES_NEUTRAL = ("vllm", "sglang")
# vLLM writes minus infinity as this number, because JSON has none.
MINUS_INFINITY = -9999.0


@dataclass(frozen=True)
class Server:
    """A server: its address, its model, and the limits on requests.

    Attributes:
        api_base: address with its /v1.
        model: the name under which it serves the model.
        concurrency: requests in flight at most; each asks for all responses to one question.
        retries: tries after the first one, 0.5, 1, 2, 4, then 8 seconds apart, or as the server's Retry-After says.
        timeout: seconds for one request.
        logprobs: ask for log-probabilities, which give token counts and entropy.
    """

    api_base: str
    model: str
    concurrency: int = 16
    retries: int = 6
    timeout: float = 600.0
    logprobs: bool = True


class ServerSampler:
    """A `Sampler` over a server; `engine` has the bounds of images."""

    def __init__(self, server: Server, engine: Engine) -> None:
        from openai import AsyncOpenAI

        self.server, self._engine = server, engine
        self._loop = asyncio.new_event_loop()
        self._client = AsyncOpenAI(**client_options(server))
        self._extra = self._loop.run_until_complete(self._ask_models())

    def generate(self, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]:
        """One group per question, as each is answered; a server that stays away ends it with a `RecipeError`."""
        stream = self._stream(questions, sampling)
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(stream))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(stream.aclose())

    def close(self) -> None:
        """Close the connections."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._client.close())
            self._loop.close()

    async def _ask_models(self) -> dict[str, Any]:
        """Check that the server has the model; return the extra keys that this kind of server takes."""
        listed = await _payload(self._client.models.with_raw_response.list(), self.server)
        served_by = owner(listed, self.server, "--served_model (--base_served_model)")
        self._is_vllm = served_by == "vllm"
        if self._engine.template_arguments and served_by not in TAKES_NEUTRAL:
            raise RecipeError(
                "the recipe gives its chat template arguments, and this server may not take any",
                where=f"data.apply_chat_template_kwargs; {self.server.api_base}",
                fix="serve the model with vLLM or SGLang, or evaluate it without --api_base",
            )
        return NEUTRAL if served_by in TAKES_NEUTRAL else {}

    async def _stream(self, questions: Iterable[Question], sampling: Sampling) -> AsyncGenerator[Group, None]:
        """Keep `concurrency` requests in flight; only those hold memory.

        After a failure nothing new is asked, and what is in flight comes to its end before the failure is raised.
        """
        waiting = iter(questions)
        running: set[asyncio.Task[Group]] = set()
        failure: BaseException | None = None
        try:
            while True:
                while not failure and len(running) < self.server.concurrency and (question := next(waiting, None)):
                    running.add(asyncio.create_task(self._answer(question, sampling)))
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    failure = failure or task.exception()
                    if not task.exception():
                        yield task.result()
            if failure:
                raise failure
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _answer(self, question: Question, sampling: Sampling) -> Group:
        """All responses to one question; a server that ignores `n` is asked again for the rest."""
        responses: list[Response] = []
        while len(responses) < sampling.n:
            request = self._request(question, sampling, already=len(responses))
            reply = await _payload(self._client.chat.completions.with_raw_response.create(**request), self.server)
            try:
                choices = reply["choices"]
                usage = reply.get("usage") if len(choices) == 1 else None
                responses += [_response(choice, usage, sampling) for choice in choices]
                choices[0]  # a reply without a choice would be asked for forever
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise RecipeError(
                    f"the server's reply to row {question.row} holds no chat completion",
                    where=self.server.api_base,
                    fix=f"is that an OpenAI-compatible server? Its reply: {str(reply)[:300]}",
                ) from error
        return Group(question.row, tuple(responses[: sampling.n]))

    def _request(self, question: Question, sampling: Sampling, already: int) -> dict[str, Any]:
        extra = self._extra
        if extra:
            extra = extra | {"top_k": sampling.top_k}
        if self._engine.template_arguments:
            extra = extra | {"chat_template_kwargs": self._engine.template_arguments}
        if question.images and self._engine.processor and self._is_vllm:
            extra = extra | {"mm_processor_kwargs": self._engine.processor}
        return {
            "model": self.server.model,
            "messages": _with_image_urls(question),
            "n": sampling.n - already,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.request_seed(question.row) + already,
            "logprobs": self.server.logprobs,
            "extra_body": extra,
        }


def _with_image_urls(question: Question) -> list[dict[str, Any]]:
    """The messages, with each image as a data URL where it belongs."""
    if not question.images:
        return question.prompt
    urls = map(data_url, question.images)
    messages = structured(question.prompt)
    for message in messages:
        message["content"] = [
            {"type": "image_url", "image_url": {"url": next(urls)}} if part["type"] == "image" else part
            for part in message["content"]
        ]
    return messages


async def _payload(call: Any, server: Server) -> dict[str, Any]:
    with server_errors(
        server, "change what it names; --no_logprobs, a smaller --rollout_n or --max_tokens ask for less"
    ):
        return payload(await call, server)


def _response(choice: dict[str, Any], usage: dict[str, Any] | None, sampling: Sampling) -> Response:
    message = choice["message"]
    if message.get("reasoning") or message.get("reasoning_content"):
        raise RecipeError(
            "the server takes the thinking out of its responses, and the reward would not see what it sees in training",
            where="--api_base",
            fix="start the server without its reasoning parser",
        )
    content = (choice.get("logprobs") or {}).get("content")
    logprob = sum(_logprob(token["logprob"]) for token in content) if content else None
    # A server's log-probabilities know neither temperature nor top_p: only without these they are those of what was
    # sampled. A value that is not finite is kept whatever the sampling: it is how broken weights show.
    sampled_from = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == -1
    broken = logprob is not None and not math.isfinite(logprob)
    return Response(
        text=clean_text(message.get("content") or ""),
        tokens=len(content) if content else (usage or {}).get("completion_tokens"),
        finish=choice.get("finish_reason") or "stop",
        logprob=logprob if sampled_from or broken else None,
    )


def _logprob(value: float | None) -> float:
    if value is None:
        return float("nan")
    return float("-inf") if value <= MINUS_INFINITY else value
