"""Generation by a server that speaks OpenAI's completions, with a bounded number of requests in flight."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipes.chat_server import Call, ChatServer, Completion
from recipes.data.lengths import chat_tokenizer
from recipes.data.rows import structured
from recipes.engines.verl.tools import Tools, ToolSettings, load_tools
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question, data_url
from recipes.evaluation.vllm_engine import UNBOUNDED, Engine, response_of, rules_of
from recipes.model_files import local_model
from recipes.pictures import encoded
from recipes.responses.measures import Group, Response, Sampling
from recipes.rewards.function import awaited
from recipes.written import in_json

if TYPE_CHECKING:
    from recipes.engines.verl.conversation import Rules

RETRIES, TIMEOUT = 6, 600.0
# For parameters that a request leaves out, vLLM and SGLang use the model's generation_config.json (top_k 20,
# repetition_penalty 1.05 for Qwen2.5), and would not sample as training does. OpenAI itself refuses these keys.
NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0}
TAKES_NEUTRAL = ("vllm", "sglang")


@dataclass(frozen=True)
class Server:
    """A server: its address with /v1, its name for the model, and the most requests in flight.

    `tokenizer` is a folder or a hub's name: the model's own, by which conversations with tools go as tokens.
    """

    api_base: str
    model: str
    concurrency: int = 64
    tokenizer: str = ""


class ServerSampler:
    """Generates by a server, one request a response, or with tools one request a turn of the model.

    Of `engine` it takes image bounds, template arguments and tools. Conversations with tools are those of vLLM in this
    process, token by token, where the server is vLLM; another one renders them and finds the calls in its own way.
    Log-probabilities are not asked for: those of a server ignore temperature and top_p.
    """

    def __init__(self, server: Server, engine: Engine, max_tokens: int, questions: Sequence[Question]) -> None:
        self._concurrency, self._engine = server.concurrency, engine
        self._chat = ChatServer(server.api_base, server.model, retries=RETRIES, timeout=TIMEOUT)
        if engine.template_arguments and self._chat.owner not in TAKES_NEUTRAL:
            what = "the recipe gives its chat template arguments, and this server may not take any"
            fix = "serve the model with vLLM or SGLang, or evaluate it without --api_base"
            raise RecipeError(what, where=f"data.apply_chat_template_kwargs; {server.api_base}", fix=fix)
        self._rules: Rules | None = None
        self._tools: Tools | None = None
        if engine.tools and self._chat.owner == "vllm":
            self._rules = self._checked_rules(engine.tools, server, max_tokens, questions)
            self._thinking = threading.Lock()  # a tokenizer serves one thread at a time
        elif engine.tools:
            self._tools = self._tools_of(engine.tools, server)

    def generate(self, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]:
        """Yield the groups in the order of the questions; only those in flight and a few more are in memory.

        A question that is not asked, since its prompt with the tools is longer than those of training, has no response.
        """
        pool = ThreadPoolExecutor(self._concurrency)
        waiting: deque[tuple[int, list[Future[Response | None]]]] = deque()
        most = 1 + 2 * self._concurrency // sampling.n
        ask = self._converse if self._rules else self._chat_with_tools if self._tools else self._ask
        try:
            for question in questions:
                messages = _with_image_urls(question, self._engine)
                requests = [pool.submit(ask, question, messages, sampling, k) for k in range(sampling.n)]
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
        seed = sampling.request_seed(question.row) + sample
        completion = self._complete(question, messages, sampling, max_tokens=sampling.max_tokens, seed=seed)
        return Response(completion.text, completion.tokens, completion.truncated, None)

    def _complete(
        self, question: Question, messages: list[dict[str, Any]], sampling: Sampling, **more: Any
    ) -> Completion:
        extra = self._neutral(sampling)
        if self._engine.template_arguments:
            extra["chat_template_kwargs"] = self._engine.template_arguments
        if question.images and self._engine.of_processor and self._chat.owner == "vllm":
            extra["mm_processor_kwargs"] = self._engine.of_processor
        completion = self._chat.complete(
            messages, temperature=sampling.temperature, top_p=sampling.top_p, extra_body=extra, **more
        )
        if completion.reasoning:
            raise RecipeError(
                "the server takes the thinking out of its responses, and the reward would not see what it sees in "
                "training",
                where="--api_base",
                fix="start the server without its reasoning parser",
            )
        return completion

    def _neutral(self, sampling: Sampling) -> dict[str, Any]:
        return {**NEUTRAL, "top_k": sampling.top_k} if self._chat.owner in TAKES_NEUTRAL else {}

    def _checked_rules(
        self, tools: ToolSettings, server: Server, max_tokens: int, questions: Sequence[Question]
    ) -> Rules:
        key = "worker.actor.model.model_path, whose tokenizer asks the server with tools"
        fix = "name the folder of the model that is served as --model_path, or as worker.actor.model.model_path"
        try:
            tokenizer = chat_tokenizer(
                server.tokenizer, self._engine.chat_template, trust_remote_code=self._engine.trust_remote_code
            )
        except RecipeError as error:
            raise RecipeError(error.what, where=key, fix=f"{error.fix}; {fix}") from error
        rules = rules_of(
            tools, self._engine, tokenizer, local_model(server.tokenizer), UNBOUNDED, max_tokens, questions
        )
        text = tokenizer.decode(rules.render([{"role": "user", "content": "Is 7 + 8 = 15 right?"}]))
        own = tokenizer.encode(text, add_special_tokens=False)
        if self._chat.continue_tokens(text, max_tokens=1)[0] != own:
            what = f"the server's model has other tokens than {server.tokenizer}"
            raise RecipeError(what, where=f"{server.api_base}; {key}", fix=fix)
        return rules

    def _converse(
        self, question: Question, messages: list[dict[str, Any]], sampling: Sampling, sample: int
    ) -> Response | None:
        """A response by tokens; None for a prompt that training leaves out."""
        from recipes.engines.verl.conversation import Conversation

        rules = self._rules
        assert rules is not None
        with self._thinking:
            conversation = Conversation(rules, messages)
        if conversation.is_cut:
            return None
        extra = self._neutral(sampling) | {"stop_token_ids": list(rules.parser.stop_token_ids)}
        while not conversation.ended:
            _, tokens = self._chat.continue_tokens(
                conversation.tokens,
                max_tokens=min(conversation.room, rules.response_length - len(conversation.mask)),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=sampling.request_seed(question.row) + sample + sampling.n * len(conversation.turns),
                extra_body=extra,
            )
            with self._thinking:
                calls = awaited(conversation.hear(tokens))
            if calls:
                called = [rules.tools.call(call.name, call.arguments) for call in calls]
                answers = [future.result() for future in called]
                with self._thinking:
                    conversation.answer(answers)
        return response_of(conversation, None)

    def _tools_of(self, tools: ToolSettings, server: Server) -> Tools:
        from recipes.engines.verl.conversation import is_of_the_file

        loaded, fix = Tools(load_tools(tools.file), tools), "serve the model with vLLM, or leave out --api_base"
        if self._chat.owner is None and "/v1" not in server.api_base:
            fix = f"write {server.api_base.rstrip('/')}/v1 if it is vLLM's, or leave out --api_base"
        if is_of_the_file(tools.format):
            what = f"{tools.format} is the tools' file's own form of calls, which this server does not read"
            raise RecipeError(what, where=f"worker.rollout.tool_format; {server.api_base}", fix=fix)
        if self._engine.chat_template:
            what = "this server renders conversations by a template of its own"
            raise RecipeError(what, where=f"data.override_chat_template; {server.api_base}", fix=fix)
        return loaded

    def _chat_with_tools(
        self, question: Question, messages: list[dict[str, Any]], sampling: Sampling, sample: int
    ) -> Response:
        """A response by messages, whose tokens the server counts; a tool's text counts from the next turn on."""
        from recipes.engines.verl.conversation import ANSWERED, BY_LENGTH, BY_TURNS, Hermes

        tools, said = self._tools, list(messages)
        assert tools is not None
        turns: list[dict[str, Any]] = []
        ended, used, prompt, heard = "", 0, None, 0
        while not ended:
            seed = sampling.request_seed(question.row) + sample + sampling.n * len(turns)
            room = sampling.max_tokens - used
            reply = self._complete(question, said, sampling, max_tokens=room, seed=seed, tools=tools.schemas)
            prompt = reply.prompt_tokens if prompt is None else prompt
            used = (reply.prompt_tokens or 0) - (prompt or 0) + (reply.tokens or 0)
            what = ""
            if reply.tokens is None:
                what = "the server does not count its tokens (`usage`), which limit a response with calls"
            elif reply.lost or not (reply.calls or reply.truncated or not Hermes.call.search(reply.text)):
                what = "the server leaves a call in the text of a response, or writes it in a form of its own"
            if what:
                fix = "start the server with its parser of calls, or serve the model with vLLM"
                raise RecipeError(what, where="--api_base", fix=fix)
            written = [f"{each.name}({each.arguments})" for each in reply.calls]
            turns.append({"role": "assistant", "content": "\n".join(filter(None, [reply.text, *written]))})
            heard += 1
            if reply.truncated or used >= sampling.max_tokens:
                ended = BY_LENGTH
            elif not reply.calls:
                ended = ANSWERED
            elif heard >= tools.settings.max_turns:
                ended = BY_TURNS
            else:
                asked = [
                    {
                        **each.own,
                        "id": each.id,
                        "type": "function",
                        "function": {"name": each.name, "arguments": _object(each)},
                    }
                    for each in reply.calls
                ]
                said.append({"role": "assistant", "content": reply.text, "tool_calls": asked})
                called = [tools.call(each.name, each.arguments) for each in reply.calls]
                for call, future in zip(reply.calls, called, strict=True):
                    answer = future.result()
                    said.append({"role": "tool", "tool_call_id": call.id, "content": answer.text})
                    turns.append({"role": "tool", "content": answer.text, "failed": answer.failed})
        of_tools = [turn for turn in turns if turn["role"] == "tool"]
        counts = {"tool_calls": len(of_tools), "failed_calls": sum(turn["failed"] for turn in of_tools)}
        facts = {"turns": turns, "model_turns": heard, **counts, "ended": ended}
        return Response(reply.text, used or None, ended == BY_LENGTH, None, facts)


def _object(call: Call) -> str:
    """A call's arguments for a server's template, which fails on what is no JSON object; the tool's answer says it."""
    return call.arguments if isinstance(in_json(call.arguments), dict) else "{}"


def _group(row: int, requests: list[Future[Response | None]]) -> Group:
    return Group(row, tuple(response for request in requests if (response := request.result()) is not None))


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
