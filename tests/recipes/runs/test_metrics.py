"""Metrics and validations, read while they are written."""

import json
import os

import pytest

from recipes.config import load
from recipes.runs.metrics import MetricsFollower, Step, measured, per_token, read_history


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


def response(uid, score, **more):
    return json.dumps({"input": "p", "output": "o", "gts": "1", "score": score, "uid": uid} | more) + "\n"


def test_rows_whose_images_may_differ_are_told_apart_by_their_ids(tmp_path, monkeypatch):
    """The texts of the prompts are alike; the second row with the same content has `-2` behind its id."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))  # the checkout's may have a run of the recipe
    (tmp_path / "validation").mkdir()
    ids, history = ["0" * 20, "0" * 20 + "-2", "photo", "photo-2"], [Step(3, {"val-core/x/acc/mean@1": 0.5})]
    lines = [response(f"{i}_0_0", 1.0, row_id=row) for i, row in enumerate(ids)]
    (tmp_path / "validation" / "3.jsonl").write_text("".join(lines))
    for recipe, different in ((load("countdown", environ={}, hardware="cpu"), 1), (None, 3)):
        assert measured(tmp_path, recipe, history)[3].different == different
    recipe = load("countdown", arguments=["worker.rollout.limit_images=1"], environ={}, hardware="cpu")
    assert measured(tmp_path, recipe, history)[3].different == 3


def test_a_validation_is_measured_once_it_is_whole_and_again_where_it_changes(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    file, history = tmp_path / "elsewhere" / "3.jsonl", [Step(2, {}), Step(3, {"val-core/x/acc/mean@1": 0.5})]
    text = "".join(response(f"{i}_0_0", 0.1 * i, row_id=str(i), input=str(i)) for i in range(4))
    elsewhere = [f"trainer.validation_data_dir={file.parent}"]
    recipe = load("countdown", arguments=elsewhere, environ={}, hardware="cpu")
    for content, found in (
        (text[:-20], {}),
        (text, {3: ("score", pytest.approx(0.15), pytest.approx(0.0645, abs=1e-4), 4, 4)}),
        (response("a_0_0", 0.4, acc=1.0), {3: ("accuracy", 1.0, 0.0, 1, 1)}),
    ):
        file.write_text(content)
        os.utime(file, (len(content), len(content)))
        assert measured(tmp_path, recipe, history) == found
    assert measured(tmp_path, recipe, history[:1]) == {}, "of an attempt that went further"
