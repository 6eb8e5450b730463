"""Answers of rewards, in every form: taken, or refused by file, row and response."""

import asyncio
import json
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from verl import DataProto
from verl.trainer.ppo import reward as verl_reward

from recipes.rewards.contract import Contract, RewardError, is_right
from recipes.rewards.function import Call, RewardFunction, load_function, with_turns
from recipes.rewards.verl import CheckedDapoRewardManager, CheckedRewardManager
from tests.mistakes import mistake


def answering(result):
    return lambda data_source, solution_str, ground_truth, extra_info=None: result


@pytest.mark.parametrize(
    ("result", "score", "accuracy"),
    [
        (-3.5, -3.5, None),
        (True, 1.0, None),
        (np.float32(0.25), 0.25, None),
        (torch.tensor([0.5], dtype=torch.bfloat16), 0.5, None),
        ({"score": 10, "acc": np.bool_(True)}, 10.0, 1.0),
        ({"score": -1, "accuracy": np.float32(0.25)}, -1.0, 0.25),
        ({"score": torch.tensor(2.0), "acc": 1, "accuracy": 1.0}, 2.0, 1.0),
        ({"score": 1.0, "acc": 0.2 + 0.4 + 0.3 + 0.1, "reward": 100.0}, 1.0, 1.0),  # verl averages `reward` itself
        ({"score": 1.0, "acc": 0.7 + 0.2 + 0.1}, 1.0, 1.0),
        ({"score": 1.0, "acc": 0.9, "accuracy": 0.9}, 1.0, 0.9),
    ],
)
def test_a_finite_score_is_taken_and_accuracy_is_what_is_stated(result, score, accuracy):
    answer = RewardFunction(answering(result)).score(Call("x", "it is 4", "4"))
    assert (answer.score, answer.accuracy) == (score, accuracy)
    assert answer.value == (score if accuracy is None else accuracy)
    stated = {} if accuracy is None else {"acc": accuracy, "accuracy": accuracy}
    assert answer.as_verl() == {"score": score, **stated}
    json.dumps(answer.as_verl())
    assert is_right(accuracy) is (None if accuracy is None else accuracy == 1.0)


@pytest.mark.parametrize(
    "result",
    [
        *(float("-inf"), 10**400, 1e39, None, "1.0", torch.tensor([1.0, 2.0]), {"overall": 1.0}),
        *({"score": np.float32("nan")}, {"score": 1.0, "acc": 1.0, "accuracy": 0.0}),
        *({"score": 1.0, "acc": None}, {"score": 10.0, "acc": 10.0}, {"score": 1.0, "accuracy": -0.5}),
        *({"score": 1.0, "seen": part} for part in ([1, 2], {"a": 1}, np.array([1.0, 2.0]))),
        *({"score": 1.0, "seen": part} for part in (float("inf"), np.float32("nan"), 10**400)),
    ],
)
def test_any_other_answer_names_file_row_and_response(result):
    with pytest.raises(RewardError) as caught:
        RewardFunction(answering(result)).score(Call("x", "it is 4" + 500 * "!", "4", row="test-17"))
    assert "test_contract.py:" in caught.value.where
    assert "test-17" in caught.value.where
    assert "it is 4" in caught.value.where
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


def test_every_answer_has_the_same_keys():
    contract = Contract(answering(None))
    contract.read({"score": 1.0, "bonus": 1.0}, "a")
    contract.read({"bonus": 0.0, "score": 1.0}, "b")
    contract.read({"bonus": None, "score": 1.0}, "verl leaves None out")
    # verl averages a part over a prompt's responses: a text among numbers ends its validation with a TypeError.
    for other in ({"score": 1.0}, {"score": 1.0, "bonus": 1.0, "late": 2.0}, 1.0, {"score": 1.0, "bonus": "late"}):
        with pytest.raises(RewardError):
            contract.read(other, "c")
    contract.one_kind = False  # on EasyR1, which takes numbers alone, and in a weighted sum
    contract.read({"score": 1.0, "bonus": "late"}, "d")


def test_a_reward_that_raises_names_its_line_row_and_response(tmp_path):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    value = 1\n"
    (tmp_path / "mine.py").write_text(source + "    return helped(value)\ndef helped(value):\n    return value / 0")
    with pytest.raises(RewardError) as caught:
        load_function(str(tmp_path / "mine.py")).score(Call("x", "it is 4", "4", row="test-17"))
    assert "ZeroDivisionError" in caught.value.what
    assert all(part in caught.value.where for part in ("mine.py:5", "test-17", "it is 4"))
    assert pickle.loads(pickle.dumps(caught.value)).where == caught.value.where, "Ray carries it between processes"


