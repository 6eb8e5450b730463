"""Figures of one group against closed forms and other libraries, and of a whole pass against numpy."""

import math

import numpy as np
import pytest
import scipy.stats

from recipes.responses.measures import Measures, ScoredResponse, question_figures, token_entropy_nats


def scored(right, score=None, **more):
    return ScoredResponse(float(right) if score is None else score, float(right), **more)


def generated(tokens, logprob):
    return scored(1, tokens=tokens, logprob=logprob)


def test_token_entropy_estimates_the_entropy_of_the_distribution_that_was_sampled():
    probabilities = np.array([0.55, 0.25, 0.15, 0.05])
    drawn = np.random.default_rng(0).choice(4, size=(400, 50), p=probabilities)
    responses = [generated(50, float(np.log(probabilities[tokens]).sum())) for tokens in drawn]
    error = np.log(probabilities[drawn]).std() / math.sqrt(drawn.size)
    assert token_entropy_nats(responses) == pytest.approx(scipy.stats.entropy(probabilities), abs=4 * error)
    short, long = generated(1, -4.0), generated(99, -99.0)
    assert token_entropy_nats([short, long]) == pytest.approx(103 / 100), "weighs tokens and not responses"
    for unknown in ((3, None), (None, -1.0), (0, 0.0)):
        assert token_entropy_nats([short, generated(*unknown)]) is None


def test_a_group_is_summed_up():
    values, reasons = [1.0, 0.1, 0.1, 0.0], ["correct", "wrong_value", "wrong_value", ""]
    responses = [
        scored(value == 1, value, reason=reason, tokens=tokens, truncated=tokens == 6, logprob=-tokens / 2)
        for value, reason, tokens in zip(values, reasons, (4, 6, 2, 8), strict=True)
    ]
    measures = Measures()
    figures = measures.add(responses)
    assert figures == question_figures(responses)
    expected = {"accuracy": 0.25, "mean_score": np.mean(values), "score_variance": np.var(values)}
    expected |= {"pass@1": 0.25, "pass@2": 0.5, "pass@4": 1.0, "mean_tokens": 5.0, "truncated": 0.25}
    expected |= {"group_entropy_bits": scipy.stats.entropy([0.25, 0.75], base=2), "token_entropy_nats": 0.5}
    assert figures == pytest.approx(expected)
    assert measures.reasons == {"correct": 1, "wrong_value": 2, "": 1}
    assert measures.summary.groups == {"all right": 0, "mixed": 1, "all wrong": 0, "without variance": 0}


def test_an_accuracy_that_is_1_but_for_rounding_is_right():
    measures = Measures()
    for part in (1.0, "a text"):
        measures.add([ScoredResponse(1.0, 0.7 + 0.2 + 0.1, {"reward/format": part})] * 2)
    assert (measures.summary.groups["all right"], measures.summary.graded) == (2, False)


def test_repeated_questions_are_one():
    """13 rows of 4 prompts, answered alike: an interval over 13 rows claimed too much."""
    rights, clusters = [1, 1, 0, 1] * 3 + [1], [0, 1, 2, 3] * 3 + [0]
    passes = Measures(), Measures()
    for right, question in zip(rights, clusters, strict=True):
        passes[0].add([scored(right)])
        passes[1].add([scored(right)], question)
    (each, together) = (collected.summary for collected in passes)
    assert (each.different, together.different) == (13, 4)
    alone, clustered = each.figures["accuracy"], together.figures["accuracy"]
    assert alone.value == clustered.value
    assert clustered.high - clustered.low > 1.5 * (alone.high - alone.low)
