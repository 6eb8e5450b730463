"""The policy against a slow reference, padding, masks and gradients."""

from __future__ import annotations

import pytest
import torch
from pointer_slow import sequence_log_probs
from pointer_testing import make_policy, random_inputs

from recipes.errors import RecipeError
from recipes.pointer_selector.config import PolicyConfig
from recipes.pointer_selector.policy import PointerPolicy

POINTERS = torch.tensor([[[0, 0, 0], [3, 0, 0], [2, 4, 0], [4, 1, 3]]] * 3)
STEPS = torch.tensor([[[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]] * 3).bool()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_log_probs_equal_those_of_the_slow_reference(layers):
    policy, inputs = make_policy(layers=layers), random_inputs(sizes=[5, 7, 6])
    found, _ = policy.step_log_probs(inputs, POINTERS, STEPS)
    for row, size in enumerate([5, 7, 6]):
        for candidate in range(4):
            pointer = POINTERS[row, candidate][STEPS[row, candidate]].tolist()
            expected = sequence_log_probs(policy, inputs[0][row], inputs[1][row], size, pointer)
            assert found[row, candidate][STEPS[row, candidate]].tolist() == pytest.approx(expected, abs=1e-9)
    assert (found[~STEPS] == 0).all()


def test_leaving_out_columns_without_picks_changes_nothing(policy):
    inputs = random_inputs()
    everything = policy.step_log_probs(inputs, POINTERS, STEPS)
    without = policy.step_log_probs(inputs, POINTERS, STEPS, first=(0, 2, 3))
    for one, other in zip(everything, without, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_padding_of_pool_candidates_and_picks_changes_nothing(policy):
    query, pool, mask = random_inputs(slots=6)
    tight, _ = policy.step_log_probs((query, pool, mask), POINTERS, STEPS)
    padded = torch.cat([pool, torch.full((3, 5, 6), 1e3, dtype=pool.dtype)], 1)
    wide_mask = torch.cat([mask, torch.zeros(3, 5, dtype=torch.bool)], 1)
    pointers = torch.nn.functional.pad(POINTERS, (0, 2, 0, 3))
    steps = torch.nn.functional.pad(STEPS, (0, 2, 0, 3))
    wide, _ = policy.step_log_probs((query, padded, wide_mask), pointers, steps)
    assert torch.allclose(wide[:, :4, :3], tight, atol=1e-12)
    assert (wide[:, 4:] == 0).all()
    assert (wide[..., 3:] == 0).all()


def test_the_rest_of_a_batch_changes_nothing(policy):
    inputs = random_inputs(sizes=[7, 5, 6])
    together, _ = policy.step_log_probs(inputs, POINTERS, STEPS)
    alone, _ = policy.step_log_probs(tuple(x[1:2] for x in inputs), POINTERS[1:2], STEPS[1:2])
    assert torch.allclose(together[1:2], alone, atol=1e-12)


def test_next_pick_is_a_distribution_over_what_is_left(policy):
    encoded = policy.encode(*random_inputs(sizes=[7, 4, 5]))
    free = encoded.mask[:, None].clone()
    free[:, :, 2] = False
    probabilities = policy.log_probs(encoded, encoded.state[:, None], free).exp()
    assert torch.allclose(probabilities.sum(-1), torch.ones(3, 1, dtype=torch.float64))
    assert (probabilities[~free] == 0).all()


def test_a_pool_that_is_used_up_gives_no_nan(policy):
    inputs = random_inputs(batch=1, slots=2)
    pointers, steps = torch.tensor([[[0, 1, 0]]]), torch.tensor([[[True, True, False]]])
    for parameter in policy.parameters():
        parameter.grad = None
    found, _ = policy.step_log_probs(inputs, pointers, steps)
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)
    assert found[0, 0, 1] == 0  # the only one left is certain


def test_gradients_in_float64(policy):
    query, pool, mask = random_inputs(batch=2, slots=4, sizes=[4, 3])
    pointers, steps = torch.tensor([[[0, 1], [2, 0]]] * 2), torch.tensor([[[1, 1], [1, 0]]] * 2).bool()

    def total(query, pool):
        return policy.step_log_probs((query, pool, mask), pointers, steps)[0]

    assert torch.autograd.gradcheck(total, (query.requires_grad_(), pool.requires_grad_()))


def test_every_parameter_learns(policy):
    inputs = random_inputs()
    policy.step_log_probs(inputs, POINTERS, STEPS)[0].sum().backward()
    assert [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_untrained_policy_picks_the_nearest():
    torch.manual_seed(0)
    policy = PointerPolicy(PolicyConfig(hidden=64, start="similarity"), 6, 6).double().eval()
    query, pool, mask = random_inputs(batch=50)
    encoded = policy.encode(query, pool, mask)
    best = policy.log_probs(encoded, encoded.state[:, None], mask[:, None])[:, 0].argmax(-1)
    nearest = torch.nn.functional.cosine_similarity(query[:, None], pool, dim=-1).argmax(-1)
    assert (best == nearest).double().mean() > 0.95


def test_heads_must_divide_the_width():
    with pytest.raises(RecipeError, match="16 features cannot be divided among 3 heads"):
        PointerPolicy(PolicyConfig(hidden=16, heads=3), 6, 6)


def test_similarity_needs_embeddings_of_one_size():
    with pytest.raises(RecipeError, match="6 features and pool examples 8"):
        PointerPolicy(PolicyConfig(start="similarity"), 6, 8)
    PointerPolicy(PolicyConfig(start="random"), 6, 8)
