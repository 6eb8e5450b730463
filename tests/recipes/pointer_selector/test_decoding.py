"""Greedy, sampling and beam search against exhaustive enumeration, and under padding."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from pointer_testing import make_policy, random_inputs

from recipes.pointer_selector.decoding import beam, exact_kl, greedy, pick_by_uniform, sample

SHOTS, SLOTS = 3, 5


@pytest.fixture
def scored(policy):
    """Every sequence of 3 out of 5 slots with its log-probability, for each of three queries."""
    inputs = random_inputs(slots=SLOTS)
    sequences = torch.tensor(list(permutations(range(SLOTS), SHOTS)))[None].expand(3, -1, -1)
    steps = torch.ones_like(sequences, dtype=torch.bool)
    return inputs, sequences, policy.step_log_probs(inputs, sequences, steps)[0].sum(-1)


def pad(inputs, by=4):
    query, pool, mask = inputs
    more = torch.full((len(query), by, pool.shape[-1]), -50.0, dtype=pool.dtype)
    return query, torch.cat([pool, more], 1), torch.nn.functional.pad(mask, (0, by))


def test_all_sequences_together_have_probability_one(scored):
    assert torch.allclose(scored[2].exp().sum(-1), torch.ones(3, dtype=torch.float64))


def test_a_wide_beam_finds_the_best_sequences(policy, scored):
    inputs, sequences, log_probs = scored
    picks, total = beam(policy, policy.encode(*inputs), SHOTS, 60)
    best = log_probs.sort(descending=True)
    assert torch.allclose(total, best.values, atol=1e-9)
    assert torch.equal(picks[:, 0], sequences[torch.arange(3), best.indices[:, 0]])


def test_a_beam_of_one_is_greedy(policy, scored):
    encoded = policy.encode(*scored[0])
    picks, log_probs = greedy(policy, encoded, SHOTS)
    beam_picks, total = beam(policy, encoded, SHOTS, 1)
    assert torch.equal(picks, beam_picks[:, 0])
    assert torch.allclose(log_probs.sum(-1), total[:, 0])


def test_greedy_at_fewer_shots_is_a_prefix(policy, scored):
    encoded = policy.encode(*scored[0])
    assert torch.equal(greedy(policy, encoded, 3)[0][:, :2], greedy(policy, encoded, 2)[0])


def test_a_beam_wider_than_there_are_sequences_repeats_none_of_them(policy):
    picks, total = beam(policy, policy.encode(*random_inputs(batch=1, slots=3)), 2, 50)
    real = total[0] > -1e8
    assert len({tuple(p) for p in picks[0][real].tolist()}) == int(real.sum()) == 6


def test_padding_changes_no_decoding(policy, scored):
    inputs = scored[0]
    tight, wide = policy.encode(*inputs), policy.encode(*pad(inputs))
    assert torch.equal(greedy(policy, tight, SHOTS)[0], greedy(policy, wide, SHOTS)[0])
    assert torch.equal(beam(policy, tight, SHOTS, 4)[0], beam(policy, wide, SHOTS, 4)[0])
    draws = [sample(policy, e, SHOTS, 200, torch.Generator().manual_seed(3))[0] for e in (tight, wide)]
    assert torch.equal(*draws)


def test_samples_follow_the_distribution(policy, scored):
    inputs, sequences, log_probs = scored
    picks, log_probs_of_picks = sample(policy, policy.encode(*inputs), SHOTS, 40_000, torch.Generator().manual_seed(0))
    code = torch.tensor([25, 5, 1])
    for row in range(3):
        counts = torch.bincount((picks[row] * code).sum(-1), minlength=125)[(sequences[row] * code).sum(-1)]
        assert counts.sum() == 40_000  # without replacement: nothing outside the permutations
        assert (counts / 40_000 - log_probs[row].exp()).abs().max() < 0.01
    again, _ = policy.step_log_probs(inputs, picks, torch.ones_like(picks, dtype=torch.bool))
    assert torch.allclose(again, log_probs_of_picks)


def test_sampling_at_low_temperature_is_greedy(policy, scored):
    encoded = policy.encode(*scored[0])
    picks, _ = sample(policy, encoded, SHOTS, 5, torch.Generator().manual_seed(0), temperature=1e-4)
    assert (picks == greedy(policy, encoded, SHOTS)[0][:, None]).all()


def test_a_uniform_number_at_the_edge_never_picks_what_has_no_probability():
    probabilities = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]] * 3)
    assert pick_by_uniform(probabilities, torch.tensor([0.0, 0.2999999, 1.0])).tolist() == [1, 1, 3]


def test_exact_kl_is_the_sum_over_all_sequences(policy, scored):
    inputs, sequences, log_probs = scored
    other = make_policy(seed=5)
    theirs = other.step_log_probs(inputs, sequences, torch.ones_like(sequences, dtype=torch.bool))[0].sum(-1)
    expected = (log_probs.exp() * (log_probs - theirs)).sum(-1)
    weighted = (log_probs.exp() * exact_kl(policy, other, inputs, sequences)).sum(-1)
    assert torch.allclose(weighted, expected, atol=1e-9)
