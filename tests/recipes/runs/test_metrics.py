"""Metrics and responses, read while they are written."""

import json

import pytest

from recipes.config import load
from recipes.runs.metrics import MetricsFollower, Step, per_token, read_history


def line(step, **data):
    return json.dumps({"step": step, "data": data}) + "\n"


def test_lines_are_copied_when_they_are_whole_and_a_second_attempt_appends(tmp_path):
    first, second, history = tmp_path / "1", tmp_path / "2", tmp_path / "metrics.jsonl"
    follower = MetricsFollower(first, history)
    assert follower.poll() == []
    first.write_text(line(1, a=1.0) + line(2, a=2.0)[:7])
    assert [step.step for step in follower.poll()] == [1]
    first.write_text(line(1, a=1.0) + line(2, a=2.0))
    assert [step.data for step in follower.poll()] == [{"a": 2.0}]
    assert follower.poll() == []
    second.write_text(line(2, b=5.0) + line(3, a=6.0))
    MetricsFollower(second, history).poll()
    assert history.read_text() == first.read_text() + second.read_text()
    assert read_history(history) == [(1, {"a": 1.0}), (2, {"a": 2.0, "b": 5.0}), (3, {"a": 6.0})]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"])
def test_entropy_and_kl_are_per_token_whatever_the_loss_averages_over(mode):
    """As verl aggregates them; with responses of one length all averages agree."""
    torch = pytest.importorskip("torch")
    agg_loss = pytest.importorskip("verl.trainer.ppo.core_algos").agg_loss
    keys = (f"worker.actor.loss_agg_mode={mode}", "data.rollout_batch_size=2", "worker.rollout.n=3")
    recipe = load("countdown", arguments=(*keys, "worker.actor.global_batch_size=2"), environ={}, hardware="cpu")
    limit = recipe.data.max_response_length
    entropy, mask = torch.full((6, limit), 0.138), torch.zeros(6, limit)
    mask[:, :10] = 1
    logged = float(agg_loss(entropy, mask, mode))
    step = per_token(Step(1, {"actor/entropy": logged, "actor/kl_loss": logged, "response_length/mean": 10.0}), recipe)
    assert (step.get("actor/entropy"), step.get("actor/kl_loss")) == pytest.approx((0.138, 0.138))
