"""Rewards, advantages, losses and schedules against slow references; gradient checks in float64."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pointer_reference as slow
import pytest
import torch

from recipes.errors import RecipeError
from recipes.pointer_selector import losses
from recipes.pointer_selector.config import CurriculumConfig, KlConfig, PointerRecipe, RewardConfig, changed
from recipes.pointer_selector.losses import group_advantages, grpo_loss, k3, rce_loss, rewards
from recipes.pointer_selector.training import candidates_kept, learning_rate, next_beta, tau

COUNTS, PICKS = [4, 2, 3], [2, 3, 1]
GRPO = {"clip": 0.2, "kl_beta": 0.3}


def ragged(seed: int = 0):
    """log-probabilities [3, 4, 3] of three groups with 4, 2 and 3 candidates of 2, 3 and 1 picks, with masks."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(4) < torch.tensor(COUNTS)[:, None]
    steps = mask[..., None] & (torch.arange(3) < torch.tensor(PICKS)[:, None])[:, None]
    values = [-2 * torch.rand(3, 4, 3, generator=generator, dtype=torch.float64) * steps for _ in range(3)]
    return values, steps, torch.randint(0, 3, (3, 4), generator=generator).double(), mask


def nested(values):
    return [[values[g, c, : PICKS[g]].tolist() for c in range(COUNTS[g])] for g in range(3)]


def lists(values):
    return [values[g, : COUNTS[g]].tolist() for g in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_losses_equal_the_slow_reference(seed):
    (log_probs, old, reference), steps, values, mask = ragged(seed)
    for temperature in (2.0, 0.5, 0.01):
        expected = slow.rce(nested(log_probs), lists(values), temperature)
        assert float(rce_loss(log_probs, steps, values, mask, temperature)) == pytest.approx(expected)
    advantage = group_advantages(values, mask, "zscore", floor=0.1, clip=5.0)[0]
    logged = nested(log_probs), nested(old), nested(reference), lists(advantage), 0.2, 0.3
    for level, over in product(("sequence", "step"), ("logged", "policy")):
        loss, terms = grpo_loss(log_probs, old, reference, advantage, steps, mask, level=level, kl_over=over, **GRPO)
        expected = slow.grpo(*logged, level, over)
        assert [float(x) for x in (loss, terms["actor/pg_loss"], terms["actor/kl_loss"])] == pytest.approx(expected)


def test_gradients_in_float64():
    (log_probs, old, reference), steps, values, mask = ragged(1)
    advantage = group_advantages(values, mask, "rank", floor=0.1, clip=5.0)[0]
    log_probs.requires_grad_()
    for loss in (
        lambda x: grpo_loss(x * steps, old, reference, advantage, steps, mask, level="sequence", **GRPO)[0],
        lambda x: grpo_loss(x * steps, old, reference, advantage, steps, mask, level="step", **GRPO)[0],
        lambda x: rce_loss(x * steps, steps, values, mask, 0.7),
        lambda x: k3(x, reference),
    ):
        assert torch.autograd.gradcheck(loss, (log_probs,))


def test_k3_estimates_the_divergence_under_samples_of_the_policy():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2))
    assert (k3(p, q) >= 0).all()
    assert float((p.exp() * k3(p, q)).sum()) == pytest.approx(float((p.exp() * (p - q)).sum()))


@pytest.mark.parametrize("kind", ["zscore", "rank", "mean"])
def test_advantages_equal_the_slow_reference(kind):
    for seed in range(5):
        _, _, values, mask = ragged(seed)
        advantages = group_advantages(values, mask, kind, floor=0.5, clip=0.9)[0]
        assert (advantages[~mask] == 0).all()
        for group in range(3):
            expected = slow.advantages(values[group, : COUNTS[group]].tolist(), kind, 0.5, 0.9)
            assert advantages[group, : COUNTS[group]].tolist() == pytest.approx(expected)
    equal = torch.tensor([[0.7, 0.7, 0.7], [0.2, 9.0, 9.0], [0.0, 1.0, 0.5]])
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, True]])
    advantages, zero_variance = group_advantages(equal, mask, kind, floor=0.1, clip=5.0)
    assert zero_variance.tolist() == [True, True, False]
    assert (advantages[:2] == 0).all()
    best = losses.keep_top_candidates(equal, mask, 1)
    assert best.tolist() == [[True, False, False], [True, False, False], [False, True, False]]


