"""Tools: calls within limits, and conversations with the template's own tokens."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from statistics import fmean

import pytest

from recipes.config import load
from recipes.data.lengths import chat_tokenizer
from recipes.engines.verl.tools import ToolAnswer, Tools, ToolSettings, load_tools
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import tools as preflight
from recipes.rewards.function import RewardFunction
from recipes.rewards.verl import answered

TOOLS = '''
import functools, sys, time

class Later:
    def __await__(self):
        yield from slowly().__await__()
        return "awaited"

@functools.cache
def add(a: int, b: int = 1) -> str:
    """Add.

    Args:
        a: one
        b: another
    """
    return str(a + b)

def misbehave(how: str) -> str:
    """Do not answer.

    Args:
        how: what to do
    """
    if how == "hang":
        time.sleep(1000)
    if how == "exit":
        sys.exit(3)
    if how == "long":
        return "x" * 5000
    if how == "none":
        return None
    if how == "later":
        return Later()
    if how == "half":
        return chr(0xD83D)
    if how == "late":
        time.sleep(2.1)
    raise ValueError("y" * 5000)

async def slowly() -> str:
    """Sleep as an async tool must not."""
    time.sleep(0.5)
    return "done"

def _helper(x): ...
'''


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    file = tmp_path_factory.mktemp("tools") / "mine.py"
    file.write_text(TOOLS)
    return Tools(load_tools(str(file)), ToolSettings(str(file), "hermes", 3, seconds=2.0, characters=100))


def test_every_failure_is_an_answer_in_words_within_the_limits(tools):
    cases = [
        ("add", '{"a": 2, "b": 3}', "5", False),
        ("add", '{"a": 2}', "3", False),
        ("add", '{"a": "two"}', "Error: the arguments do not fit add: a:", True),
        ("add", '{"c": 2}', "Error: the arguments do not fit add:", True),
        ("add", "[1]", "Error: the arguments of add are [1]", True),
        ("add", "{", "Error: the arguments of add are no JSON", True),
        ("add", "[" * 100_000, "Error: the arguments of add are no JSON", True),
        ("_helper", "{}", "Error: there is no tool _helper; the tools are add, misbehave, slowly", True),
        ("", "it is no JSON", "Error: this call cannot be read: it is no JSON", True),
        ("slowly", "{}", "done", False),
        ("misbehave", '{"how": "exit"}', "Error: misbehave raised SystemExit: 3", True),
        ("misbehave", '{"how": "later"}', "awaited", False),
        ("misbehave", '{"how": "none"}', "Error: misbehave returned NoneType, not a text", True),
        ("misbehave", '{"how": "long"}', "x" * 91 + "... (cut)", False),
        ("misbehave", '{"how": "half"}', "?", False),
        ("misbehave", '{"how": "late"}', "Error: misbehave gave no answer within 2 s", True),
        ("misbehave", '{"how": "raise"}', "Error: misbehave raised ValueError: yyy", True),
        *[("misbehave", '{"how": "hang"}', "Error: misbehave gave no answer within 2 s", True)] * 30,
    ]
    begin = time.monotonic()
    answers = [future.result() for future in [tools.call(name, arguments) for name, arguments, *_ in cases]]
    assert time.monotonic() - begin < 20  # the thirty that hang ran beside one another
    for (*_, text, failed), answer in zip(cases, answers, strict=True):
        assert answer.text.startswith(text)
        assert len(answer.text) <= 100
        assert answer.failed == failed
    time.sleep(0.5)
    tools.call("add", '{"a": 2}').result()
    assert len(tools._late) == 30  # the one that was late has ended


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def f(x): return x", "the function f can be no tool"),
        (
            "import functools\ndef _f(x: int): ...\nf = functools.partial(_f, x=1)",
            "f is no function, but functools.part",
        ),
        ("class F:\n    def __call__(self): ...\nf = F()", "f is no function, but <reward_bad_.*F object"),
        ("def f() -> str: 'F.'\n__all__ = ['f', 'g']", "g is no function, but None"),
        ("x = 1", "no public function"),
        ("1 / 0", "fails at import: ZeroDivisionError"),
        ("import sys; sys.exit(2)", "fails at import: SystemExit"),
        ('def f(x: int, /):\n    "F.\\n\\nArgs:\\n    x: x"', "arguments by name, and x takes none"),
        (
            'from typing import Any\ndef f(x: int, y: Any):\n    "F.\\n\\nArgs:\\n    x: x\\n    y: y"',
            "its parameter y has a",
        ),
        ("def f() -> int:\n    'F.'", "a model reads a text, and it returns int"),
        ("from __future__ import annotations\ndef f() -> list[str]:\n    'F.'", "it returns list.str"),
        ('import io\ndef f(x: io.BytesIO):\n    "F.\\n\\nArgs:\\n    x: x"', "f can be no tool: Unable to generate"),
    ],
)
def test_a_file_that_has_no_tools_is_refused(tmp_path, text, what):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(RecipeError, match=what):
        load_tools(str(tmp_path / "bad.py"))


def test_what_may_be_left_out_has_its_type(tmp_path):
    text = "import enum, datetime\nclass C(enum.Enum):\n    one = 'x'\n"
    text += "def f(c: C | None = None, d: datetime.date | None = None):"
    (tmp_path / "mine.py").write_text(f'{text}\n    """F.\n\n    Args:\n        c: one\n        d: day\n    """')
    (tool,) = load_tools(str(tmp_path / "mine.py"))
    shown = tool.tool_schema.function.parameters.properties
    assert (shown["c"].type, shown["c"].enum, shown["d"].type) == ("string", ["x"], "string")


@pytest.mark.parametrize("text", ["__all__ = ['f']\ndef g(x): ...", "def _f(): 'Now.'\nf, g = _f, f", "import marked"])
def test_which_functions_of_a_file_are_tools(tmp_path, monkeypatch, text):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, mark in {"beside": "", "marked": "from verl.tools.function_tool import *\n@function_tool\n"}.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(f"{mark}def f() -> str: 'F.'")
    (tmp_path / "mine.py").write_text(f"from beside import f\n{text}", encoding="utf-8-sig")  # as on Windows
    for _ in ("base", "trained"):
        assert [tool.name for tool in load_tools(str(tmp_path / "mine.py"))] == ["f"]


@pytest.mark.parametrize(("text", "what"), [(">>>add(2)", "lacks blank"), (">>> add({2})", "not JSON"), ("", "")])
def test_a_docstrings_examples_are_read(text, what):
    def plus(a, b=1): ...

    plus.__doc__ = text or ">>> import json\n>>> r = add(2)\n>>> print(plus(3, b=(4,)))"
    with pytest.raises(RecipeError, match=what) if what else nullcontext():
        assert preflight.documented("add", plus) == [("add", {"a": 2}), ("add", {"a": 3, "b": [4]})]


CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
QUESTION = [{"role": "user", "content": "Tom has 2 apples."}]


def converse(tools, said, *, model_type="llama", length=300):
    """A conversation in which the model says these turns; its rules, too."""
    from recipes.engines.verl.conversation import Conversation, Rules

    tokenizer = chat_tokenizer(str(ROOT / "recipes/tasks/gsm8k/tiny"))
    rules = Rules(tokenizer, tools, 64, length, model_type=model_type)
    conversation = Conversation(rules, QUESTION)
    for text in said:
        assert not conversation.ended
        tokens = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)[: conversation.room]
        calls = asyncio.run(conversation.hear(tokens, [-1.0] * len(tokens)))
        if calls:
            conversation.answer([tools.call(call.name, call.arguments).result() for call in calls])
    return conversation, tokenizer


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_conversation_has_the_tokens_of_the_template(tools, model_type):
    said = [f"first {CALL}{CALL}", "#### 3"]
    conversation, tokenizer = converse(tools, said, model_type=model_type)
    turns = [{"role": "assistant", "content": said[0]}, *[{"role": "tool", "content": "3"}] * 2]
    whole = tokenizer.apply_chat_template(
        [*QUESTION, *turns, {"role": "assistant", "content": said[1]}], tokenize=False
    )
    assert tokenizer.decode(conversation.prompt + conversation.response) == whole.removesuffix("\n")
    assert conversation.tokens == tokenizer.encode(whole.removesuffix("\n"), add_special_tokens=False)
    written = [token for token, own in zip(conversation.response, conversation.mask, strict=True) if own]
    assert tokenizer.decode(written) == "".join(f"{turn}<|im_end|>" for turn in said)
    assert [value == 0 for value in conversation.log_probs] == [own == 0 for own in conversation.mask]
    facts = conversation.facts
    assert (facts["tool_calls"], facts["failed_calls"], facts["ended"], facts["model_turns"]) == (2, 0, "answer", 2)
    assert [turn["role"] for turn in facts["turns"]] == ["assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize(
    ("said", "length", "ended", "calls", "failed", "last"),
    [
        (["#### 24"], 300, "answer", 0, 0, "#### 24"),
        (['<tool_call>{"name": "add", }</tool_call>', "4"], 300, "answer", 1, 1, "4"),
        (['<tool_call>{"name": "add"', "4"], 300, "answer", 1, 1, "4"),
        ([CALL, CALL, f"so {CALL.replace('2', '#### 24')}"], 300, "turns", 2, 0, "so "),
        (["#### 24 " * 100], 60, "length", 0, 0, None),
        ([CALL], 55, "length", 1, 0, ""),  # the answer does not fit
        ([f"<tool_call>{'[' * 1200}</tool_call>", "4"], 2000, "answer", 1, 1, "4"),
    ],
)
def test_why_a_conversation_ends(tools, said, length, ended, calls, failed, last):
    conversation, _ = converse(tools, said, length=length)
    assert (conversation.ended, conversation.calls, conversation.failed_calls) == (ended, calls, failed)
    assert last is None or conversation.last_text == last
    assert len(conversation.response) == len(conversation.mask) <= length
    assert conversation.mask[-1] == 1


def test_the_reward_sees_the_last_turn_and_the_conversation():
    def reward(data_source, solution_str, ground_truth, extra_info):
        assert extra_info["tool_calls"] == 1
        assert json.dumps(extra_info["turns"]) == "[]"
        return float(solution_str == "4")

    facts = {"turns": [], "tool_calls": 1, "last_text": "4"}
    given = {"data_source": "x", "solution_str": "tool #### 24", "ground_truth": "4"}
    judged = answered(RewardFunction(reward), **given, extra_info={"conversation": facts})
    assert asyncio.run(judged)["score"] == 1.0


CHATML = "{% for each in messages %}{{ '<|im_start|>' + each.role + '\n' + each.content + '<|im_end|>\n' }}{% endfor %}"
BEGIN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "system", "what"),
    [
        (CHATML + BEGIN, "add, misbehave and slowly are tools", ""),
        (CHATML + BEGIN, "", "does not show the tools, and the prompt does not name add, misbehave, slowly"),
        (CHATML.replace("each in messages", "each in messages if each.role != 'tool'") + BEGIN, "", "drops a tool's"),
        (CHATML.replace("%}", "%}{% if each.role == 'tool' %}{{ 1 / 0 }}{% endif %}", 1) + BEGIN, "", "tools: Zero"),
        (CHATML.replace("'<|im_end|>\n'", "'<|im_end|>\n\n'") + BEGIN, "", "differs from the chat template"),
    ],
)
def test_a_template_that_does_not_do_is_found_before_the_start(tools, template, system, what):
    from recipes.engines.verl.conversation import Rules

    tokenizer = chat_tokenizer(str(ROOT / "recipes/tasks/gsm8k/tiny"), template)
    rules = Rules(tokenizer, tools, 64, 300, model_type="llama")
    prompt = [{"role": "system", "content": system}, *QUESTION]
    checks = [partial(preflight._check_conversation, prompt, ("add", {"a": 2}), rules, set(), "here")]
    if system or "name" in what:
        checks.append(partial(rules.check_shown, prompt, "here"))
    with pytest.raises(RecipeError, match=what) if what else nullcontext(), preflight.refusals("here"):
        for check in checks:
            check()


def test_answers_are_one_message_where_the_template_takes_no_more(tools):
    from recipes.engines.verl.conversation import Conversation, Rules

    alone = "{% if loop.previtem and loop.previtem.role == each.role %}{{ raise_exception('one answer') }}{% endif %}"
    tokenizer = chat_tokenizer(str(ROOT / "recipes/tasks/gsm8k/tiny"), CHATML.replace("%}", f"%}}{alone}", 1) + BEGIN)
    conversation = Conversation(Rules(tokenizer, tools, 64, 300, model_type="llama"), QUESTION)
    asyncio.run(conversation.hear(tokenizer.encode(f"{CALL}{CALL}<|im_end|>"), None))
    conversation.answer([ToolAnswer("3", False), ToolAnswer("4", True)])
    assert tokenizer.decode(conversation.response).endswith("tool\n3\n4<|im_end|>\n<|im_start|>assistant\n")
    assert (conversation.calls, conversation.failed_calls, len(conversation.turns)) == (2, 1, 3)


@pytest.mark.parametrize(
    ("text", "calls", "what"),
    [
        ("", [{"name": "add", "arguments": '{"a": 2}'}], ""),
        (CALL[:-3], None, "</tool_call> is missing"),
        ("", [{"function": {"arguments": {}}}], "cannot be read"),
    ],
)
def test_the_calls_of_worked_answers_are_read(tools, text, calls, what):
    turns = [{"role": "assistant", "content": text, "tool_calls": calls}]
    rows = [{"extra_info": {"solution": turns, "file": "a.jsonl", "line": 7}}]
    with pytest.raises(RecipeError, match=what) if what else nullcontext():
        assert preflight._calls_of_data(rows, converse(tools, [])[0].rules) == [
            ("line 7 of a.jsonl", ("add", {"a": 2}))
        ]


ASKS = '''
import json, re
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser

def check(number: str) -> str:
    """Say whether a number is even.

    Args:
        number: it

    Returns:
        The answer.

    >>> check("8")
    """
    return str(int(number) % 2 == 0)

@ToolParser.register("asks")
class Asks(ToolParser):
    async def extract_tool_calls(self, responses_ids, tools=None):
        text = self.tokenizer.decode(responses_ids)
        calls = re.findall("#### (.+?)<", text)
        return "", [FunctionCall(name="check", arguments=json.dumps({"number": number})) for number in calls]

    @staticmethod
    def write(name, arguments):
        return "#### " + arguments["number"]
'''
"""Whatever the tiny model answers is a call, so that it calls without a warm start."""


@pytest.mark.trainer(seconds=60)
def test_the_trainer_and_the_evaluation_hold_the_same_conversations(tmp_path):
    (tmp_path / "asks.py").write_text(ASKS)
    of_tools = {"TOOLS": str(tmp_path / "asks.py"), "TOOL_FORMAT": "asks", "MAX_TURNS": "3"}
    run = {"HARDWARE": "cpu", "MAX_STEPS": "1", "ARTIFACTS_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environ = {**os.environ, **run, **of_tools, "MAX_RESPONSE_LENGTH": "160"}
    keys = ["data.max_prompt_length=64", "data.val_max_samples=32", "data.shuffle=false"]  # shuffled, verl draws them
    evaluate = ["scripts/eval.py", "--run", str(tmp_path / "runs" / "gsm8k"), "--rollout_n", "2", "--limit", "32"]
    for words in (["-m", "recipes.launch", "gsm8k", *keys], evaluate):
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for name, step in (("base", 0), ("trained", 1)):
        dump = tmp_path / "runs" / "gsm8k" / "validation" / f"{step}.jsonl"
        trainers = sorted(json.dumps(line["turns"]) for line in map(json.loads, dump.open()))
        (file,) = tmp_path.glob(f"evaluations/*/*/completions/{name}_greedy.jsonl")
        evaluated = [json.loads(line) for line in file.open()]
        assert sorted(json.dumps(line["turns"]) for line in evaluated) == trainers
        assert fmean(line["tool_calls"] for line in evaluated) > 1


def test_a_call_of_a_row_that_fails_names_the_row(tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text('def add(a: int) -> str:\n    "Add.\\n\\nArgs:\\n    a: a"\n    return 1 / a')
    arguments = [f"worker.rollout.tools={tmp_path / 'sums.py'}"]
    recipe = load("gsm8k", arguments=arguments, environ={}, hardware="cpu")
    monkeypatch.setattr(preflight, "render", lambda *_: [("line 7 of a.jsonl", ("add", {"a": 0}))])
    with pytest.raises(RecipeError, match="the call of add in the solution of line 7 of a.jsonl") as raised:
        preflight.try_tools(recipe)
    assert raised.value.fix == "mend the tool, or the solution of line 7 of a.jsonl"
