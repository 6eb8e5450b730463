"""Two models on the same questions: what is paired, and what decides the headline."""

from __future__ import annotations

import pytest

from recipes.evaluation import comparison
from recipes.evaluation.comparison import LEAST_CHANGED
from recipes.evaluation.metrics import Collector
from recipes.evaluation.sampling import Response, Sampling
from recipes.evaluation.scoring import Score
from recipes.statistics import mcnemar


def collector(rights, n, logprob=-1.0):
    """A pass in which question i has `rights[i]` right answers of n."""
    collected = Collector(Sampling(n, 1.0 if n > 1 else 0.0, 1.0, 64))
    for right in rights:
        scores = [Score(float(k < right), float(k < right)) for k in range(n)]
        responses = [Response("", 5, False, logprob)] * n
        collected.add(responses, scores)
    return collected


def compare(base, trained, rows):
    both = {
        f"{label}_{name}": one
        for label, passes in (("base", base), ("trained", trained))
        for name, one in zip(("greedy", "sampled"), passes, strict=True)
    }
    return comparison.compare(both, rows)


def passes(sampled, greedy, **more):
    return collector(greedy, 1), collector(sampled, 8, **more)


def both(base, trained, greedy=None):
    """Compare sampled rights of n; greedy ones are the same for both unless given."""
    first, second = greedy or ([0] * len(base), [0] * len(base))
    return compare(passes(base, first), passes(trained, second), list(range(len(base))))


def test_won_and_lost_name_rows_and_what_one_model_lacks_has_no_difference():
    base, trained = passes([0] * 5, [0, 1, 1, 0, 0]), passes([0] * 5, [1, 1, 0, 0, 1], logprob=None)
    compared = compare(base, trained, [10, 20, 30, 40, 50])
    assert (compared.won, compared.lost) == ([10, 50], [30])
    assert (compared.primary.test, compared.primary.p_value) == ("McNemar", mcnemar(2, 1).p_value)
    assert "token_entropy_nats" not in compared.differences["sampled"]


def greedy(won, lost, same=20):
    return [0] * won + [1] * lost + [1] * same, [1] * won + [0] * lost + [1] * same


@pytest.mark.parametrize(
    ("won", "lost", "level"), [(12, 2, "good"), (2, 12, "bad"), (0, 0, "weak"), (LEAST_CHANGED - 1, 0, "weak")]
)
def test_the_primary_test_decides_the_headline(won, lost, level):
    answers = greedy(won, lost)
    comparison = both([3] * len(answers[0]), [3] * len(answers[0]), answers)
    assert comparison.headline.level == level
    assert comparison.primary.difference.excludes_zero == (level != "weak"), "interval and test agree"


def test_further_tests_name_the_changes_that_hold():
    text = both([0, 4] * 20, [4, 4] * 20).headline.text
    assert "pass@8 +50 points" in text
    assert "pass@" not in both([4] * 40, [4] * 40).headline.text.partition("Further")[2]


def scored(values, n=1, clusters=None):
    collected = Collector(Sampling(n, 1.0 if n > 1 else 0.0, 1.0, 64), clusters)
    for value in values:
        scores, responses = [Score(value, None)] * n, [Response("", 5, False, -1.0)] * n
        collected.add(responses, scores)
    return collected


def test_without_an_accuracy_scores_decide():
    """10 for right and 2 for form: the share of scores of at least 1 was 1.000 for both models."""
    before, after = [2.0, 2.0, 10.0, 2.0] * 10, [10.0, 2.0, 10.0, 2.0] * 10
    compared = compare((scored(before), scored(before, 4)), (scored(after), scored(after, 4)), list(range(40)))
    assert (compared.measure, compared.primary.difference.value) == ("mean_score", 2.0)
    assert (len(compared.won), compared.lost, list(compared.p_values)) == (10, [], ["mean_score"])
    assert compared.headline.level == "good"


def test_repeated_questions_are_paired_as_one():
    before, after, clusters = [2.0] * 40, [10.0, 2.0] * 20, [0, 1] * 20
    both = [(scored(values, clusters=clusters), scored(values, 4, clusters)) for values in (before, after)]
    compared = compare(*both, list(range(40)))
    assert (compared.primary.questions, compared.primary.different) == (40, 2)
    assert compared.headline.level == "weak", "one of two prompts improved"
