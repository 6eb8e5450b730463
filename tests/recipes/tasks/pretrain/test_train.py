"""Training: learns, goes on where it was, and refuses another plan's leftovers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recipes.errors import RecipeError
from recipes.tasks import pretrain
from recipes.tasks.countdown import pretraining as countdown
from recipes.tasks.gsm8k import pretraining as gsm8k
from recipes.tasks.pretrain import IGNORED, Shape, encode

SMALL = Shape(hidden=32, layers=1, heads=1, kv_heads=1, intermediate=64)
COUNTDOWN, GSM8K = countdown.COUNTDOWN, gsm8k.GSM8K
PLAN = replace(countdown.PLAN, examples=64, steps=6, batch=16, warmup=2, shape=SMALL)
PLANS = [(COUNTDOWN, countdown.PLAN), (GSM8K, gsm8k.PLAN)]


def drawn_from(task, plan, count):
    return task.build_tokenizer(), list(task.examples(plan.annotators, plan.settings, 0, count))


@pytest.mark.parametrize(("task", "plan"), PLANS, ids=["countdown", "gsm8k"])
def test_batches_ask_for_the_response_and_nothing_else(task, plan):
    tokenizer, drawn = drawn_from(task, plan, 30)
    batches = encode(tokenizer, drawn, "cpu", seed=0)
    for example, inputs, labels in zip(drawn, batches.inputs, batches.labels, strict=True):
        asked = labels != IGNORED
        assert tokenizer.decode(labels[asked]) == example.response + "<|im_end|>"
        inner = asked[:-1] & (labels[:-1] != tokenizer.eos_token_id)
        assert torch.equal(inputs[1:][inner], labels[:-1][inner])  # labels are the inputs, one step on
        assert example.prompt in tokenizer.decode(inputs)


def test_an_epoch_sees_every_demonstration_once_and_in_its_own_order():
    batches = encode(*drawn_from(COUNTDOWN, PLAN, 32), "cpu", seed=0)
    epochs = [torch.cat([batches.at(step, 8)[0] for step in range(start, start + 4)]) for start in (0, 4)]
    assert not torch.equal(*epochs)
    for epoch in epochs:
        assert sorted(map(tuple, epoch.tolist())) == sorted(map(tuple, batches.inputs.tolist()))


def test_learning_rate_rises_then_falls_to_a_twentieth():
    plan = replace(PLAN, steps=1000, warmup=50, lr=1e-3)
    assert plan.rate(0) == pytest.approx(2e-5)
    assert plan.rate(49) == pytest.approx(1e-3)
    assert plan.rate(999) == pytest.approx(5e-5, rel=0.03)
    assert max(map(plan.rate, range(1000))) <= 1e-3


def test_it_learns(tmp_path):
    losses = []
    plan = replace(PLAN, steps=50, lr=2e-2)
    pretrain.pretrain(COUNTDOWN, plan, tmp_path / "work", device="cpu", progress=lambda step, loss: losses.append(loss))
    assert losses[0] < 3.3, losses  # an untrained model is at log(464) = 6.1


def test_an_interrupted_training_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    whole, _, _ = pretrain.pretrain(COUNTDOWN, PLAN, tmp_path / "whole", device="cpu", save_every=2)
    real, steps = pretrain._step, []

    def interrupted(plan, step, *rest):
        steps.append(step)
        if step == 3 and steps.count(3) == 1:
            raise KeyboardInterrupt
        return real(plan, step, *rest)

    monkeypatch.setattr(pretrain, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain(COUNTDOWN, PLAN, tmp_path / "parts", device="cpu", save_every=2)
    parts, _, _ = pretrain.pretrain(COUNTDOWN, PLAN, tmp_path / "parts", device="cpu", save_every=2)
    assert steps == [0, 1, 2, 3, 2, 3, 4, 5]
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], weight, msg=name)


def test_leftovers_of_another_plan_are_refused(tmp_path):
    pretrain.pretrain(COUNTDOWN, replace(PLAN, steps=1), tmp_path / "work", device="cpu")
    with pytest.raises(RecipeError, match="other settings") as error:
        pretrain.pretrain(COUNTDOWN, replace(PLAN, steps=1, seed=9), tmp_path / "work", device="cpu")
    assert str(tmp_path / "work") in str(error.value)


def test_training_stops_early_and_goes_on_later_as_if_it_had_not(tmp_path):
    whole, _, _ = pretrain.pretrain(COUNTDOWN, PLAN, tmp_path / "whole", device="cpu")
    seen = []
    early, _, seconds = pretrain.pretrain(
        COUNTDOWN, PLAN, tmp_path / "parts", device="cpu", stop=3, progress=lambda step, loss: seen.append(step)
    )
    again, _, spent = pretrain.pretrain(COUNTDOWN, PLAN, tmp_path / "parts", device="cpu", stop=3)
    assert 0 < spent <= seconds
    parts, _, _ = pretrain.pretrain(
        COUNTDOWN, PLAN, tmp_path / "parts", device="cpu", progress=lambda step, loss: seen.append(step)
    )
    assert seen == [3, PLAN.steps]
    for name, weight in early.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, msg=name)
        torch.testing.assert_close(parts.state_dict()[name], whole.state_dict()[name], msg=name)
    assert not torch.equal(early.lm_head.weight, parts.lm_head.weight)
