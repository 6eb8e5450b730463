"""Rewards, advantages, losses and schedules against slow references; gradient checks in float64."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
import pointer_reference as slow
import pytest
import torch
from pointer_testing import write_data

from recipes.errors import RecipeError
from recipes.pointer_selector.config import CurriculumConfig, KlConfig, PointerRecipe, RewardConfig, changed
from recipes.pointer_selector.data import read_data
from recipes.pointer_selector.losses import (
    TERMS,
    equal_groups,
    group_advantages,
    grpo_loss,
    k3,
    keep_best,
    rce_loss,
    require_differences,
    reward_notes,
    rewards,
)
from recipes.pointer_selector.training import candidates_kept, learning_rate, next_beta, tau

COUNTS, PICKS = [4, 2, 3], [2, 3, 1]


def ragged(seed: int = 0):
    """log-probabilities [3, 4, 3] of three groups with 4, 2 and 3 candidates of 2, 3 and 1 picks, with masks."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(4) < torch.tensor(COUNTS)[:, None]
    steps = mask[..., None] & (torch.arange(3) < torch.tensor(PICKS)[:, None])[:, None]
    values = [-2 * torch.rand(3, 4, 3, generator=generator, dtype=torch.float64) * steps for _ in range(3)]
    rewards = torch.randint(0, 3, (3, 4), generator=generator).double()
    return values, steps, rewards, mask


def nested(values):
    return [[values[g, c, : PICKS[g]].tolist() for c in range(COUNTS[g])] for g in range(3)]


def lists(values):
    return [values[g, : COUNTS[g]].tolist() for g in range(3)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [2.0, 0.5, 0.01])
def test_rce_equals_the_slow_reference(seed, temperature):
    (log_probs, *_), steps, rewards, mask = ragged(seed)
    expected = slow.rce(nested(log_probs), lists(rewards), temperature)
    assert float(rce_loss(log_probs, steps, rewards, mask, temperature)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("level", ["sequence", "step"])
@pytest.mark.parametrize("kl_over", ["logged", "policy"])
def test_grpo_equals_the_slow_reference(seed, level, kl_over):
    (log_probs, old, reference), steps, rewards, mask = ragged(seed)
    advantage = group_advantages(rewards, mask, "zscore", floor=0.1, clip=5.0).values
    terms = grpo_loss(
        log_probs, old, reference, advantage, steps, mask, clip=0.2, kl_beta=0.3, level=level, kl_over=kl_over
    )
    expected = slow.grpo(nested(log_probs), nested(old), nested(reference), lists(advantage), 0.2, 0.3, level, kl_over)
    assert [float(terms.loss), float(terms.policy), float(terms.kl)] == pytest.approx(expected)


def test_grpo_at_the_old_policy_is_the_policy_gradient():
    """Ratio 1, nothing clipped: the gradient is -advantage / candidates for every pick, and KL to itself is 0."""
    (log_probs, *_), steps, rewards, mask = ragged()
    advantage = group_advantages(rewards, mask, "mean", floor=0.1, clip=5.0).values
    log_probs.requires_grad_()
    frozen = log_probs.detach()
    terms = grpo_loss(log_probs, frozen, frozen, advantage, steps, mask, clip=0.2, kl_beta=1.0)
    terms.loss.backward()
    expected = -(advantage / mask.sum())[..., None].expand_as(steps) * steps
    assert torch.allclose(log_probs.grad * steps, expected)
    assert (float(terms.kl), float(terms.ratio_mean), float(terms.clip_fraction)) == pytest.approx((0, 1, 0))


def test_a_clipped_candidate_gives_no_gradient():
    log_probs = torch.tensor([[[-0.5], [-0.5], [-2.0], [-2.0]]], dtype=torch.float64, requires_grad=True)
    old = torch.full_like(log_probs, -1.0).detach()
    advantage = torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=torch.float64)
    mask = torch.ones(1, 4, dtype=torch.bool)
    terms = grpo_loss(log_probs, old, old, advantage, mask[..., None], mask, clip=0.2, kl_beta=0.0)
    terms.loss.backward()
    assert (log_probs.grad[0, :, 0] != 0).tolist() == [False, True, True, False]
    assert float(terms.clip_fraction) == 0.5
    assert float(terms.ratio_max) == pytest.approx(math.exp(0.5))


