"""Generation through a scripted server: concurrency, retries, refusals, and images."""

import base64
import io
import json
from contextlib import closing
from dataclasses import replace
from threading import Barrier

import pytest

from recipes.data.lengths import chat_tokenizer
from recipes.engines.verl.tools import ToolSettings
from recipes.evaluation.openai_server import Server, ServerSampler
from recipes.evaluation.questions import load_questions, with_images
from recipes.evaluation.vllm_engine import Engine
from recipes.paths import ROOT
from recipes.responses.measures import Sampling
from tests.mistakes import mistake

SAMPLED = Sampling(n=4, temperature=1.0, top_p=1.0, max_tokens=256, seed=0)
BOUNDS = {"min_pixels": 3136, "max_pixels": 200704}


@pytest.fixture
def ask(server, make_data):
    """Ask the server `count` questions; returns the groups by row."""

    def run(count=1, data=None, engine=None, model="tiny", **settings):
        data = data or make_data(count)
        place = Server(server.api_base, model, **settings)
        questions = load_questions(data)
        with closing(ServerSampler(place, engine or Engine(), SAMPLED.max_tokens, questions)) as sampler:
            return {each.row: each for each in sampler.generate(with_images(data, questions), SAMPLED)}

    return run


def test_every_question_is_answered_n_times_with_bounded_concurrency(ask, server):
    server.meet = Barrier(3, timeout=30).wait  # each request waits for two others
    groups = ask(count=12, concurrency=3)
    assert list(groups) == list(range(12))
    assert server.most_running == 3
    for group in groups.values():
        assert len(group.responses) == 4
        assert all(each.tokens == len(each.text.split()) and not each.truncated for each in group.responses)
    assert len({each.text for group in groups.values() for each in group.responses}) > 12, "a group's seeds differ"
    sent = server.requests[0]
    assert (sent["path"], sent["temperature"], sent["top_p"]) == ("/v1/chat/completions", 1.0, 1.0)
    assert sent["max_tokens"] == 256
    seeds = {SAMPLED.request_seed(row) + sample for row in range(12) for sample in range(4)}
    assert {request["seed"] for request in server.requests} == seeds


