"""Promises of every reward file: one signature, one key set, closed reasons, no side effects, linear time."""

import ast
import math
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.paths import ROOT
from recipes.rewards.loading import load_reward

FILES = sorted((ROOT / "reward_functions").glob("*.py"))
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__", "__builtins__", "open", "input", "print", "globals"}
NOT_72 = ["", "#### 71", "#### 72²", "\\boxed{72 or 73}", "<think>#### 72", "\\boxed{seven}"]
NOT_72 += ["no number", "it may be 71"]
# Per file (one that is not here has a SAMPLE in its own test): a ground truth, a response with full marks, and others
# that go wrong in different ways.
SAMPLES = {
    "countdown": (
        '{"target": 24, "numbers": [3, 8]}',
        "<think>3 times 8</think>\n<answer>3 * 8</answer>",
        ["", "24", "<think>", "<answer>3 + 8</answer>", "<think>a</think><answer>3 *</answer>", "<answer>8/0</answer>"],
    ),
    "gsm8k": ("72", "12 * 6 = 72\n#### 72", NOT_72),
    "dispatch": ('{"data_source": "gsm8k", "ground_truth": "72"}', "12 * 6 = 72\n#### 72", NOT_72),
    "number_game": (
        "2",
        "The light is green. Answer: 2",
        ["", "0", "12", "0 1 2", "<think>2", "Answer: 1", "right", "<think>Answer: 2</think>"],
    ),
}
BROKEN_GOLD = ["", "{", "[]", "null", "NaN", '"', "[" * 100_000, "9" * 100_000, "x", "true", "{}", "\ud800"]


# A worker process has neither this package nor, in the worst case, any other; and loads the file under any name.
BARE = """
import importlib.util
for name in ("custom_module", "other"):
    spec = importlib.util.spec_from_file_location(name, {path!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.compute_score("any", {response!r}, {truth!r})["score"] == 1.0
"""


