"""A response with calls of tools, turn by turn: its tokens and mask, what was called, and why it ended.

The trainer's loop (`agent_loops.py`) and the evaluation (`evaluation/vllm_engine.py`) only generate and call, so that
both make the same tokens. Tokens are kept and never made from text again: of what a model samples, one response in
seven has other tokens when its text is tokenised.
"""

import functools
import hashlib
import json
import logging
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.utils.tokenizer import continuous_token_wiring
from verl.utils.tokenizer.continuous_token_wiring import (
    ContinuousTokenModelFamily,
    create_continuous_token_builder,
    infer_continuous_token_model_family,
)

from recipes.engines.verl.tools import UNREADABLE, ToolAnswer, Tools
from recipes.errors import RecipeError

# It warns that a model type has no builder of its own; `Rules` chooses by the template then.
logging.getLogger(continuous_token_wiring.__name__).setLevel(logging.ERROR)
END_OF_TURN = "<|im_end|>"
REMEMBERED = 4096  # texts
ANSWERED, BY_LENGTH, BY_TURNS = "answer", "length", "turns"
"""Ends of a response: a turn without a call, the limit of tokens, or a call in the last turn that may be."""


@ToolParser.register("hermes")
class Hermes(ToolParser):
    """Reads `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; what stands in the tags is a call, always.

    verl's parser drops a call that is not closed or no JSON, which ends the response as if nothing had been called.
    """

    call = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)

    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids)
        return self.call.sub("", text), [_hermes(*found.groups()) for found in self.call.finditer(text)]

    @staticmethod
    def write(name: str, arguments: dict[str, Any]) -> str:
        """A call as this parser reads it, for templates that write none."""
        call = {"name": name, "arguments": arguments}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _hermes(text: str, end: str) -> FunctionCall:
    if not end:
        return FunctionCall(name=UNREADABLE, arguments="</tool_call> is missing")
    try:
        call = json.loads(text)
    except ValueError as error:
        return FunctionCall(name=UNREADABLE, arguments=f"it is no JSON: {error}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
        return FunctionCall(name=UNREADABLE, arguments="it has no name, or no arguments")
    return FunctionCall(name=call["name"], arguments=json.dumps(call["arguments"], ensure_ascii=False))


def is_of_the_file(name: str) -> bool:
    """Return whether a format of calls is not verl's or this package's, but a tools' file's own, or unknown."""
    return not getattr(ToolParser._registry.get(name), "__module__", "").startswith(("verl.", "recipes."))


class Rules:
    """The common part of all conversations of a model, by its tokenizer and the `model_type` of its `config.json`.

    `builder` is verl's, and adds a tool's answer to tokens; `parser` finds the calls in a turn. Raises RecipeError
    where there is no parser of that name.
    """

    def __init__(
        self,
        tokenizer: Any,
        tools: Tools,
        prompt_length: int,
        response_length: int,
        *,
        model_type: str | None,
        template_arguments: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.tools = tokenizer, tools
        self.prompt_length, self.response_length = prompt_length, response_length
        arguments = dict(template_arguments or {})
        family = infer_continuous_token_model_family(hf_model_type=model_type)
        if family is ContinuousTokenModelFamily.DEFAULT and _is_chatml(tokenizer, arguments):
            family = ContinuousTokenModelFamily.QWEN  # verl's default leaves out the newline after the end of a turn
        self.builder: Any = create_continuous_token_builder(
            tokenizer, model_family=family, chat_template_kwargs=arguments
        )
        self.builder._render_tokens = _remembering(self.builder._render_tokens)
        try:
            self.parser: Any = ToolParser.get_tool_parser(tools.settings.format, tokenizer)
        except ValueError as error:
            what, known = f"there is no format of calls {tools.settings.format!r}", sorted(ToolParser._registry)
            fix = f"name one of {', '.join(known)}, or register it in the tools' file"
            raise RecipeError(what, where="worker.rollout.tool_format", fix=fix) from error

    def render(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The tokens of a prompt, which may be longer than `prompt_length`."""
        tokens: list[int] = self.builder.build_initial_tokens([*map(dict, messages)], tools=self.tools.schemas)
        return tokens

    def check_shown(self, prompt: Sequence[dict[str, Any]], where: str) -> None:
        """Raise RecipeError where the model would not learn of the tools: neither from the template, nor from a prompt.

        A format of the file's own is taught by a warm start, and needs no description.
        """
        shown = self.tokenizer.decode(self.render(prompt))
        names = [schema["function"]["name"] for schema in self.tools.schemas]
        missing = [name for name in names if name not in shown]
        if missing and not is_of_the_file(self.tools.settings.format):
            what = f"the chat template does not show the tools, and the prompt does not name {', '.join(missing)}"
            fix = "name and describe them in the system prompt (--system_prompt FILE), take a model that knows tools, "
            raise RecipeError(what, where=where, fix=f"{fix}or give a template by data.override_chat_template")

    async def read(self, tokens: list[int]) -> tuple[str, list[FunctionCall]]:
        """A turn's text without calls, and its calls; one unreadable call where the parser raises."""
        try:
            content, calls = await self.parser.extract_tool_calls(tokens, self.tools.kinds)
        except Exception as error:  # noqa: BLE001 a user's parser, or JSON that is nested too deep
            content, calls = "", [FunctionCall(name=UNREADABLE, arguments=f"{type(error).__name__}: {error}")]
        return content, list(calls)


def _remembering(render: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """Render what has been rendered before from memory: a prompt for its other responses, an answer such as `24`, and
    the stand-ins before an answer, by which verl finds its tokens; two thirds of a conversation's time without it."""
    known: dict[bytes, array[int]] = {}  # a digest of what is said -> its tokens, four bytes each

    def rendered(messages: list[dict[str, Any]], *, add_generation_prompt: bool, tools: Any = None) -> list[int]:
        said = hashlib.sha256(f"{add_generation_prompt} {messages}".encode("utf-8", "surrogatepass")).digest()
        tokens = known.get(said)
        if tokens is None:
            if len(known) >= REMEMBERED:
                known.clear()
            made = render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
            tokens = known[said] = array("I", made)
        return tokens.tolist()

    return rendered


def _is_chatml(tokenizer: Any, arguments: dict[str, Any]) -> bool:
    """Return whether a turn ends by `<|im_end|>` and a newline, which is a token of its own."""
    said = [{"role": role, "content": role} for role in ("system", "user", "assistant")]  # as the builder writes them
    text = tokenizer.apply_chat_template(said, tokenize=False, **arguments)
    return text.endswith(f"{END_OF_TURN}\n") and len(tokenizer.encode("\n", add_special_tokens=False)) == 1


class Conversation:
    """One response, from its prompt to its end.

    `messages` are the prompt. `hear` takes the model's next turn, at most `room` tokens, and `answer` the answers to
    its calls. When `ended` is set, `response`, `mask` and `log_probs` hold the response. Of a prompt that `is_cut` verl
    cuts off the beginning.
    """

    def __init__(self, rules: Rules, messages: Sequence[dict[str, Any]]) -> None:
        self.rules, self._messages = rules, [dict(message) for message in messages]
        prompt = rules.render(messages)
        self.prompt: list[int] = prompt[-rules.prompt_length :]
        self.is_cut = len(prompt) > rules.prompt_length
        self.tokens = list(self.prompt)
        self.ended = ""
        self.turns: list[dict[str, Any]] = []
        self.calls = self.failed_calls = 0
        self.last_text = ""
        self._mask: list[int] = []
        self._log_probs: list[float] | None = None

    @property
    def room(self) -> int:
        """Most tokens of the next turn, as verl's server computes it; the response is cut at its end."""
        longest = self.rules.prompt_length + self.rules.response_length
        return min(self.rules.response_length, longest - len(self.tokens))

    @property
    def response(self) -> list[int]:
        """The response's tokens, those of tools among them."""
        return self.tokens[len(self.prompt) :][: self.rules.response_length]

    @property
    def mask(self) -> list[int]:
        """1 for a token of the model's, 0 for one that the template or a tool wrote."""
        return self._mask[: self.rules.response_length]

    @property
    def log_probs(self) -> list[float] | None:
        """Log-probabilities of the response's tokens, 0 where the mask is; None where none were given."""
        return None if self._log_probs is None else self._log_probs[: self.rules.response_length]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that rewards and dumps get (`recipes/dumps.py`)."""
        counts = {"model_turns": self._heard, "tool_calls": self.calls, "failed_calls": self.failed_calls}
        return {"turns": self.turns, **counts, "ended": self.ended}

    @property
    def _heard(self) -> int:
        return sum(turn["role"] == "assistant" for turn in self.turns)

    async def hear(self, tokens: Sequence[int], log_probs: Sequence[float] | None = None) -> list[FunctionCall]:
        """Take in a turn of the model; return its calls, none where the response has ended."""
        rules, before = self.rules, len(self._mask)
        merged = rules.builder.merge_assistant_tokens(self.tokens, list(tokens))
        known = (self._log_probs or [0.0] * before) if log_probs is not None else None
        self._mask, self._log_probs = rules.builder.align_response_metadata(
            merged, self._mask, known, assistant_logprobs=None if log_probs is None else list(log_probs)
        )
        self.tokens = merged.token_ids
        kept = list(tokens)[: rules.response_length - before]
        text = rules.tokenizer.decode(kept, skip_special_tokens=True)
        content, calls = await rules.read(kept)
        self.turns.append({"role": "assistant", "content": text})
        self.last_text = text
        if calls:
            specials = rules.tokenizer.all_special_tokens
            self.last_text = functools.reduce(lambda rest, token: rest.replace(token, ""), specials, content)
        if len(self._mask) >= rules.response_length:
            self.ended = BY_LENGTH
        elif not calls:
            self.ended = ANSWERED
        elif self._heard >= rules.tools.settings.max_turns:
            self.ended = BY_TURNS
        if self.ended:
            return []
        self._messages.append(
            {"role": "assistant", "content": content, "tool_calls": [_as_message(call) for call in calls]}
        )
        return calls

    def answer(self, answers: Sequence[ToolAnswer]) -> None:
        """Take in the answers to the calls of the last turn, in their order."""
        builder, limit = self.rules.builder, self.rules.response_length
        self.calls += len(answers)
        self.failed_calls += sum(answer.failed for answer in answers)
        texts = [answer.text for answer in answers]
        try:
            messages, merged = self._merged(texts)
        except Exception:  # whatever a template raises that takes one answer after a turn, as Llama 3's
            if len(texts) < 2:
                raise
            messages, merged = self._merged(["\n".join(texts)])
        mask, log_probs = builder.align_response_metadata(merged, self._mask, self._log_probs)
        if len(mask) >= limit:  # nothing could follow: the response ends with the call, as in verl's loop
            self.ended = BY_LENGTH
            return
        self._messages, self.tokens, self._mask, self._log_probs = messages, merged.token_ids, mask, log_probs
        self.turns += [{"role": "tool", "content": answer.text, "failed": answer.failed} for answer in answers]

    def _merged(self, texts: Sequence[str]) -> tuple[list[dict[str, Any]], Any]:
        whole, tools = [*self._messages, *({"role": "tool", "content": text} for text in texts)], self.rules.tools
        merge = self.rules.builder.merge_context_tokens
        return whole, merge(self._messages, whole, self.tokens, tools=tools.schemas)


def _as_message(call: FunctionCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return {"type": "function", "function": {"name": call.name, "arguments": arguments}}
