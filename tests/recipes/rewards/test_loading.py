"""Loading reward files by path, and the check that gold answers earn full marks."""

import pytest

from recipes.rewards.loading import load_reward
from recipes.tasks.countdown.problems import Problem, rows
from recipes.tasks.prepare import require_full_marks
from tests.mistakes import mistake

GOOD = Problem((3, 8, 1, 1), 24, "8 * 3 + 1 - 1")
WRONG = Problem((3, 8, 1, 1), 24, "8 * 3 + 1 + 1")


@pytest.mark.parametrize(
    ("text", "location"),
    [(None, "none.py"), ("1 / 0", "mine.py"), ("x = (", "mine.py"), ("x = 1", "mine.py:x"), ("x = 1", "mine.txt")],
)
def test_unusable_files_are_named(tmp_path, text, location):
    if text is not None:
        (tmp_path / location.partition(":")[0]).write_text(text)
    mistake(lambda: load_reward(tmp_path / location), location)


def test_gold_answers_pass_and_a_false_one_is_shown():
    score = load_reward("reward_functions/countdown.py").compute_score
    right, wrong = rows([GOOD, WRONG], "test", 2, "a list")
    require_full_marks(right, score)
    error = mistake(lambda: require_full_marks(wrong, score), "test row 1")
    assert "wrong_value" in str(error)
    assert "8 * 3 + 1 + 1" in str(error)


def test_a_file_that_changes_within_a_second_is_read_anew(tmp_path):
    path = tmp_path / "reward.py"
    for value in (1, 2, 3):  # of the same size
        path.write_text(f"VALUE = {value}\n")
        assert value == load_reward(path).VALUE