def test_schedules():
    assert [tau(step, 5, 2.0, 0.5) for step in (0, 2, 4, 9)] == [2.0, 1.25, 0.5, 0.5]
    assert tau(0, 1, 2.0, 0.5) == 0.5
    rates = [learning_rate(step, 100, 1.0, 0.1) for step in (0, 9, 10, 55, 100)]
    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.0])
    config = KlConfig(adaptive=True, beta_min=0.05, beta_max=0.2)
    betas = {(0.1, 0.5): 0.15, (0.1, 0.001): 0.1 / 1.5, (0.1, 0.05): 0.1, (0.19, 0.5): 0.2, (0.051, 0.001): 0.05}
    assert [next_beta(*given, config) for given in betas] == pytest.approx(list(betas.values()))
    assert next_beta(0.1, 0.5, KlConfig()) == 0.1
    top_k = CurriculumConfig(early_candidates=3, early_share=0.5, late_candidates=5)
    assert [candidates_kept(epoch, 4, top_k) for epoch in range(4)] == [3, 3, 5, 5]
    assert candidates_kept(0, 4, CurriculumConfig()) == 0


@pytest.mark.parametrize("quality", ["beam_score", "logprob_score"])
def test_rewards_equal_the_documented_formulas(data, quality):
    for row in range(len(data.lengths)):
        score = {name: float(values[row]) for name, values in data.scores.items()}
        same = (data.candidate_query == data.candidate_query[row]) & (data.lengths == data.lengths[row])
        group = data.scores[quality][same].astype(float)
        q, c = (score[quality] - group.min()) / (group.max() - group.min()), score["vqa_correct"]
        for mode, expected in {
            "combined": 0.7 * q + 1.5 * c,
            "hard_soft": 0.7 * score["vqa_acc_score"] + 1.5 * c,
            "separated": 0.7 * score["vqa_acc_score"] + 2 * 1.5 * c,
            "correctness": 1.5 * c,
            "probability": 0.7 * score["vqa_gt_prob"],
            "quality": 0.7 * q,
        }.items():
            reward = rewards(data, RewardConfig(mode=mode, alpha=0.7, beta=1.5, quality=quality))[row]
            assert reward == pytest.approx(expected, rel=1e-5), mode


def test_missing_numbers_and_equal_rewards_name_the_query(data):
    with pytest.raises(RecipeError, match="each of the 24 groups all rewards are equal, in query '0'"):
        losses.require_differences(np.ones(len(data.lengths)), data, "probability")
    data.scores["vqa_gt_prob"][9] = np.nan
    with pytest.raises(RecipeError, match="1 candidates have no vqa_gt_prob, the first of them in query '1'"):
        rewards(data, RewardConfig(mode="probability"))


UNREAD = {
    ("probability", "rank", 5): ["REWARD_BETA .* not read: reward.mode=probability", "ALPHA .* ignores; the weights"],
    ("probability", "rank", 0): ["REWARD_BETA", "REWARD_ALPHA .* nothing else reads it"],
    ("combined", "rank", 5): ["the same advantages for every REWARD_ALPHA .* between 0 and REWARD_BETA"],
    ("separated", "rank", 0): ["between 0 and 2 times REWARD_BETA .* nothing else reads both"],
    ("combined", "zscore", 5): [],
}


@pytest.mark.parametrize(("mode", "advantage", "epochs"), UNREAD)
def test_weights_that_decide_nothing_are_noted(data, mode, advantage, epochs):
    values = {"reward.mode": mode, "grpo.advantage": advantage, "rce.epochs": epochs}
    notes = losses.reward_notes(changed(PointerRecipe(), values))
    assert len(notes) == len(UNREAD[mode, advantage, epochs])
    assert all(re.search(*pair) for pair in zip(UNREAD[mode, advantage, epochs], notes, strict=True)), notes
    for name in ("alpha", "beta"):  # a weight that is noted as not read changes no reward
        unread = any(f"reward.{name}) is not read" in note for note in notes)
        one, other = (rewards(data, RewardConfig(mode=mode, **{name: value})) for value in (0.4, 1.7))
        assert unread == np.array_equal(one, other)
    if (mode, advantage) == ("combined", "rank"):  # the claim of its note: alpha below beta decides no rank
        weights = {"one": (0.2, 1.0), "other": (0.5, 0.8), "beyond": (9, 1)}
        ranks = {}
        for name, (alpha, beta) in weights.items():
            values = torch.from_numpy(rewards(data, RewardConfig(mode=mode, alpha=alpha, beta=beta)).reshape(24, 4))
            ranks[name] = group_advantages(values, torch.ones(24, 4, dtype=torch.bool), "rank", floor=0.1, clip=5.0)[0]
        assert torch.equal(ranks["one"], ranks["other"])
        assert not torch.equal(ranks["one"], ranks["beyond"])
