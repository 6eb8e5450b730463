"""With one update a step, the losses without an old pass have the value and gradient of those with one."""

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from recipes.config.schema import verl_loss
from recipes.config.schema.worker import LossType
from recipes.engines.verl import on_policy

on_policy.register()

RESPONSES, TOKENS, VOCABULARY = 4, 6, 11
OFFERED = [verl_loss(name) for name in LossType.__args__]


def one_update(loss_mode: str, noise: float):
    """Value, gradient and metrics of the loss for a small policy; `noise` is how far vLLM's log-probabilities are."""
    torch.manual_seed(0)
    features, tokens = torch.randn(RESPONSES, TOKENS, 8), torch.randint(0, VOCABULARY, (RESPONSES, TOKENS))
    weight = torch.randn(8, VOCABULARY, requires_grad=True)
    mask = torch.arange(TOKENS) < torch.tensor([6, 3, 1, 5])[:, None]
    advantages = torch.tensor([1.0, -0.7, 0.4, -1.3])[:, None] * mask
    log_prob = torch.log_softmax(features @ weight, -1).gather(-1, tokens[..., None])[..., 0]
    apart = log_prob.detach() + noise * torch.randn(RESPONSES, TOKENS)
    config = ActorConfig(strategy="fsdp", rollout_n=2, ppo_micro_batch_size_per_gpu=1, ppo_mini_batch_size=2)
    batch = {"old_log_prob": apart, "log_prob": log_prob, "advantages": advantages, "response_mask": mask}
    loss = get_policy_loss_fn(loss_mode)
    value, metrics = loss(**batch, loss_agg_mode="token-mean", config=config, rollout_is_weights=None)
    value.backward()
    return value.detach(), weight.grad, metrics, (log_prob.detach() - apart)[mask]


@pytest.mark.parametrize("loss", sorted(set(OFFERED)))
def test_same_value_and_gradient_as_with_an_old_pass(loss):
    value, gradient, metrics, _ = one_update(loss, noise=0.0)
    own_value, own_gradient, own_metrics, apart = one_update(on_policy.ON_POLICY_PREFIX + loss, noise=0.3)
    torch.testing.assert_close(own_value, value)
    torch.testing.assert_close(own_gradient, gradient)
    assert own_metrics.items() >= metrics.items()
    assert own_metrics["rollout_corr/kl"] == pytest.approx(-apart.mean().item(), rel=1e-4)
