"""The loop: exact resume after faults anywhere, early stop, the best checkpoint, and refusals."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from pointer_testing import SMALL_WORKLOAD, write_data

from recipes.errors import RecipeError
from recipes.pointer_selector import checkpoints, training, workload
from recipes.pointer_selector.checkpoints import load_policy
from recipes.pointer_selector.config import PointerRecipe, SplitConfig, WorkloadConfig, changed
from recipes.pointer_selector.dataset import read_data
from recipes.pointer_selector.metrics import RunLog
from recipes.pointer_selector.preparation import by_split
from recipes.pointer_selector.training import Trainer
from recipes.pointer_selector.workload import FrozenModel
from recipes.runs.metrics import read_history

SMALL = {"policy.hidden": 16, "policy.heads": 2, "data.batch_size": 8, "reward.mode": "probability"}
SMALL |= {"rce.epochs": 2, "rce.lr": 1e-3, "grpo.epochs": 2, "grpo.lr": 1e-3, "grpo.kl.adaptive": True}
SMALL |= {"validation.train_queries": 10, "trainer.early_stop_patience": 0}
RECIPE = changed(PointerRecipe(), SMALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    workload.build(folder, WorkloadConfig(**SMALL_WORKLOAD))
    table = folder / "embeddings.safetensors"
    parts = by_split(read_data(folder / "candidates.jsonl", table, table), SplitConfig())
    return parts, FrozenModel.load(folder / "frozen_model.npz")


class Fault(Exception):
    """What stands for a crash."""


def trainer(made, folder, recipe=RECIPE, *logs):
    return Trainer(recipe, *made, folder, logs)


def weights(folder):
    return load_policy(folder)[0].state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    run = trainer(made, folder)
    progress = run.run()
    return run.policy.state_dict(), progress, folder


@pytest.mark.parametrize(
    ("function", "call", "save_steps"), [("save", 1, 0), ("save", 4, 3), ("write_whole", 8, 0), ("prune", 4, 0)]
)
def test_a_run_that_crashes_ends_with_the_same_weights(made, whole, tmp_path, monkeypatch, function, call, save_steps):
    recipe = changed(RECIPE, {"trainer.save_steps": save_steps})
    recipe = changed(recipe, {"trainer.logger": ["file"]})
    module = training if function == "write_whole" else checkpoints
    calls, original = iter(range(1, 99)), getattr(module, function)

    def crash(*args):
        if next(calls) == call:
            raise Fault
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, crash)
        with pytest.raises(Fault):
            trainer(made, tmp_path / "run", recipe, RunLog(tmp_path, recipe)).run()
    torch.manual_seed(12345)  # whatever the new process has drawn
    resumed = trainer(made, tmp_path / "run", recipe, RunLog(tmp_path, recipe))
    progress = resumed.run()
    assert same(resumed.policy.state_dict(), whole[0])
    assert progress.as_dict() == whole[1].as_dict()
    assert same(weights(tmp_path / "run"), weights(whole[2]))
    steps = [step for step, data in read_history(tmp_path / "metrics.jsonl") if "actor/lr" in data]
    assert steps == list(range(1, 17))


def test_early_stop_ends_a_phase_and_keeps_its_best(made, tmp_path, monkeypatch):
    values = iter([0.5, 0.6, 0.55, 0.55, 0.6, 0.65, 0.64, 0.64, 0.7])

    def scripted(self, policy):
        value = next(values)
        return {"val-core/pointer_selector/accuracy/mean": value}, value, 0.9

    monkeypatch.setattr("recipes.pointer_selector.training.Validator.__call__", scripted)
    recipe = changed(RECIPE, {"rce.epochs": 9, "grpo.epochs": 9, "trainer.early_stop_patience": 2})
    progress = trainer(made, tmp_path, recipe).run()
    # RCE: 0.5, 0.6, 0.55, 0.55 stop; GRPO from the state of 0.6: 0.6, 0.65, 0.64, 0.64 stop; 0.7 is never reached
    assert progress.ends == {"rce": "stopped early after epoch 3 of 9", "grpo": "stopped early after epoch 3 of 9"}
    assert (progress.warm_up.epoch, progress.warm_up.value) == (1, 0.6)
    assert (progress.best.phase, progress.best.epoch, progress.best.value) == ("grpo", 1, 0.65)
    assert next(values) == 0.7


@pytest.mark.parametrize("phase", ["rce", "grpo"])
def test_either_phase_learns_which_logged_candidates_are_right(tmp_path, phase):
    path, table = write_data(tmp_path, queries=16)
    parts = by_split(read_data(path, table, table), SplitConfig())
    epochs = {"rce.epochs": 0, "grpo.epochs": 0, f"{phase}.epochs": 25, f"{phase}.lr": 5e-3}
    values = {"policy.hidden": 32, "policy.start": "random", "policy.dropout": 0.0, "data.batch_size": 4}
    values |= {"rce.tau_start": 0.1, "rce.tau_end": 0.1, "grpo.kl.beta": 0.0, "grpo.kl.adaptive": False}
    recipe = changed(RECIPE, {**values, **epochs, "data.shot_num": 2, "reward.mode": "correctness"})
    seen = []
    Trainer(recipe, parts, None, tmp_path / "run", [], lambda r: seen.append(r.metrics)).run()
    curve = [metrics["train-core/pointer_selector/accuracy/mean"] for metrics in seen]
    assert curve[0] < 0.75 < 0.9 < max(curve)


def test_bad_gradients_name_the_queries(made, tmp_path):
    run = trainer(made, tmp_path)
    with torch.no_grad():
        run.policy.state_norm.weight.fill_(float("nan"))
    with pytest.raises(RecipeError, match="gradient is not finite at step 1") as caught:
        run.run()
    assert any(query in caught.value.where for query in made[0]["train"].query_ids)


def test_another_run_and_broken_checkpoints_are_not_resumed(made, whole, tmp_path):
    parts, model = made
    with pytest.raises(RecipeError, match=r"another recipe .*grpo.lr: 0.001 -> 1e-05"):
        trainer(made, whole[2], changed(RECIPE, {"grpo.lr": 1e-5})).run()
    fewer = parts | {"train": parts["train"].keep_queries(np.arange(len(parts["train"])) > 0)}
    with pytest.raises(RecipeError, match="trained on other data"):
        Trainer(RECIPE, fewer, model, whole[2]).run()
    shutil.copytree(whole[2], tmp_path, dirs_exist_ok=True)
    for path, message in (
        (checkpoints.latest(tmp_path) / "trainer_state.pt", "state is broken"),
        (checkpoints.resolve(tmp_path) / "model.safetensors", "selector cannot be read"),
    ):
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(RecipeError, match=message):
            trainer(made, tmp_path).run() if path.suffix == ".pt" else load_policy(tmp_path)