@pytest.mark.parametrize("level", ["sequence", "step"])
def test_gradients_of_grpo_in_float64(level):
    (log_probs, old, reference), steps, rewards, mask = ragged(1)
    advantage = group_advantages(rewards, mask, "rank", floor=0.1, clip=5.0).values

    def loss(x):
        return grpo_loss(x * steps, old, reference, advantage, steps, mask, clip=0.2, kl_beta=0.3, level=level).loss

    assert torch.autograd.gradcheck(loss, (log_probs.requires_grad_(),))


def test_gradients_of_rce_in_float64():
    (log_probs, *_), steps, rewards, mask = ragged(2)
    assert torch.autograd.gradcheck(
        lambda x: rce_loss(x * steps, steps, rewards, mask, 0.7), (log_probs.requires_grad_(),)
    )
    anchor = log_probs.detach().clone() - 0.3
    assert torch.autograd.gradcheck(lambda x: k3(x, anchor), (log_probs,))


def test_k3_is_never_negative_and_estimates_the_divergence():
    """Under samples of p the mean of k3 is KL(p || q)."""
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2))
    values = k3(p, q)
    assert (values >= 0).all()
    assert float((p.exp() * values).sum()) == pytest.approx(float((p.exp() * (p - q)).sum()))


@pytest.mark.parametrize("kind", ["zscore", "rank", "mean"])
@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_the_slow_reference(kind, seed):
    _, _, rewards, mask = ragged(seed)
    found = group_advantages(rewards, mask, kind, floor=0.5, clip=0.9)
    for group in range(3):
        expected = slow.advantages(rewards[group, : COUNTS[group]].tolist(), kind, 0.5, 0.9)
        assert found.values[group, : COUNTS[group]].tolist() == pytest.approx(expected)
        assert found.values[group, COUNTS[group] :].tolist() == [0.0] * (4 - COUNTS[group])


@pytest.mark.parametrize("kind", ["zscore", "rank", "mean"])
def test_equal_rewards_and_single_candidates_have_no_advantage_and_are_counted(kind):
    rewards = torch.tensor([[0.7, 0.7, 0.7], [0.2, 9.0, 9.0], [0.0, 1.0, 0.5]])
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, True]])
    found = group_advantages(rewards, mask, kind, floor=0.1, clip=5.0)
    assert found.silent.tolist() == [True, True, False]
    assert (found.values[:2] == 0).all()
    assert found.values[2].abs().sum() > 0