def test_a_servers_own_defaults_of_sampling_are_switched_off_where_it_has_some(ask, server):
    ask()
    assert "top_k" not in server.requests[-1]
    server.models = [{"id": "tiny", "owned_by": "vllm"}]
    ask(engine=Engine(template_arguments={"enable_thinking": False}))
    assert (server.requests[-1]["top_k"], server.requests[-1]["repetition_penalty"]) == (-1, 1.0)
    assert server.requests[-1]["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize("statuses", [[500, 429], [408, 0]])
def test_what_passes_is_tried_again(ask, server, statuses):
    server.statuses = list(statuses)
    assert len(ask(concurrency=1)) == 1
    assert len(server.requests) == len(statuses) + 4


def test_what_cannot_be_asked_is_named(ask, server):
    place = "localhost:8000/v1"
    assert mistake(lambda: ServerSampler(Server(place, "tiny"), Engine(), 32, [])).where == place
    assert "tiny" in mistake(lambda: ask(model="other")).fix
    error = mistake(lambda: ask(engine=Engine(template_arguments={"enable_thinking": False})))
    assert "data.apply_chat_template_kwargs" in error.where
    server.statuses = [401]
    assert "OPENAI_API_KEY" in mistake(lambda: ask(concurrency=1), "scripted 401").fix
    server.statuses = [400]
    assert "change what it names" in mistake(lambda: ask(concurrency=1), "scripted 400").fix


@pytest.mark.parametrize(
    "reply",
    [{"choices": []}, {"detail": "Not Found"}, {"choices": [{"message": {"content": "", "reasoning": "0 and 0"}}]}],
    ids=str,
)
def test_replies_that_cannot_be_scored(ask, server, reply):
    server.reply = lambda request: reply
    assert mistake(ask).where in (server.api_base, "--api_base")


def test_images_travel_as_data_urls_where_they_belong(ask, server, make_data, make_row):
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(picture, "PNG")
    server.models = [{"id": "tiny", "owned_by": "vllm"}]
    server.reply = lambda request: {"choices": [{"message": {"content": "<answer>6</answer>"}}]}
    prompt = [{"role": "user", "content": "What is 3 + 3? See <image> here"}]
    data = make_data(rows=[make_row(0, prompt=prompt, images=[{"bytes": picture.getvalue()}])])
    assert len(ask(data=data, engine=Engine(processor=BOUNDS))[0].responses) == 4
    request = server.requests[0]
    before, image, after = request["messages"][0]["content"]
    assert (before["text"], after["text"]) == ("What is 3 + 3? See ", " here")
    kind, _, encoded = image["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(encoded) == picture.getvalue()
    assert request["mm_processor_kwargs"] == BOUNDS
    of_easyr1 = Engine(processor={"min_pixels": 784}, of_easyr1=True)
    ask(data=data, engine=of_easyr1)
    request = server.requests[-1]
    shown = request["messages"][0]["content"][1]["image_url"]["url"].partition(";base64,")[2]
    assert Image.open(io.BytesIO(base64.b64decode(shown))).size == (28, 28), "it is resized here, as EasyR1 does"
    assert "mm_processor_kwargs" not in request


TINY = str(ROOT / "recipes/tasks/gsm8k/tiny")
ADD = '''
def add(a: int, b: int) -> str:
    """Add.

    Args:
        a: one
        b: another
    """
    if a == 6:
        raise ValueError("six")
    return str(a + b)
'''
CALL = '<tool_call>{"name": "add", "arguments": {"a": %d, "b": 1}}</tool_call>'


@pytest.fixture
def with_tools(tmp_path):
    file = tmp_path / "adding.py"
    file.write_text(ADD)
    return Engine(prompt_tokens=100, tools=ToolSettings(str(file), "hermes", 2, seconds=2.0, characters=100))


class Tokens:
    """What vLLM's completions answer: a call of `add` with the question's number, then what was said and an answer."""

    def __init__(self):
        self.tokenizer = chat_tokenizer(TINY)
        self.shift = 0

    def __call__(self, request):
        prompt = request["prompt"]
        if isinstance(prompt, str):
            prompt = [token + self.shift for token in self.tokenizer.encode(prompt, add_special_tokens=False)]
        said = self.tokenizer.decode(prompt)
        number = said.partition("What is ")[2].split()
        text = CALL % int(number[0]) if number and "tool_call" not in said else "#### 7"
        tokens = self.tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        return {"choices": [{"text": "", "token_ids": tokens, "prompt_token_ids": prompt, "finish_reason": "stop"}]}


def test_conversations_with_tools_go_to_vllm_as_tokens(ask, server, with_tools, make_data, make_row):
    server.models = [{"id": "tiny", "owned_by": "vllm"}]
    server.reply = tokens = Tokens()
    asking = [[{"role": "user", "content": f"What is {i} + {i}? Call add."}] for i in (0, 6, 9)]
    asking[2][0]["content"] *= 20
    data = make_data(rows=[make_row(i, prompt=prompt) for i, prompt in zip((0, 6, 9), asking, strict=True)])
    groups = ask(data=data, engine=with_tools, tokenizer=TINY)
    assert [len(groups[row].responses) for row in groups] == [4, 4, 0], "a prompt too long for training is not asked"
    for row, said, failed in ((0, "1", False), (1, "Error: add raised ValueError: six", True)):
        for response in groups[row].responses:
            facts = response.conversation
            assert (response.text, response.truncated, facts["ended"]) == ("#### 7", False, "answer")
            assert facts["turns"][1] == {"role": "tool", "content": said, "failed": failed}
            assert (facts["model_turns"], facts["tool_calls"], facts["failed_calls"]) == (2, 1, failed)
    asked = [tokens.tokenizer.decode(each["prompt"]) for each in server.requests[1:]]
    first, second = (
        next(each for each, said in zip(server.requests[1:], asked, strict=True) if "What is 0" in said and has(said))
        for has in (lambda said: "tool_call" not in said, lambda said: "tool_call" in said)
    )
    assert {each["path"] for each in server.requests} == {"/v1/completions"}
    assert second["seed"] - first["seed"] in range(4, 12)  # of another turn, and maybe of another response
    assert second["max_tokens"] == 256 - len(second["prompt"]) + len(first["prompt"])
    turns = [{"role": "assistant", "content": CALL % 0}, {"role": "tool", "content": "1"}]
    rendered = tokens.tokenizer.apply_chat_template([*asking[0], *turns], tokenize=False, add_generation_prompt=True)
    assert tokens.tokenizer.decode(second["prompt"]) == rendered
    tokens.shift = 1
    error = mistake(lambda: ask(data=data, engine=with_tools, tokenizer=TINY), "has other tokens than")
    assert "--model_path" in error.fix
    server.reply = lambda request: {"choices": [{"text": "x"}]}
    assert "0.10.2" in mistake(lambda: ask(data=data, engine=with_tools, tokenizer=TINY)).fix
    assert "does not name add" in str(mistake(lambda: ask(engine=with_tools, tokenizer=TINY)))
    assert "model_path" in mistake(lambda: ask(data=data, engine=with_tools, tokenizer="/no/model")).where


def chat(request):
    """A server that is not vLLM: it finds the calls itself, and counts tokens as words."""
    messages = request["messages"]
    if messages[-1]["role"] == "tool":
        message = {"role": "assistant", "content": f"#### {messages[-1]['content']}"}
    else:
        number = messages[-1]["content"].split()[2]
        call = {"name": "add", "arguments": json.dumps({"a": int(number), "b": 1})}
        message = {"content": "", "tool_calls": [{"id": "one", "type": "function", "function": call}]}
    usage = {"prompt_tokens": sum(len(each["content"].split()) for each in messages), "completion_tokens": 2}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def test_conversations_with_tools_go_to_other_servers_as_messages(ask, server, with_tools):
    server.reply = chat
    response = ask(engine=with_tools)[0].responses[0]
    facts = response.conversation
    assert (response.text, facts["ended"], facts["tool_calls"]) == ("#### 1", "answer", 1)
    assert [turn["role"] for turn in facts["turns"]] == ["assistant", "tool", "assistant"]
    assert facts["turns"][0]["content"] == 'add({"a": 0, "b": 1})'
    assert response.tokens == 2 + 1  # of the last turn, and of what is between its prompt and the first
    first, second = server.requests[0], next(each for each in server.requests if len(each["messages"]) > 1)
    assert first["tools"][0]["function"]["name"] == "add"
    assert [each["role"] for each in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][2] == {"role": "tool", "tool_call_id": "one", "content": "1"}
    assert second["messages"][1]["tool_calls"][0]["function"]["name"] == "add"
    assert (first["max_tokens"], second["max_tokens"]) == (256, 254)


def test_conversations_end_at_the_limits_with_other_servers_too(ask, server, with_tools):
    server.reply = lambda request: chat(request | {"messages": request["messages"][:1]})
    facts = ask(engine=with_tools)[0].responses[0].conversation
    assert (facts["ended"], facts["model_turns"], facts["tool_calls"]) == ("turns", 2, 1)
    server.reply = lambda request: chat(request) | {"usage": {"prompt_tokens": 9, "completion_tokens": 256}}
    response = ask(engine=with_tools)[0].responses[0]
    assert (response.truncated, response.conversation["ended"]) == (True, "length")


USAGE = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@pytest.mark.parametrize(
    ("call", "answered"),
    [
        ({"id": None, "type": "function", "function": {"name": "add", "arguments": {"a": 0, "b": 1}}}, "1"),
        ({"id": "x", "signed": "by it", "function": {"name": "add", "arguments": '{"a": 0, "b": 1}'}}, "1"),
        ({"id": "x", "function": {"name": "add", "arguments": "{"}}, "Error: the arguments of add are no JSON"),
        ({"id": "x", "function": {"name": "sub", "arguments": "{}"}}, "Error: there is no tool sub; the tools are add"),
    ],
)
def test_calls_in_any_form_of_a_servers_are_answered(ask, server, with_tools, call, answered):
    def reply(request):
        said = request["messages"][-1]
        message = (
            {"content": [{"type": "text", "text": "#### 1"}]} if said["role"] == "tool" else {"tool_calls": [call]}
        )
        return {"choices": [{"message": message, "finish_reason": "stop"}]} | USAGE

    server.reply = reply
    response = ask(engine=with_tools)[0].responses[0]
    assert response.text == "#### 1"
    assert response.conversation["turns"][1]["content"].startswith(answered)
    asked, said = next(each["messages"][-2:] for each in server.requests if len(each["messages"]) > 1)
    assert said["tool_call_id"] == asked["tool_calls"][0]["id"]
    assert asked["tool_calls"][0].get("signed") == call.get("signed"), "what a server adds to a call comes back"
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) in ({}, {"a": 0, "b": 1})


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ({"message": {"content": CALL % 0}}, "leaves a call in the text"),
        ({"message": {"content": "", "function_call": {}}, "finish_reason": "function_call"}, "a form of its own"),
        ({"message": {"tool_calls": [{"id": "x", "type": "custom"}]}, "finish_reason": "tool_calls"}, "a form of its"),
        ({"message": None}, "is no completion"),
    ],
)
def test_what_other_servers_say_and_cannot_be_read_is_refused(ask, server, with_tools, choice, what):
    server.reply = lambda request: {"choices": [choice]} | USAGE
    mistake(lambda: ask(engine=with_tools), what)
    server.reply = lambda request: {"choices": [{"message": {"content": "1"}}]}
    mistake(lambda: ask(engine=with_tools), "does not count its tokens")


def test_what_other_servers_cannot_do_with_tools_is_refused(ask, server, with_tools):
    own = replace(with_tools.tools, file=str(ROOT / "examples/gsm8k/calculator.py"), format="gsm8k")
    refused = {"worker.rollout.tool_format": {"tools": own}, "data.override_chat_template": {"chat_template": "x"}}
    for key, changes in refused.items():
        changed = replace(with_tools, **changes)
        assert key in mistake(lambda engine=changed: ask(engine=engine)).where
    missing = replace(with_tools, tools=replace(own, file="/no/tools.py"))
    assert "worker.rollout.tools" in mistake(lambda: missing.generator(server=True), "/no/tools.py").where


def test_the_longest_prompt_is_part_of_the_key_where_tools_are(with_tools):
    keys = {replace(with_tools, prompt_tokens=tokens).generator(server=True) for tokens in (32, 64)}
    assert len(keys) == 2