BATCH = "def compute_score(reward_inputs): return [{'overall': len(each['response']), 'accuracy': 0} for each in %s]"
ONE = "REWARD_TYPE = 'sequential'\ndef compute_score(reward_input): return {'overall': reward_input['response_length']}"
ASYNC = "async def compute_score(data_source, solution_str, ground_truth, extra_info): return float(len(solution_str))"
OBJECT = f"class Waits:\n    {ASYNC.replace('compute_score(', '__call__(self, ')}\ncompute_score = Waits()"
FORMS = [(BATCH % "reward_inputs", 0.0), (ONE, None), (ASYNC, None), (OBJECT, None)]


@pytest.mark.parametrize(("source", "accuracy"), FORMS)
@pytest.mark.parametrize("engine", ["verl", "easyr1"])
def test_every_form_is_called_as_its_engine_calls_it(tmp_path, source, accuracy, engine):
    (tmp_path / "mine.py").write_text(source)
    function = load_function(str(tmp_path / "mine.py"), engine=engine)
    answers = function.score_all([Call("x", text, "4") for text in ("four", "five!")])
    assert [(answer.score, answer.accuracy) for answer in answers] == [(4.0, accuracy), (5.0, accuracy)]
    if engine == "verl":
        assert judged(str(tmp_path / "mine.py"))["reward_score"] == len("it is 4")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("len(each['response'].split('=')[1])", "(row row-3, {path}:1, response 'no equals')"),
        ("1 / 0 if reward_inputs[1:] else {}[1]", "({path}:1, response 'a=1', or one of 2 more; rows row-1, row-3)"),
    ],
)
def test_a_batch_that_raises_names_the_response_that_raises_alone_or_all(tmp_path, value, named):
    path = tmp_path / "mine.py"
    path.write_text(f"def compute_score(reward_inputs): return [{{'overall': {value}}} for each in reward_inputs]")
    given = [("a=1", "row-1"), ("a=2", "row-1"), ("no equals", "row-3")]
    calls = [Call("x", text, "4", row=row) for text, row in given]
    with pytest.raises(RewardError) as caught:
        load_function(str(path), engine="easyr1").score_all(calls)
    assert named.format(path=path) in str(caught.value)


def test_what_no_engine_can_call_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("def compute_score(response, truth): return 1.0")
    assert "mine.py:1" in mistake(lambda: load_function(str(tmp_path / "mine.py"))).where
    for of_easyr1 in (BATCH % "reward_inputs", ONE):
        (tmp_path / "mine.py").write_text(of_easyr1.replace("def", "async def"))
        assert "mine.py:" in mistake(lambda: load_function(str(tmp_path / "mine.py"))).where
    (tmp_path / "mine.py").write_text(BATCH % "reward_inputs[1:]")
    with pytest.raises(RewardError):
        load_function(str(tmp_path / "mine.py")).score_all([Call("x", "a", "4"), Call("x", "b", "4")])


# TRL's form

CHAT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}, {"role": "user", "content": "5?"}]


def of_trl(function, prompt="2 + 2?", fields=None, **arguments):
    extra = {"asked": json.dumps(prompt), "solution": "", "id": "a", "fields": json.dumps(fields) if fields else ""}
    return RewardFunction(function, arguments).score(Call("mine", "4", "4", extra)).score


def test_trls_reward_gets_texts_or_messages_and_columns_and_answers_with_a_list_of_one():
    seen = []

    def reward(prompts, completions, **columns):
        seen.append((prompts, completions, columns["level"], columns["ground_truth"]))
        return [float(len(completions))]

    async def waits(completions, answer, bonus=0.0):
        return [None if answer[0] is None else bonus + float(completions[0] == answer[0])]

    assert of_trl(reward, fields={"level": 3}) == of_trl(reward, CHAT, fields={"level": [1]}) == 1.0
    messages = [[{"role": "assistant", "content": "4"}]]
    assert seen == [(["2 + 2?"], ["4"], [3], ["4"]), ([CHAT], messages, [[1]], ["4"])]
    assert of_trl(waits, fields={"answer": "4"}, bonus=0.5) == 1.5
    assert of_trl(waits, fields={"answer": None}) == 0.0, "not applicable"
    for answer in (1.0, [1.0, 2.0], ["right"], None):
        with pytest.raises(RewardError, match="the reward returned"):
            of_trl(lambda completions, answer=answer, **columns: answer)
    assert of_trl(lambda completions, solution, **_: np.array([float(solution[0] is None)], dtype=np.float32)) == 1.0
    with pytest.raises(RewardError, match="takes completion_ids, and no row has it: rows have .*level"):
        of_trl(lambda completions, completion_ids, **columns: [1.0], fields={"level": 3})
    with pytest.raises(RewardError):  # a row that the custom-task kit did not make
        RewardFunction(reward).score(Call("mine", "4", "4", {}))


# In verl


class Tokenizer:
    def decode(self, *_, **__):
        return "it is 4"


