"""Generation by a server that speaks OpenAI's chat completions, with a bounded number of requests in flight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from recipes.chat_server import ChatServer, Choice
from recipes.data.rows import structured
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question, data_url
from recipes.evaluation.sampling import Group, Response, Sampling, clean_text
from recipes.evaluation.vllm_engine import Engine

# Such servers take the model's generation_config.json (top_k 20, repetition_penalty 1.05 for Qwen2.5) for what a
# request leaves open, and the samples would not be those of training. OpenAI itself refuses these keys.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0}
TAKES_NEUTRAL = ("vllm", "sglang")


@dataclass(frozen=True)
class Server:
    """A server: its address with /v1, its name for the model, and how it is asked.

    Attributes:
        concurrency: requests in flight at most; each asks for all responses to one question.
        logprobs: ask for log-probabilities, which give token counts and entropy.
        retries, timeout: as `ChatServer` has them.
    """

    api_base: str
    model: str
    concurrency: int = 16
    logprobs: bool = True
    retries: int = 6
    timeout: float = 600.0


class ServerSampler:
    """A `Sampler` over a server; `engine` has the bounds of images and the template's arguments."""

    def __init__(self, server: Server, engine: Engine) -> None:
        self.server, self._engine = server, engine
        self._chat = ChatServer(
            server.api_base,
            server.model,
            retries=server.retries,
            timeout=server.timeout,
            refused="change what it names; --no_logprobs, a smaller --rollout_n or --max_tokens ask for less",
        )
        owner = self._chat.owner("--served_model (--base_served_model)")
        self._is_vllm, self._takes_neutral = owner == "vllm", owner in TAKES_NEUTRAL
        if engine.template_arguments and not self._takes_neutral:
            raise RecipeError(
                "the recipe gives its chat template arguments, and this server may not take any",
                where=f"data.apply_chat_template_kwargs; {server.api_base}",
                fix="serve the model with vLLM or SGLang, or evaluate it without --api_base",
            )

    def generate(self, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]:
        """One group per question, as each is answered; only the requests in flight hold memory.

        After a failure nothing new is asked, and what is in flight comes to its end before the failure is raised.
        """
        waiting = iter(questions)
        groups: dict[Future[list[Choice]], tuple[Question, list[Response]]] = {}
        failure: BaseException | None = None
        while True:
            while not failure and len(groups) < self.server.concurrency and (question := next(waiting, None)):
                groups[self._ask(question, sampling, 0)] = question, []
            if not groups:
                break
            for future in wait(groups, return_when=FIRST_COMPLETED).done:
                question, responses = groups.pop(future)
                try:
                    responses += self._responses(future.result(), question, sampling)
                except RecipeError as error:
                    failure = failure or error
                    continue
                if len(responses) < sampling.n:  # a server that ignores `n` is asked again for the rest
                    groups[self._ask(question, sampling, len(responses))] = question, responses
                else:
                    yield Group(question.row, tuple(responses[: sampling.n]))
        if failure:
            raise failure

    def close(self) -> None:
        """Close the connections."""
        self._chat.close()

    def _ask(self, question: Question, sampling: Sampling, already: int) -> Future[list[Choice]]:
        extra: dict[str, Any] = {}
        if self._takes_neutral:
            extra |= {**NEUTRAL, "top_k": sampling.top_k}
        if self._engine.template_arguments:
            extra["chat_template_kwargs"] = self._engine.template_arguments
        if question.images and self._engine.processor and self._is_vllm:
            extra["mm_processor_kwargs"] = self._engine.processor
        return self._chat.complete(
            _with_image_urls(question),
            n=sampling.n - already,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.request_seed(question.row) + already,
            logprobs=self.server.logprobs,
            extra_body=extra,
        )

    def _responses(self, choices: list[Choice], question: Question, sampling: Sampling) -> list[Response]:
        if not choices:
            raise RecipeError(f"the reply to row {question.row} has no response", where=self.server.api_base)
        if any(choice.reasoning for choice in choices):
            raise RecipeError(
                "the server takes the thinking out of its responses, and the reward would not see what it sees in "
                "training",
                where="--api_base",
                fix="start the server without its reasoning parser",
            )
        return [_response(choice, sampling) for choice in choices]


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


def _response(choice: Choice, sampling: Sampling) -> Response:
    logprob = None if choice.logprobs is None else sum(choice.logprobs)
    # A server's log-probabilities know neither temperature nor top_p: only without these they are those of what was
    # sampled. A value that is not finite is kept whatever the sampling: it is how broken weights show.
    sampled_from = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == -1
    broken = logprob is not None and not math.isfinite(logprob)
    return Response(clean_text(choice.text), choice.tokens, choice.finish, logprob if sampled_from or broken else None)
