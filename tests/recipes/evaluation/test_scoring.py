"""Strict and flexible accuracy stand side by side where the reward has the switch, and only there."""

import json

import pytest

from recipes.config import load
from recipes.config.rewards import WEIGHTED
from recipes.evaluation.questions import Question
from recipes.evaluation.scoring import FAILED, Reward, recipe_reward
from recipes.responses.measures import Response, question_figures
from recipes.rewards.function import with_turns


def judged(reward, gold, texts, **more):
    question = Question(0, [{"role": "user", "content": "?"}], gold, "gsm8k", id="test-17", **more)
    return reward.score(question, [Response(text, 3, False, None) for text in texts])


def test_a_reward_of_easyr1s_own_form_is_evaluated_as_it_is_trained(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def compute_score(reward_inputs, bonus=0):\n"
        "    right = [each['ground_truth'] in each['response'] for each in reward_inputs]\n"
        "    return [{'overall': 10.0 * one + bonus, 'accuracy': one, 'reason/wrong': 1.0 - one} for one in right]"
    )
    words = ["--reward_func", str(path), "engine=easyr1", "worker.reward.reward_function_kwargs={bonus: 2}"]
    reward = recipe_reward(load("custom", arguments=words, environ={}, hardware="cpu"))
    scores = [(each.score, each.accuracy, each.reason) for each in judged(reward, "4", ["it is 4", "it is 5"])]
    assert scores == [(12.0, 1.0, "right"), (2.0, 0.0, "wrong")]


def test_the_shipped_dispatch_is_evaluated_with_the_truth_that_easyr1_gives_it():
    """Its source is in the answer column alone, from which EasyR1 takes the truth."""
    reward = Reward("reward_functions/dispatch.py", engine="easyr1")
    answer = json.dumps({"data_source": "gsm8k", "ground_truth": "72"})
    scores = judged(reward, answer, ["#### 72", "#### 71"])
    assert [(score.accuracy, score.failure) for score in scores] == [(1.0, ""), (0.0, "")]
    assert scores[0].reason == "correct"


@pytest.mark.parametrize("engine", ["verl", "easyr1"])
def test_a_reward_gets_what_it_gets_in_training(tmp_path, engine):
    path = tmp_path / "mine.py"
    path.write_text(
        "import threading\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    got = (data_source, ground_truth, extra_info, threading.current_thread() is threading.main_thread())\n"
        "    return {'score': 1.0, 'got': repr(got)}\n"
        "def of_easyr1(reward_inputs):\n"
        "    return [{'overall': each['response_length'], 'got': each['ground_truth']} for each in reward_inputs]\n"
    )
    for gold in ("4", ["4", "four"], 4):
        (score,) = judged(Reward(str(path), engine=engine), gold, ["it is 4"], extra_info={"hint": 1})
        of_verl = ("gsm8k", gold, with_turns({"hint": 1}), False)
        assert score.parts["got"] == repr(of_verl if engine == "verl" else ("", gold, {}, True))
    (score,) = judged(Reward(f"{path}:of_easyr1", engine=engine), "4", ["it is 4"])
    assert (score.score, score.parts["got"]) == (7.0 if engine == "verl" else 3.0, "4")


@pytest.mark.parametrize("answer", ["float('nan')", "None", "{'score': 1.0, 'late': 1.0}", "1 / 0"])
def test_a_response_that_the_reward_cannot_judge_counts_as_failed_and_is_named(tmp_path, answer):
    path = tmp_path / "mine.py"
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    path.write_text(f"{head}    return {answer} if 'bad' in solution_str else {{'score': 8.0, 'acc': 1.0}}")
    good, bad, last = judged(Reward(str(path)), "4", ["good", "bad one", "fine"])
    assert (good.score, last.accuracy, good.failure, last.failure) == (8.0, 1.0, "", "")
    assert (bad.score, bad.accuracy, bad.right, bad.reason) == (0.0, 0.0, False, FAILED)
    assert all(part in bad.failure for part in ("mine.py:", "bad one", "test-17"))


