"""Generation by a server that speaks OpenAI's chat completions, with a bounded number of requests in flight."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from recipes.chat_server import ChatServer
from recipes.data.rows import structured
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question, data_url
from recipes.evaluation.vllm_engine import Engine
from recipes.pictures import encoded
from recipes.responses.measures import Group, Response, Sampling

RETRIES, TIMEOUT = 6, 600.0
# For parameters that a request leaves out, vLLM and SGLang use the model's generation_config.json (top_k 20,
# repetition_penalty 1.05 for Qwen2.5), and would not sample as training does. OpenAI itself refuses these keys.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0}
TAKES_NEUTRAL = ("vllm", "sglang")


@dataclass(frozen=True)
class Server:
    """A server: its address with /v1, its name for the model, and the most requests in flight."""

    api_base: str
    model: str
    concurrency: int = 64


class ServerSampler:
    """Generates by a server, one request a response; of `engine` it takes image bounds and template arguments.

    Log-probabilities are not asked for: those of a server ignore temperature and top_p.
    """

    def __init__(self, server: Server, engine: Engine) -> None:
        self._concurrency, self._engine = server.concurrency, engine
        self._chat = ChatServer(server.api_base, server.model, retries=RETRIES, timeout=TIMEOUT)
        if engine.template_arguments and self._chat.owner not in TAKES_NEUTRAL:
            what = "the recipe gives its chat template arguments, and this server may not take any"
            fix = "serve the model with vLLM or SGLang, or evaluate it without --api_base"
            raise RecipeError(what, where=f"data.apply_chat_template_kwargs; {server.api_base}", fix=fix)

    def generate(self, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]:
        """Yield the groups in the order of the questions; only those in flight and a few more are in memory."""
        pool = ThreadPoolExecutor(self._concurrency)
        waiting: deque[tuple[int, list[Future[Response]]]] = deque()
        most = 1 + 2 * self._concurrency // sampling.n
        try:
            for question in questions:
                messages = _with_image_urls(question, self._engine)
                requests = [pool.submit(self._ask, question, messages, sampling, k) for k in range(sampling.n)]
                waiting.append((question.row, requests))
                if len(waiting) == most:
                    yield _group(*waiting.popleft())
            while waiting:
                yield _group(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        self._chat.close()

    def _ask(self, question: Question, messages: list[dict[str, Any]], sampling: Sampling, sample: int) -> Response:
        extra: dict[str, Any] = {}
        if self._chat.owner in TAKES_NEUTRAL:
            extra |= {**NEUTRAL, "top_k": sampling.top_k}
        if self._engine.template_arguments:
            extra["chat_template_kwargs"] = self._engine.template_arguments
        if question.images and self._engine.of_processor and self._chat.owner == "vllm":
            extra["mm_processor_kwargs"] = self._engine.of_processor
        completion = self._chat.complete(
            messages,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.request_seed(question.row) + sample,
            extra_body=extra,
        )
        if completion.reasoning:
            raise RecipeError(
                "the server takes the thinking out of its responses, and the reward would not see what it sees in "
                "training",
                where="--api_base",
                fix="start the server without its reasoning parser",
            )
        return Response(completion.text, completion.tokens, completion.truncated, None)


def _group(row: int, requests: list[Future[Response]]) -> Group:
    return Group(row, tuple(request.result() for request in requests))


def _with_image_urls(question: Question, engine: Engine) -> list[dict[str, Any]]:
    """The messages, with each image as a data URL where it belongs."""
    if not question.images:
        return question.prompt
    urls = (data_url(encoded(engine.shown(each)) if engine.of_easyr1 else each) for each in question.images)
    messages = structured(question.prompt)
    for message in messages:
        message["content"] = [
            {"type": "image_url", "image_url": {"url": next(urls)}} if part["type"] == "image" else part
            for part in message["content"]
        ]
    return messages
