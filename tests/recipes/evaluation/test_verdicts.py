"""Two models on the same questions: what is paired, and what decides; the probe's verdicts around each threshold."""

import pytest

from recipes.evaluation import verdicts
from recipes.evaluation.verdicts import LEAST_CHANGED, probe
from recipes.responses.measures import Measures, ScoredResponse, Summary
from recipes.statistics import Interval, mcnemar


def collected(groups, accuracy, clusters):
    """A pass with these scores, of which each is the accuracy too where `accuracy` says so."""
    passed = Measures()
    for values, question in zip(groups, clusters or range(len(groups)), strict=True):
        passed.add([ScoredResponse(value, value if accuracy else None) for value in values], question)
    return passed


def compare(greedy, sampled=((3,), (3,)), *, accuracy=True, clusters=None):
    """Compare base and trained.

    Args:
        greedy: the score of each greedy answer, of both models.
        sampled: how many of 8 sampled answers are right, of both; one number stands for every question.
    """
    passes = {}
    for label, scores, rights in zip(("base", "trained"), greedy, sampled, strict=True):
        rights = rights if len(rights) > 1 else rights * len(scores)
        groups = [[1.0] * right + [0.0] * (8 - right) for right in rights]
        passes[f"{label}_greedy"] = collected([[score] for score in scores], accuracy, clusters)
        passes[f"{label}_sampled"] = collected(groups, accuracy, clusters)
    return verdicts.compare(passes, [10 * (row + 1) for row in range(len(greedy[0]))])


def test_won_and_lost_name_rows():
    compared = compare(([0, 1, 1, 0, 0], [1, 1, 0, 0, 1]))
    assert (compared.won, compared.lost) == ([10, 50], [30])
    assert (compared.primary.test, compared.primary.p_value) == ("McNemar", mcnemar(2, 1))


@pytest.mark.parametrize(
    ("won", "lost", "level"), [(12, 2, "good"), (2, 12, "bad"), (0, 0, "weak"), (LEAST_CHANGED - 1, 0, "weak")]
)
def test_the_primary_test_decides_the_headline(won, lost, level):
    same = [1] * 20
    compared = compare(([0] * won + [1] * lost + same, [1] * won + [0] * lost + same))
    assert compared.headline.level == level
    assert compared.primary.difference.excludes_zero == (level != "weak"), "interval and test agree"


def test_further_tests_name_the_changes_that_hold():
    same = [0] * 40, [0] * 40
    assert "pass@8 +50.0 points" in compare(same, ((0, 4) * 20, (4,))).headline.text
    assert "pass@" not in compare(same).headline.text.partition("Further")[2]


def test_without_an_accuracy_scores_decide():
    """10 for right and 2 for form: the share of scores of at least 1 was 1.000 for both models."""
    compared = compare(([2.0, 2.0, 10.0, 2.0] * 10, [10.0, 2.0, 10.0, 2.0] * 10), ((2,), (4,)), accuracy=False)
    assert (compared.measure, compared.primary.difference.value) == ("mean_score", 2.0)
    assert (len(compared.won), compared.lost, list(compared.p_values)) == (10, [], ["mean_score"])
    assert compared.headline.level == "good"


def test_accuracies_between_0_and_1_decide():
    """Each rose from 0.5 to 0.9 and none to 1: pass@1 showed no difference."""
    passes = {
        f"{label}_{name}": collected([[accuracy] * n] * 20, True, None)
        for label, accuracy in (("base", 0.5), ("trained", 0.9))
        for name, n in (("greedy", 1), ("sampled", 8))
    }
    compared = verdicts.compare(passes, range(20))
    assert passes["base_sampled"].summary.groups["mixed"] == 20, "none of a group is wrong or right"
    assert (compared.measure, compared.headline.level) == ("accuracy", "good")
    assert (compared.won, compared.lost) == (list(range(20)), [])
    assert "greedy accuracy changed by +40.0 points" in compared.headline.text
    assert compared.headline.text.endswith("for their number: accuracy +40.0 points hold.")


def test_repeated_questions_are_paired_as_one():
    compared = compare(([2.0] * 40, [10.0, 2.0] * 20), accuracy=False, clusters=[0, 1] * 20)
    assert (compared.primary.questions, compared.primary.different) == (40, 2)
    assert compared.headline.level == "weak", "one of two prompts improved"
    alike = compare(([2.0] * 12, [4.0] * 12), accuracy=False)
    assert "(no interval; 12 won" in alike.headline.text, "all changes are equal"


@pytest.mark.parametrize(
    ("figures", "zero_variance", "reasons", "level", "texts"),
    [
        ({}, 0.2, {}, "good", ["Train:", "80.0% of the groups have some variance", "of 32 prompts a step about 26"]),
        ({}, 0.6, {}, "weak", ["--filter_out", "60.0%", "about 13"]),
        ({"accuracy": 0.02}, 0.2, {}, "bad", ["fine-tune first"]),
        ({"accuracy": 0.97}, 0.2, {}, "bad", ["use a harder set"]),
        ({"score_variance": 0.005}, 0.2, {}, "bad", ["no signal"]),
        ({"accuracy": 0.02}, 0.2, {"no_answer": 60}, "bad", ["format", "60.0%"]),
    ],
)
def test_one_piece_of_advice(figures, zero_variance, reasons, level, texts):
    values = {"accuracy": 0.4, "score_variance": 0.15, "group_entropy_bits": 0.6, "truncated": 0.0} | figures
    intervals = {name: Interval(value, None, None, "") for name, value in values.items()}
    groups = {"without variance": round(10 * zero_variance)}
    summary = Summary(None, "accuracy", 10, 10, 100, intervals, groups, reasons, 0, "")
    judged = probe(summary, 32)
    assert judged.recommendation.level == level
    assert all(text in judged.recommendation.text for text in texts)
    assert (judged.prompts, judged.kept) == (32, pytest.approx(32 * (1 - zero_variance)))


@pytest.mark.parametrize("right", [-3.0, 0.1, 1.0, 10.0])
def test_the_scale_of_the_scores_decides_nothing(right):
    """GRPO divides by the group's deviation, and 0.1 for right had no signal."""
    judged = []
    for scale in (1.0, right):
        measures = Measures()
        for count in (0, 2, 3, 5):
            rights = [float(number < count) for number in range(8)]
            measures.add([ScoredResponse(scale * right, right, truncated=False) for right in rights])
        judged.append(probe(measures.summary, 32))
    assert judged[1] == judged[0]
    assert judged[0].recommendation.level == "good"