def judged(reward, manager=CheckedRewardManager, arguments=None, judge=None, **settings):
    """One response through verl's reward manager, as a reward worker asks it; it is 4 tokens of at most 4 long.

    `reward` is a user's file, or a function that stands for verl's own; `judge` has a reward model's arguments.
    """
    kwargs = {"path": reward, "arguments": arguments or {}}
    own = {"path": "pkg://recipes.rewards.verl", "name": "compute_score", "reward_kwargs": kwargs}
    own = {"path": None} if callable(reward) else own
    config = OmegaConf.create({"reward": {"custom_reward_function": own, **settings}})
    row = {"id": "test-17", "data_source": "x", "reward_model": {"ground_truth": "4"}, "extra_info": {}}
    data = DataProto.from_dict(
        tensors={"responses": torch.zeros(1, 4).long(), "attention_mask": torch.ones(1, 8).long()},
        non_tensors={name: np.array([value], dtype=object) for name, value in row.items()},
    )

    async def run():
        function = verl_reward.get_custom_reward_fn(config) or reward
        return await manager(config, Tokenizer(), function, **(judge or {})).run_single(data)

    return asyncio.run(run())


BUFFER = {"enable": True, "len": 2, "penalty_factor": 1.0, "log": False}
LONG = {"reward_kwargs": {"overlong_buffer_cfg": BUFFER, "max_resp_len": 4}}


async def waits(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0)
    return {"score": 2.0, "accuracy": 0.5}


class Judge:
    def __call__(self, data_source, solution_str, ground_truth, extra_info=None):
        raise ValueError("two\nlines")


@pytest.mark.parametrize("function", [Judge(), partial(Judge(), extra_info=None)])
def test_an_error_of_an_object_or_a_partial_has_its_line_and_is_one_line(function):
    with pytest.raises(RewardError) as caught:
        RewardFunction(function).score(Call("x", "it is 4", "4"))
    assert "test_contract.py:" in caught.value.where
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("manager", [CheckedRewardManager, CheckedDapoRewardManager])
def test_the_trial_and_an_evaluation_give_what_verls_managers_give(manager):
    seen = []

    def reward(data_source, solution_str, ground_truth, extra_info):
        seen.append(set(extra_info))
        return 1.0

    judged(reward, manager, **LONG)
    assert seen == [set(with_turns({}))]


def test_verls_manager_hands_on_what_was_checked():
    assert judged(answering(0.8)) == {"reward_score": 0.8, "reward_extra_info": {"score": 0.8}}
    assert judged(waits)["reward_extra_info"] == {"score": 2.0, "acc": 0.5, "accuracy": 0.5}
    for function in (answering(float("nan")), answering(None)):
        with pytest.raises(RewardError) as caught:
            judged(function)
        assert "test-17" in caught.value.where


def test_a_reward_gets_plain_arguments_and_a_reward_models(tmp_path):
    """verl's are OmegaConf's, which `json` does not write."""
    (tmp_path / "mine.py").write_text(
        "import json\nSEEN = []\n"
        "def compute_score(reward_router_address=None, weights=(), **given):\n"
        "    SEEN.append(reward_router_address)\n"
        "    return {'score': len(SEEN), 'seen': json.dumps([reward_router_address, weights])}"
    )
    judge = {"reward_router_address": "b:1", "reward_model_tokenizer": Tokenizer()}
    found = [judged(str(tmp_path / "mine.py"), arguments={"weights": [1, {"a": 2}]}, judge=judge) for _ in range(2)]
    assert [each["reward_score"] for each in found] == [1, 2], "the file is loaded once"
    assert found[0]["reward_extra_info"]["seen"] == '["b:1", [1, {"a": 2}]]'


def test_arguments_cost_no_response_anything(tmp_path, monkeypatch):
    """OmegaConf hashes a mapping by its whole text: 50,000 words cost each response 12 ms."""
    hashed = []
    monkeypatch.setattr(DictConfig, "__hash__", lambda mapping: hashed.append(mapping) or 0)
    (tmp_path / "mine.py").write_text("def compute_score(words, **given):\n    return float(len(words))")
    assert judged(str(tmp_path / "mine.py"), arguments={"words": ["a"] * 5})["reward_score"] == 5.0
    assert len(hashed) <= 1, "once in a process"


def test_dapos_penalty_is_of_the_score_and_never_of_the_accuracy():
    found = judged(answering({"score": 1.0, "acc": 1.0}), CheckedDapoRewardManager, **LONG)
    assert (found["reward_score"], found["reward_extra_info"]["acc"]) == (0.0, 1.0)
    found = judged(answering(1.0), CheckedDapoRewardManager, **LONG)
    assert (found["reward_score"], "acc" in found["reward_extra_info"]) == (0.0, False)