def test_flexible_beside_strict():
    gsm8k, countdown = (Reward(f"reward_functions/{task}.py") for task in ("gsm8k", "countdown"))
    texts = ["so 72\n#### 72", "so it is 72", "so it is 71", "#### 71\nor 72"]
    scores = judged(gsm8k, "72", texts)
    assert [(score.accuracy, score.flexible) for score in scores] == [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    assert [score.score for score in scores] == [1.0, 0.0, 0.0, 0.1], "what training sees stays strict"
    figures = question_figures(scores)
    assert (figures["accuracy"], figures["flexible"]) == (0.25, 0.5)
    assert judged(countdown, '{"target": 3, "numbers": [3]}', ["<answer>3</answer>"])[0].flexible is None
    switched = Reward("reward_functions/gsm8k.py", {"flexible": True})
    assert judged(switched, "72", ["so it is 72"])[0].accuracy == 1.0


def test_several_rewards_are_figures_of_their_own(tmp_path, monkeypatch):
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return "
    (tmp_path / "right.py").write_text(head + "dict.fromkeys(('score', 'acc'), float(ground_truth in solution_str))")
    (tmp_path / "brief.py").write_text(f"async {head}1.0 / len(solution_str)")
    words = ["--reward_func", f"{tmp_path}/right.py", f"{tmp_path}/brief.py", "--reward_weights", "2", "1"]
    reward = recipe_reward(load("custom", arguments=words, environ={}, hardware="cpu"))
    scores = judged(reward, "4", ("it is 4", "24", "none", "7"))
    found = [(score.score, score.right) for score in scores]
    assert found == [(2 + 1 / 7, True), (2.5, True), (0.25, False), (1, False)]
    figures = question_figures(scores)
    assert (figures["reward/right"], figures["reward/brief"]) == (0.5, (1 / 7 + 0.5 + 0.25 + 1) / 4)
    changed = reward.sha256
    (tmp_path / "brief.py").write_text(f"{head}2.0")
    assert recipe_reward(load("custom", arguments=words, environ={}, hardware="cpu")).sha256 != changed


def test_what_a_reward_takes_from_its_folder_is_in_its_hash(tmp_path):
    """A report of other scores is another report: it lay in the same folder and replaced the first."""
    path, helper = tmp_path / "mine.py", tmp_path / "helper_of_mine_here.py"
    head = "def {}(data_source, solution_str, ground_truth, extra_info=None): return RIGHT"
    path.write_text("\n".join(["from helper_of_mine_here import RIGHT", *map(head.format, ("compute_score", "other"))]))
    helper.write_text("RIGHT = 1.0")
    (tmp_path / "test_of_mine.py").write_text("import mine")
    location = f"{path}:compute_score"
    first = Reward(location).sha256
    (tmp_path / "test_of_mine.py").write_text("import mine  # which no reward loads")
    assert Reward(str(path)).sha256 == first, "the same function, named or not"
    assert Reward(f"{path}:other").sha256 != first
    helper.write_text("RIGHT = 0.5")
    assert Reward(location).sha256 != first
    both = {"rewards": [location, f"{path}:other"], "weights": [1.0, 1.0]}
    summed = Reward(str(WEIGHTED), both).sha256
    helper.write_text("RIGHT = 1.0")
    assert Reward(str(WEIGHTED), both).sha256 != summed


def test_a_failed_response_counts_as_wrong_in_both_accuracies(tmp_path):
    path = tmp_path / "mine.py"
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, flexible=False):\n"
    path.write_text(f"{head}    return {{'score': 1 / ('bad' not in solution_str), 'acc': float(flexible)}}")
    scores = judged(Reward(str(path)), "4", ["good", "bad"])
    assert [(score.accuracy, score.flexible) for score in scores] == [(0.0, 1.0), (0.0, 0.0)]
