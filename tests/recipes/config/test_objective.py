"""KL holds the policy in the place and by the estimator that a recipe chooses, by verl's own `kl_penalty`."""

import pytest

from recipes.config import objective
from recipes.config.schema.recipe import VERL_PENALTIES

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("place", ["reward", "loss"])
@pytest.mark.parametrize("estimator", VERL_PENALTIES)
def test_near_the_reference_an_estimator_has_the_gradient_of_kl_or_is_named(estimator, place):
    """By automatic differentiation; in expectation over the policy's own samples."""
    from verl.trainer.ppo.core_algos import kl_penalty

    torch.manual_seed(0)
    reference = torch.randn(10, dtype=torch.float64).log_softmax(0)
    logits = (reference + 0.01 * torch.randn(10, dtype=torch.float64)).requires_grad_()
    log_probs = logits.log_softmax(0)
    estimate, weights = kl_penalty(log_probs, reference, estimator), log_probs.exp().detach()
    surrogate = (weights * (estimate.detach() * log_probs if place == "reward" else estimate)).sum()
    (found,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
    (exact,) = torch.autograd.grad((log_probs.exp() * (log_probs - reference)).sum(), logits)
    holds = torch.allclose(found, exact, atol=0.05 * exact.norm().item())
    assert holds == ((estimator, place) not in objective.NO_PENALTY)