@pytest.fixture(params=FILES, ids=lambda path: path.stem, scope="module")
def path(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def reward(path):
    return load_reward(path)


@pytest.fixture(scope="module")
def sample(path):
    if path.stem in SAMPLES:
        return SAMPLES[path.stem]
    own = Path(__file__).with_name(f"test_{path.stem}.py")
    assert own.is_file(), f"{path.name} has no test; tests/reward_functions/{own.name} with a SAMPLE is enough"
    return load_reward(own).SAMPLE


def assert_result(reward, result: dict, keys: set[str] | None = None) -> None:
    parts = dict(result)
    reason = parts.pop("reason")
    assert reason in reward.REASONS
    assert {"score", "acc", "accuracy", "format"} <= set(parts)
    assert keys is None or set(result) == keys, "verl stacks the keys of all responses"
    for key, value in parts.items():
        if key == "pred":
            assert type(value) is str
            assert len(value) <= 100
        else:
            assert type(value) is float
            assert math.isfinite(value)
            assert 0.0 <= value <= 1.0
    assert (result["accuracy"] == 1.0) == (reason == "correct")
    assert result["acc"] == result["accuracy"]


def test_the_source_is_harmless(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & FORBIDDEN_NAMES
    caught = [ast.unparse(node.type or node) for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    assert "Exception" not in " ".join(caught), "it hides bugs"


def test_loads_without_any_package(path, sample):
    code = BARE.format(path=str(path), response=sample[1], truth=sample[0])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def with_truth(sample, truth: object) -> object:
    """Another truth in the same place as the sample's: bare, or in its envelope."""
    return {"data_source": "gsm8k", "ground_truth": truth} if sample[0].startswith('{"data_source"') else truth


def test_full_marks_and_one_key_set(reward, sample):
    gold, right, wrongs = sample
    extra = {"num_turns": None}
    full = reward.compute_score(data_source="any", solution_str=right, ground_truth=gold, extra_info=extra)
    assert_result(reward, full)
    assert (full["score"], full["reason"]) == (1.0, "correct")
    keys = set(full)
    for response in wrongs:
        if sample in SAMPLES.values():  # a task of one's own may give other credits
            assert reward.compute_score("any", response, gold, format_credit=0.0, numbers_credit=0.0)["score"] == 0.0
        result = reward.compute_score("other source", response, gold, {"index": 3}, reward_router_address="unused")
        assert_result(reward, result, keys)
        assert result["score"] < 0.5
    for broken in [*BROKEN_GOLD, None, 1.5, [], {}, True, b"72"]:
        result = reward.compute_score("any", right, with_truth(sample, broken))
        assert_result(reward, result, keys)
        assert (result["score"], result["reason"]) == (0.0, "gold_unparsable"), broken


def test_batch_has_only_numbers_that_easyr1_can_average(reward, sample):
    gold, right, wrongs = sample
    inputs = [{"response": text, "response_length": 7, "ground_truth": gold} for text in (right, *wrongs)]
    results = reward.compute_score_batch(inputs)
    singles = [reward.compute_score("any", each["response"], gold) for each in inputs]
    assert len(results) == len(inputs)
    assert len({frozenset(result) for result in results}) == 1
    for result, single in zip(results, singles, strict=True):
        assert all(type(value) is float for value in result.values())
        assert result["overall"] == single["score"]
        assert result["accuracy"] == single["accuracy"]
        assert [code for code in reward.REASONS if result[f"reason/{code}"]] == [single["reason"]]
    assert reward.compute_score_batch([]) == []


PIECES = (
    "((1)", "-", "+", "1", "9", "0", "1,", "1,111", "1/", ".", "1.", "=", "1=", "(", ")", "[", "{", "\\", "$", "½",
    "<think>", "</think>", "<answer>", "</answer>", "<answer></answer>", "<answer>1", "<", "<a", "\\frac{", "\\frac",
    "####", "#", "\\boxed{", "\\boxed", "}", "\\boxed{1}", "answer:", "é", "\u2212", "1e", "x", "^", "*", "**", "//",
    "1'111", "1.111,", "11,", "１", "²", "1½", "\\text{", "<<", "不", "1 ", "#### ", "#### 1", "#### 1\n", "answer is ",
    " ", "\n", "\t", "\u0000", "1 1/", "% ", "\ud800", "not ", "or ", "no, ", "1 111 ", "half of ", "negative ", "a",
    "a ", "个", "答案", "答案 ", "故选项", "e\u0300\u0316", "\\frac{1}{", "\\sqrt[", "^{", "x_(1", "\\text{1a", "(A",
)  # fmt: skip
SIZE = 50_000  # characters; quadratic work on that would take seconds


TRUTHS = [("qa", ["a b", "中国"]), ("classification", {"label": "yes", "labels": ["no"]})]
TRUTHS += [("math_reasoning", truth) for truth in ("x + 1", "5", "B")]


@pytest.mark.parametrize("wrap", ["{}", "<answer>{}</answer>", "#### {}", "\\boxed{{{}}}", "answer: {}", "#### 5 {}9"])
def test_linear_time_on_adversarial_input(reward, sample, wrap, cpu_seconds):
    """Of `dispatch` the sources that read text, each of them."""
    truths = [sample[0]]
    if hasattr(reward, "envelope"):
        truths += [reward.envelope(*each) for each in TRUTHS]
    for piece, size in product(PIECES, (1900, SIZE)):  # a statement of more than 2,000 characters is not read
        text = wrap.format(piece * (size // len(piece)))
        for truth in truths:
            assert_result(reward, reward.compute_score("any", text, truth))
            assert cpu_seconds(partial(reward.compute_score, "any", text, truth), enough=0.2) < 0.2, (piece, truth)


MARKUP = st.sampled_from([*PIECES, "3", "8", "24", "72", "3*8", "0", "2", "and", "Answer: ", "<|im_end|>"])


@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(max_size=60), st.lists(MARKUP, max_size=25).map("".join)), broken=st.text(max_size=20))
def test_never_raises_and_stays_in_range(reward, sample, text, broken):
    keys = set(reward.compute_score("any", "", sample[0]))
    assert_result(reward, reward.compute_score("any", text, sample[0]), keys)
    assert_result(reward, reward.compute_score("any", text, with_truth(sample, broken)), keys)