def test_keep_best_takes_the_best_and_never_padding():
    rewards = torch.tensor([[0.1, 0.9, 0.5, 0.5], [0.3, 0.2, 9.0, 9.0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert keep_best(rewards, mask, 2).tolist() == [[False, True, True, False], [True, True, False, False]]
    assert torch.equal(keep_best(rewards, mask, 0), mask)


def test_tau_goes_from_start_to_end():
    assert [tau(step, 5, 2.0, 0.5) for step in (0, 2, 4, 9)] == [2.0, 1.25, 0.5, 0.5]
    assert tau(0, 1, 2.0, 0.5) == 0.5


def test_learning_rate_warms_up_and_falls_to_zero():
    rates = [learning_rate(step, 100, 1.0, 0.1) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))
    assert rates[100] == pytest.approx(0.0)


def test_beta_follows_the_kl_within_its_bounds():
    config = KlConfig(adaptive=True, beta_min=0.05, beta_max=0.2)
    assert next_beta(0.1, 0.5, config) == pytest.approx(0.15)
    assert next_beta(0.1, 0.001, config) == pytest.approx(0.1 / 1.5)
    assert next_beta(0.1, 0.05, config) == 0.1
    assert next_beta(0.19, 0.5, config) == 0.2
    assert next_beta(0.051, 0.001, config) == 0.05
    assert next_beta(0.1, 0.5, KlConfig()) == 0.1


def test_the_curriculum_begins_with_few_candidates():
    config = CurriculumConfig(early_candidates=3, early_share=0.5, late_candidates=5)
    assert [candidates_kept(epoch, 4, config) for epoch in range(4)] == [3, 3, 5, 5]
    assert candidates_kept(0, 4, CurriculumConfig(early_share=0.0)) == 0


def test_a_candidate_that_was_given_up_inflates_k3_over_logged_ones_only():
    log_probs = torch.tensor([[[-0.1], [-12.0]]], dtype=torch.float64)
    reference = torch.tensor([[[-0.7], [-0.7]]], dtype=torch.float64)
    mask, advantage = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.float64)
    logged, policy = (
        grpo_loss(
            log_probs, log_probs, reference, advantage, mask[..., None], mask, clip=0.2, kl_beta=1.0, kl_over=over
        ).kl
        for over in ("logged", "policy")
    )
    assert logged > 1e4
    assert policy == pytest.approx(float((log_probs.exp() * (log_probs - reference)).sum()), abs=0.2)


@pytest.fixture
def data(tmp_path):
    path, table = write_data(tmp_path)
    return read_data(path, table, table)


def slowly(data, row, mode, alpha, beta, quality):
    """The reward of one candidate, from the words of the documentation."""
    score = {name: float(values[row]) for name, values in data.scores.items()}
    group = [
        float(data.scores[quality][other])
        for other in range(len(data.lengths))
        if data.candidate_query[other] == data.candidate_query[row] and data.lengths[other] == data.lengths[row]
    ]
    q = (score[quality] - min(group)) / (max(group) - min(group)) if max(group) > min(group) else 0.5
    return {
        "combined": alpha * q + beta * score["vqa_correct"],
        "hard_soft": alpha * score["vqa_acc_score"] + beta * score["vqa_correct"],
        "separated": alpha * score["vqa_acc_score"] + (2 * beta if score["vqa_correct"] else 0),
        "correctness": beta * score["vqa_correct"],
        "probability": alpha * score["vqa_gt_prob"],
        "quality": alpha * q,
    }[mode]


@pytest.mark.parametrize("mode", TERMS)
@pytest.mark.parametrize("quality", ["beam_score", "logprob_score"])
def test_rewards_equal_the_slow_reference(data, mode, quality):
    found = rewards(data, RewardConfig(mode=mode, alpha=0.7, beta=1.5, quality=quality))
    expected = [slowly(data, row, mode, 0.7, 1.5, quality) for row in range(len(data.lengths))]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert found.dtype == np.float32


def test_quality_has_the_scale_of_correctness_whatever_its_unit(data):
    config = RewardConfig(mode="quality", alpha=1.0)
    before = rewards(data, config)
    data.scores["beam_score"][:] = data.scores["beam_score"] * 1e-6 - 40
    after = rewards(data, config)
    assert (before.min(), before.max()) == (0.0, 1.0)
    assert np.abs(after - before).max() < 1.0
    assert after.min() >= 0.0


def test_a_missing_number_names_the_query(data):
    data.scores["vqa_gt_prob"][9] = np.nan
    with pytest.raises(RecipeError, match="1 candidates have no vqa_gt_prob, the first of them in query '1'"):
        rewards(data, RewardConfig(mode="probability"))
    rewards(data, RewardConfig(mode="correctness"))


def test_groups_with_equal_rewards_are_found_and_all_of_them_are_refused(data):
    values = rewards(data, RewardConfig(mode="probability"))
    assert len(equal_groups(values, data)) == 0
    starts, group = data.group_starts, 5
    values[starts[group] : starts[group + 1]] = 0.25
    assert equal_groups(values, data).tolist() == [group]
    require_differences(values, data, "probability")
    with pytest.raises(RecipeError, match="each of the 24 groups all rewards are equal, in query '0'"):
        require_differences(np.ones_like(values), data, "probability")


UNREAD = {
    ("probability", "rank", 5): [
        "REWARD_BETA .* not read: reward.mode=probability",
        "ALPHA .* ignores; the weights",
    ],
    ("probability", "rank", 0): ["REWARD_BETA", "REWARD_ALPHA .* nothing else reads it"],
    ("probability", "zscore", 5): ["REWARD_BETA"],
    ("correctness", "mean", 5): ["REWARD_ALPHA .* not read: reward.mode=correctness"],
    ("combined", "rank", 5): [],
}


@pytest.mark.parametrize(("mode", "advantage", "epochs"), UNREAD)
def test_weights_that_decide_nothing_are_noted(data, mode, advantage, epochs):
    values = {"reward.mode": mode, "grpo.advantage": advantage, "rce.epochs": epochs}
    notes = reward_notes(changed(PointerRecipe(), values))
    expected = UNREAD[mode, advantage, epochs]
    assert len(notes) == len(expected)
    assert all(re.search(pattern, note) for pattern, note in zip(expected, notes, strict=True)), notes
    for name in ("alpha", "beta"):  # a weight that is noted as not read changes no reward
        unread = any(f"reward.{name}) is not read" in note for note in notes)
        one, other = (rewards(data, RewardConfig(mode=mode, **{name: value})) for value in (0.4, 1.7))
        assert unread == np.array_equal(one, other)
