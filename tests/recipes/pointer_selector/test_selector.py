"""The policy, its decoding and the trained selector against a slow reference and exhaustive enumeration."""

from itertools import permutations

import numpy as np
import pytest
import torch

from recipes.pointer_selector.selector import PointerSelector, exact_kl, greedy, sample, save
from tests.mistakes import mistake
from tests.recipes.pointer_selector.pointer_reference import sequence_log_probs

POINTERS = torch.tensor([[[0, 0, 0], [3, 0, 0], [2, 4, 0], [4, 1, 3]]] * 3)
STEPS = torch.tensor([[[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]] * 3).bool()
SHOTS, SLOTS = 3, 5


@pytest.fixture
def policy(make_policy):
    return make_policy()


def random_inputs(slots=7, sizes=None):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    pool = torch.randn(3, slots, 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(slots) < torch.tensor(sizes or [slots] * 3)[:, None]
    return query, pool * mask[..., None], mask


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_log_probs_equal_those_of_the_slow_reference(make_policy, layers):
    policy, inputs = make_policy(layers=layers), random_inputs(sizes=[5, 7, 6])
    log_probs, _ = policy.step_log_probs(inputs, POINTERS, STEPS)
    for row, size in enumerate([5, 7, 6]):
        for candidate in range(4):
            pointer = POINTERS[row, candidate][STEPS[row, candidate]].tolist()
            expected = sequence_log_probs(policy, inputs[0][row], inputs[1][row], size, pointer)
            assert log_probs[row, candidate][STEPS[row, candidate]].tolist() == pytest.approx(expected, abs=1e-9)
    assert (log_probs[~STEPS] == 0).all()


def test_gradients_reach_every_parameter(policy):
    policy.step_log_probs(random_inputs(), POINTERS, STEPS)[0].sum().backward()
    assert [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.fixture
def scored(policy):
    """Every sequence of 3 out of 5 slots with its log-probability, for each of three queries."""
    inputs = random_inputs(slots=SLOTS)
    sequences = torch.tensor(list(permutations(range(SLOTS), SHOTS)))[None].expand(3, -1, -1)
    log_probs = policy.step_log_probs(inputs, sequences, torch.ones_like(sequences, dtype=torch.bool))[0].sum(-1)
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(3, dtype=torch.float64))
    return inputs, sequences, log_probs


def test_greedy_takes_the_most_likely_slot_each_time(policy, scored):
    inputs, sequences, log_probs = scored
    picks = greedy(policy, policy.encode(*inputs), SHOTS)
    for row in range(3):
        left, mass = sequences[row], log_probs[row].exp()
        for step in range(SHOTS):
            by_slot = torch.zeros(SLOTS, dtype=torch.float64).index_add(0, left[:, step], mass)
            assert picks[row, step] == by_slot.argmax()
            kept = left[:, step] == picks[row, step]
            left, mass = left[kept], mass[kept]


def test_samples_follow_the_distribution(policy, scored):
    inputs, sequences, log_probs = scored
    picks = sample(policy, policy.encode(*inputs), SHOTS, 40_000, torch.Generator().manual_seed(0))
    code = torch.tensor([25, 5, 1])
    for row in range(3):
        counts = torch.bincount((picks[row] * code).sum(-1), minlength=125)[(sequences[row] * code).sum(-1)]
        assert counts.sum() == 40_000  # without replacement: nothing outside the permutations
        assert (counts / 40_000 - log_probs[row].exp()).abs().max() < 0.01


def test_exact_kl_is_the_sum_over_all_sequences(make_policy, policy, scored):
    inputs, sequences, log_probs = scored
    other = make_policy(seed=5)
    theirs = other.step_log_probs(inputs, sequences, torch.ones_like(sequences, dtype=torch.bool))[0].sum(-1)
    expected = (log_probs.exp() * (log_probs - theirs)).sum(-1)
    weighted = (log_probs.exp() * exact_kl(policy, other, inputs, sequences)).sum(-1)
    assert torch.allclose(weighted, expected, atol=1e-9)


RNG = np.random.default_rng(0)
QUERIES, POOL = RNG.normal(size=(4, 6)), RNG.normal(size=(9, 6))


@pytest.fixture
def selector(tmp_path, policy):
    policy = policy.float()
    save(tmp_path / "best", policy, 3, {"step": 7})
    made = PointerSelector.from_pretrained(tmp_path, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(made.policy.parameters(), policy.parameters(), strict=True))
    return made


def test_picks(selector):
    picks = selector.select(QUERIES[0], POOL, 3)
    assert len(set(picks)) == 3
    assert picks == selector.select(torch.tensor(QUERIES[0]), torch.tensor(POOL), 3)
    assert picks[:2] == selector.select(QUERIES[0], POOL, 2)


def test_a_cut_checkpoint_and_a_missing_gpu_are_named(selector, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert mistake(lambda: PointerSelector.from_pretrained(tmp_path, device="gpu")).where == "trainer.device"
    weights = tmp_path / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    mistake(lambda: PointerSelector.from_pretrained(tmp_path, device="cpu"))


def test_mistakes_are_named(selector):
    right = {"query": QUERIES[0], "pool": POOL, "shots": 3}
    for given in ({"query": np.full(6, np.nan)}, {"pool": POOL[:, :5]}):
        assert mistake(lambda given=given: selector.select(**right | given)).where == "query, pool"
    for given in ({"pool": POOL[:2]}, {"shots": 4}):
        assert mistake(lambda given=given: selector.select(**right | given)).where == "shots"
