"""KL holds the policy in the place and by the estimator that a recipe chooses, by verl's own `kl_penalty`."""

from __future__ import annotations

import pytest

from recipes.config import objective

torch = pytest.importorskip("torch")
ARMS = 10


def test_expected_gradients_are_those_of_the_table():
    """Against the KL in both directions and the total variation, by automatic differentiation."""
    from verl.trainer.ppo.core_algos import kl_penalty

    torch.manual_seed(0)
    reference = torch.randn(ARMS, dtype=torch.float64).log_softmax(0)
    logits = torch.randn(ARMS, dtype=torch.float64, requires_grad=True)

    def gradient(estimate_of):
        return torch.autograd.grad(estimate_of(logits.log_softmax(0)), logits)[0]

    def estimated(estimator, place):
        def estimate(log_probs):
            penalty, weights = kl_penalty(log_probs, reference, estimator), log_probs.exp().detach()
            return (weights * (penalty.detach() * log_probs if place == "reward" else penalty)).sum()

        return gradient(estimate)

    reverse = gradient(lambda p: (p.exp() * (p - reference)).sum())
    forward = gradient(lambda p: (reference.exp() * (reference - p)).sum())
    distance = gradient(lambda p: (p.exp() - reference.exp()).abs().sum())
    zero = torch.zeros(ARMS, dtype=torch.float64)
    expected = {
        ("kl", "reward"): reverse,
        ("low_var_kl", "reward"): reverse - forward,
        ("kl", "loss"): zero,
        ("mse", "loss"): reverse,
        ("low_var_kl", "loss"): forward,
        ("abs", "loss"): distance,
        ("kl+", "reward"): reverse,
        ("low_var_kl+", "reward"): reverse - forward,
        ("kl+", "loss"): reverse,
        ("low_var_kl+", "loss"): reverse,
    }
    for pair, exact in expected.items():
        torch.testing.assert_close(estimated(*pair), exact)
    for estimator in ("mse", "abs"):  # in the reward, the gradient of none of these
        found = estimated(estimator, "reward")
        assert all(not torch.allclose(found, other, atol=1e-3) for other in (reverse, forward, distance, zero))
    penalties = {pair for pair, exact in expected.items() if exact is reverse} | {("low_var_kl", "loss")}
    assert set(objective.NO_PENALTY) == {*expected, ("mse", "reward"), ("abs", "reward")} - penalties
