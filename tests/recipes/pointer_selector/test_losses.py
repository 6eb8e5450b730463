"""Rewards, advantages, losses and schedules against slow references; gradient checks in float64."""

from itertools import product

import numpy as np
import pytest
import torch

from recipes.pointer_selector import losses
from recipes.pointer_selector.config import GrpoConfig, KlConfig, RewardConfig, resolve
from recipes.pointer_selector.losses import group_advantages, grpo_loss, rce_loss, rewards
from tests.mistakes import mistake
from tests.recipes.pointer_selector import pointer_reference as slow

COUNTS, PICKS = [4, 2, 3], [2, 3, 1]


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
    advantage = group_advantages(values, mask, "zscore")[0]
    logged = nested(log_probs), nested(old), nested(reference), lists(advantage), 0.2, 0.3
    for level, over in product(("sequence", "step"), ("logged", "policy")):
        config = GrpoConfig(clip=0.2, level=level, kl=KlConfig(over=over))
        loss, terms = grpo_loss(log_probs, old, reference, advantage, steps, mask, config, 0.3)
        expected = slow.grpo(*logged, level, over)
        assert [float(x) for x in (loss, terms["actor/pg_loss"], terms["actor/kl_loss"])] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["zscore", "rank"])
def test_advantages_equal_the_slow_reference(kind):
    for seed in range(5):
        _, _, values, mask = ragged(seed)
        advantages = group_advantages(values, mask, kind)[0]
        assert (advantages[~mask] == 0).all()
        for group in range(3):
            given = values[group, : COUNTS[group]].tolist()
            expected = slow.advantages(given, kind, losses.ADVANTAGE_FLOOR, losses.ADVANTAGE_CLIP)
            assert advantages[group, : COUNTS[group]].tolist() == pytest.approx(expected)
    equal = torch.tensor([[0.7, 0.7, 0.7], [0.2, 9.0, 9.0], [0.0, 1.0, 0.5]])
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, True]])
    assert group_advantages(equal, mask, kind)[1].tolist() == [True, True, False]


def test_rewards_equal_the_documented_formulas(data):
    for row in range(len(data.lengths)):
        score = {name: float(values[row]) for name, values in data.scores.items()}
        same = (data.candidate_query == data.candidate_query[row]) & (data.lengths == data.lengths[row])
        group = data.scores["beam_score"][same].astype(float)
        q, c = (score["beam_score"] - group.min()) / (group.max() - group.min()), score["vqa_correct"]
        for mode, expected in {
            "combined": 0.7 * q + 1.5 * c,
            "hard_soft": 0.7 * score["vqa_acc_score"] + 1.5 * c,
            "separated": 0.7 * score["vqa_acc_score"] + 2 * 1.5 * c,
            "correctness": 1.5 * c,
            "probability": 0.7 * score["vqa_gt_prob"],
            "quality": 0.7 * q,
        }.items():
            reward = rewards(data, RewardConfig(mode=mode, alpha=0.7, beta=1.5))[row]
            assert reward == pytest.approx(expected, rel=1e-5), mode


@pytest.mark.parametrize(
    ("words", "mode", "named"),
    [
        ("REWARD_ALPHA=0.2 REWARD_BETA=1.0", "combined", ["reward.mode"]),
        ("REWARD_ALPHA=0.2", "probability", []),
        ("REWARD_MODE=probability REWARD_ALPHA=1.0 REWARD_BETA=1.0", "probability", ["reward.beta"]),
        ("REWARD_MODE=correctness REWARD_ALPHA=1.0", "correctness", ["reward.alpha"]),
        ("GRPO_EPOCHS=0 GRPO_LR=1e-3 KL_BETA=0.0 RCE_LR=1e-3", "probability", ["grpo.lr", "grpo.kl.beta"]),
    ],
)
def test_weights_choose_the_reward_and_what_it_does_not_read_is_named(words, mode, named):
    recipe = resolve(words.split(), environ={})
    notes = losses.unread(recipe)
    assert recipe.reward.mode == mode
    assert len(notes) == len(named)
    assert all(key in note for key, note in zip(named, notes, strict=True))


def test_missing_numbers_name_the_query(data):
    data.scores["vqa_gt_prob"][9] = np.nan
    mistake(lambda: rewards(data, RewardConfig(mode="probability")), "query '1'")
