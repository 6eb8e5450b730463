"""Several rewards with weights: typed in any way they are the same call, and what does not fit is refused."""

import pytest

from recipes.config import check, load
from recipes.config.rewards import WEIGHTED, reward_call, shown_reward
from recipes.config.variables import read_arguments
from tests.mistakes import mistake


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "with blank").mkdir()
    for name in ("a.py", "b.py", "with blank/a.py"):
        (tmp_path / name).write_text("def compute_score(**_): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def custom(*words, **environ):
    return load("custom", arguments=words, environ=environ, hardware="cpu")


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (("--reward_func", "a.py", "b.py:mine", "--reward_weights", "1", "0.2"), {}),
        (("--reward_func", "a.py", "b.py:mine", "trainer.max_steps=3", "--reward_weights=1,0.2"), {}),
        ((), {"REWARD_FUNCTION": "a.py,b.py:mine", "REWARD_WEIGHTS": "1,0.2"}),
        (("worker.reward.reward_function=[a.py,'b.py:mine']", "worker.reward.reward_weights=[1,0.2]"), {}),
    ],
)
def test_every_way_to_type_several_rewards_is_one_call(folder, words, environ):
    recipe = custom(*words, **environ)
    check(recipe)
    rewards = [f"{folder}/a.py", f"{folder}/b.py:mine"]
    assert reward_call(recipe) == (str(WEIGHTED), {"rewards": rewards, "weights": [1.0, 0.2]})
    assert shown_reward(recipe) == "1 x a.py + 0.2 x b.py:mine"


def test_one_reward_stays_as_it_is_and_a_blank_in_its_path_parts_nothing(folder):
    for text in ("with blank/a.py", "a.py:mine"):
        for recipe in (custom("--reward_func", text), custom(REWARD_FUNCTION=text)):
            assert reward_call(recipe) == (f"{folder}/{text}", {})
    words = ("--reward_func", "with blank/a.py", "b.py", "--epochs", "3")
    assert [argument.words for argument in read_arguments(words)] == [words[:3], words[3:]]
    assert reward_call(custom(*words))[1]["rewards"] == [f"{folder}/with blank/a.py", f"{folder}/b.py"]
    assert reward_call(custom(*words))[1]["weights"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("rewards", "weights", "named"),
    [
        *(("a.py b.py", weights, "--reward_weights") for weights in ("1", "1 -0.5", "1 nan", "0 0")),
        *((two, "1 1", "--reward_func") for two in ("a.py ./a.py", "a.py:mine b.py:mine", "a.py:b b.py")),
    ],
)
def test_weights_that_do_not_fit_and_two_rewards_of_one_name_are_refused(folder, rewards, weights, named):
    error = mistake(lambda: check(custom("--reward_func", *rewards.split(), "--reward_weights", *weights.split())))
    assert named in error.where


@pytest.mark.parametrize("value", ["null", "[]"])
def test_easyr1_has_no_reward_of_its_own_and_verl_may_have_one(folder, value):
    word = f"worker.reward.reward_function={value}"
    check(custom(word))
    error = mistake(lambda: check(custom(word, ENGINE="easyr1")), "EasyR1 has no reward of its own")
    assert word in error.where
