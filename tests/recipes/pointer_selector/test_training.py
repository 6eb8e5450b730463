"""The loop: going on after faults, early stop, the best checkpoint, and refusals."""

import json

import pytest
import torch

from recipes.pointer_selector import selector, training, workload
from recipes.pointer_selector.config import FilterConfig, resolve
from recipes.pointer_selector.dataset import Prepared, by_split, filtered, read_data
from recipes.pointer_selector.evaluation import TRAINING, VALIDATION
from recipes.pointer_selector.training import RunLog, Trainer
from recipes.runs.metrics import read_history
from tests.mistakes import mistake

SMALL = ["policy.hidden=16", "data.batch_size=8", "rce.epochs=2", "grpo.epochs=2"]
SMALL += ["grpo.kl.adaptive=true", "validation.train_queries=10", "trainer.early_stop_patience=0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    candidates, table, model = workload.prepare(tmp_path_factory.mktemp("workload") / "data")
    return Prepared(by_split(read_data(candidates, table, table)), model, {}, {}, "digest")


class Fault(Exception):
    """What stands for a crash."""


def trainer(made, folder, *changes):
    values = dict(setting.split("=") for setting in (*SMALL, *changes))
    return Trainer(resolve([f"{key}={value}" for key, value in values.items()], environ={}), made, folder, "cpu")


def weights(folder):
    return selector.load(folder)[0].state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def logged(run, folder):
    log = RunLog(folder, run.progress.step)
    run.log = log.write
    try:
        return run.run()
    finally:
        log.close()


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    run = trainer(made, folder)
    return run.policy, logged(run, folder), folder


@pytest.mark.parametrize(
    ("owner", "function", "call"),
    [(training, "rce_step", 5), (training, "write_json", 1), (training, "grpo_step", 7), (training, "write_json", 2)],
)
def test_a_run_that_crashes_ends_with_the_same_weights(made, whole, tmp_path, monkeypatch, owner, function, call):
    calls, original = iter(range(1, 99)), getattr(owner, function)

    def crash(*args):
        if next(calls) == call:
            raise Fault
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, crash)
        with pytest.raises(Fault):
            logged(trainer(made, tmp_path), tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9')  # a line that was cut off
    torch.manual_seed(12345)  # whatever the new process has drawn
    resumed = trainer(made, tmp_path)
    assert logged(resumed, tmp_path) == whole[1]
    assert same(resumed.policy.state_dict(), whole[0].state_dict())
    for part in (selector.WARM_UP, selector.BEST):
        assert same(weights(tmp_path / part), weights(whole[2] / part))
    assert read_history(tmp_path / "metrics.jsonl") == read_history(whole[2] / "metrics.jsonl")
    lines = [(folder / "metrics.jsonl").read_text().count("\n") for folder in (tmp_path, whole[2])]
    assert lines[0] == lines[1], "nothing is logged twice"


def test_shots_are_in_the_order_of_their_numbers():
    values = {f"val-core/pointer_selector/accuracy/mean@{shots}": shots / 100 for shots in (10, 2, 1)}
    assert training.epoch_line(values) == "val 1-shot 1.0% 2-shot 2.0% 10-shot 10.0%"


def test_early_stop_ends_a_phase_and_keeps_its_best(made, tmp_path, monkeypatch):
    values = iter([0.5, 0.6, 0.55, 0.55, 0.6, 0.65, 0.64, 0.64, 0.7])
    monkeypatch.setattr(training, "validate", lambda *inputs: {VALIDATION: next(values), TRAINING: 0.9})
    progress = trainer(made, tmp_path, "rce.epochs=9", "grpo.epochs=9", "trainer.early_stop_patience=2").run()
    # RCE: 0.5, 0.6, 0.55, 0.55 stop; GRPO from the state of 0.6: 0.6, 0.65, 0.64, 0.64 stop; 0.7 is never reached
    assert all(end.startswith("stopped early after epoch 3 ") for end in progress.ends.values())
    warm_up = selector.load(tmp_path / selector.WARM_UP)[1]
    assert (warm_up["epoch"], warm_up["value"]) == (1, 0.6)
    assert (progress.best.phase, progress.best.epoch, progress.best.value) == ("grpo", 1, 0.65)
    assert next(values) == 0.7


@pytest.mark.parametrize("phase", ["rce", "grpo"])
def test_either_phase_learns_which_logged_candidates_are_right(tmp_path, write_data, phase):
    path, table = write_data(tmp_path, queries=16)
    parts = by_split(read_data(path, table, table))
    parts["train"] = filtered(parts["train"], FilterConfig())[0]  # two outcomes of one sequence cannot both be learned
    changes = ["policy.hidden=32", "policy.dropout=0", "data.batch_size=4", "data.shot_num=2"]
    changes += ["reward.mode=correctness", "rce.tau_start=0.1", "rce.tau_end=0.1", "grpo.kl.adaptive=false"]
    changes += ["rce.epochs=0", "grpo.epochs=0", f"{phase}.epochs=40", f"{phase}.lr=5e-3"]
    seen = []
    run = trainer(Prepared(parts, None, {}, {}, ""), tmp_path / "run", *changes)
    run.log = lambda step, metrics: seen.append(metrics)
    run.run()
    curve = [metrics[TRAINING] for metrics in seen if TRAINING in metrics]
    assert curve[0] < 0.75 < 0.9 < max(curve)


def test_bad_gradients_name_the_queries(made, tmp_path):
    run = trainer(made, tmp_path)
    with torch.no_grad():
        run.policy.state_norm.weight.fill_(float("nan"))
    where = mistake(run.run).where
    assert any(query in where for query in made.parts["train"].query_ids)


def test_another_recipe_and_other_data_are_refused(made, whole, tmp_path):
    mistake(lambda: trainer(made, whole[2], "grpo.lr=1e-5"), "grpo.lr")
    mistake(lambda: trainer(Prepared(made.parts, made.model, {}, {}, "other"), whole[2]), "data")
    error = mistake(lambda: trainer(made, tmp_path / "equal", "reward.mode=correctness", "reward.beta=0"))
    assert error.where == "reward.mode=correctness"
    start = f"trainer.start_from={whole[2]}"
    assert same(trainer(made, tmp_path / "new", start).policy.state_dict(), weights(whole[2]))
    mistake(lambda: trainer(made, tmp_path / "new", start, "data.shot_num=3"), "shot_num")
    assert json.loads((whole[2] / "best" / "config.json").read_text())["step"] == whole[1].best.step


def test_over_fitting_and_a_policy_that_stays_are_remarked():
    curves = [(0.5, 0.5), (0.6, 0.6), (0.7, 0.58)]
    assert training.findings({"actor/kl_loss": 0.3}, curves[:2]) == []
    assert "epoch 1" in training.findings({}, curves)[0]
    assert "GRPO_LR" in training.findings({"actor/kl_loss": 0.002}, curves[:2])[0]
    assert training.findings({}, [(0.6, 0.6), (0.5, 0.5)]) == []  # training fell too
