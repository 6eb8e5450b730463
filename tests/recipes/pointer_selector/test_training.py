"""The loop: exact resume after faults anywhere, early stop, the best checkpoint, and refusals."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import pytest
import torch
from pointer_testing import SMALL_WORKLOAD, write_data

from recipes.errors import RecipeError
from recipes.monitor.metrics import read_history
from recipes.pointer_selector import checkpoints, workload
from recipes.pointer_selector.checkpoints import load_policy
from recipes.pointer_selector.config import PointerRecipe, SplitConfig, WorkloadConfig, changed
from recipes.pointer_selector.data import read_data
from recipes.pointer_selector.metrics import JsonLines, Sinks, findings_of_curves, findings_of_epoch
from recipes.pointer_selector.preparation import by_split
from recipes.pointer_selector.training import Trainer
from recipes.pointer_selector.workload import FrozenModel

RECIPE = changed(
    PointerRecipe(),
    {
        "policy.hidden": 16,
        "policy.heads": 2,
        "data.batch_size": 8,
        "rce.epochs": 2,
        "rce.lr": 1e-3,
        "grpo.epochs": 2,
        "grpo.lr": 1e-3,
        "grpo.kl.adaptive": True,
        "validation.train_queries": 10,
        "trainer.early_stop_patience": 0,
        "reward.mode": "probability",
    },
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    workload.build(folder, WorkloadConfig(**SMALL_WORKLOAD))
    table = folder / "embeddings.safetensors"
    parts = by_split(read_data(folder / "candidates.json", table, table), SplitConfig())
    return parts, FrozenModel.load(folder / "frozen_model.npz")


class Fault(Exception):
    """What stands for a crash."""


class FaultySink:
    """Crashes when a step is logged: after the update, before anything is saved."""

    def __init__(self, step):
        self.step = step

    def write(self, step, data):
        if step == self.step:
            raise Fault

    def close(self):
        pass


def trainer(made, folder, recipe=RECIPE, sink=None, **extra):
    parts, model = made
    return Trainer(recipe, parts, extra.pop("model", model), folder, Sinks([sink] if sink else []), **extra)


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


@pytest.mark.parametrize(("step", "save_steps"), [(1, 0), (5, 0), (8, 0), (9, 0), (14, 0), (7, 3), (11, 3), (16, 3)])
def test_a_run_that_crashes_ends_with_the_same_weights(made, whole, tmp_path, step, save_steps):
    recipe = changed(RECIPE, {"trainer.save_steps": save_steps})
    with pytest.raises(Fault):
        trainer(made, tmp_path, recipe, FaultySink(step)).run()
    torch.manual_seed(12345)  # whatever the new process has drawn
    resumed = trainer(made, tmp_path, recipe)
    progress = resumed.run()
    assert same(resumed.policy.state_dict(), whole[0])
    assert progress.as_dict() == whole[1].as_dict()
    assert same(weights(tmp_path), weights(whole[2]))


@pytest.mark.parametrize("function", ["save", "point", "point_latest", "prune"])
@pytest.mark.parametrize("call", [1, 4])
def test_a_crash_while_saving_loses_nothing(made, whole, tmp_path, function, call, monkeypatch):
    original, calls = getattr(checkpoints, function), []

    def faulty(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            raise Fault
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, function, faulty)
        with pytest.raises(Fault):
            trainer(made, tmp_path).run()
    resumed = trainer(made, tmp_path)
    resumed.run()
    assert same(resumed.policy.state_dict(), whole[0])


def test_a_crash_between_writing_and_renaming_leaves_no_half_checkpoint(made, tmp_path, monkeypatch):
    def broken(*_):
        raise Fault

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "replace", broken)
        with pytest.raises(Fault):
            trainer(made, tmp_path).run()
    assert checkpoints.latest(tmp_path) is None
    trainer(made, tmp_path).run()
    assert not list(tmp_path.glob(".partial*"))


def test_a_killed_process_is_resumed_to_the_same_weights(made, whole, tmp_path):
    """SIGKILL at three moments, each some steps further on."""
    history = tmp_path / "metrics.jsonl"
    recipe = changed(RECIPE, {"trainer.save_steps": 2})
    killed = 0
    for lines in (3, 12, 20):
        child = os.fork()
        if child == 0:
            try:
                trainer(made, tmp_path / "run", recipe, JsonLines(history)).run()
            finally:
                os._exit(0)
        limit = time.monotonic() + 60
        while time.monotonic() < limit and os.waitpid(child, os.WNOHANG) == (0, 0):
            if history.is_file() and history.read_text().count("\n") >= lines:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                killed += 1
                break
            time.sleep(0.001)
    assert killed >= 2
    resumed = trainer(made, tmp_path / "run", recipe, JsonLines(history))
    resumed.run()
    assert same(resumed.policy.state_dict(), whole[0])
    steps = [step for step, data in read_history(history) if "actor/lr" in data]
    assert steps == list(range(1, 17))


def test_a_finished_run_does_nothing_more(made, whole):
    before = sorted(path.name for path in whole[2].iterdir())
    again = trainer(made, whole[2])
    assert again.run().as_dict() == whole[1].as_dict()
    assert sorted(path.name for path in whole[2].iterdir()) == before


def test_only_checkpoints_that_are_pointed_to_are_kept(whole):
    folder = whole[2]
    pointed = {json.loads((folder / name).read_text())["folder"] for name in ("best.json", "warm_up.json")}
    pointed.add(f"global_step_{(folder / checkpoints.LATEST).read_text().strip()}")
    assert {path.name for path in folder.glob("global_step_*")} == pointed


def test_the_best_checkpoint_is_the_one_that_validated_best(made, tmp_path):
    seen = []
    run = trainer(made, tmp_path, on_epoch=lambda report: seen.append(report))
    progress = run.run()
    values = {(r.phase, r.epoch): r.metrics["val-core/pointer_selector/accuracy/mean"] for r in seen}
    assert progress.best.value == max(values.values())
    assert progress.best.value == values[(progress.best.phase, progress.best.epoch)]
    again = run.validator(load_policy(tmp_path)[0])[1]
    assert again == progress.best.value
    warm_up = max(value for (phase, _), value in values.items() if phase == "rce")
    assert values[("grpo", 0)] == warm_up  # GRPO starts from the best warm-up, not the last


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


def test_grpo_can_start_from_another_runs_warm_up(made, whole, tmp_path):
    recipe = changed(RECIPE, {"trainer.warm_up_from": str(whole[2] / whole[1].warm_up.folder)})
    run = trainer(made, tmp_path, recipe)
    progress = run.run()
    assert same(run.policy.state_dict(), whole[0])
    assert progress.warm_up.folder == "global_step_0"
    assert same(weights(tmp_path / "global_step_0"), weights(whole[2] / whole[1].warm_up.folder))


def test_a_frozen_backbone_does_not_move(made, tmp_path):
    run = trainer(made, tmp_path, changed(RECIPE, {"grpo.freeze_backbone": True, "grpo.lr": 1e-2}))
    progress = run.run()
    before = weights(tmp_path / progress.warm_up.folder)
    moved = {name for name, value in run.policy.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert not {name for name in moved if "tower" in name}


@pytest.mark.parametrize("phase", ["rce", "grpo"])
def test_either_phase_learns_which_logged_candidates_are_right(tmp_path, phase):
    path, table = write_data(tmp_path, queries=16)
    parts = by_split(read_data(path, table, table), SplitConfig())
    values = {
        "policy.hidden": 32,
        "policy.start": "random",
        "policy.dropout": 0.0,
        "data.batch_size": 4,
        "data.shot_num": 2,
        "reward.mode": "correctness",
        "rce.epochs": 25 if phase == "rce" else 0,
        "rce.tau_start": 0.1,
        "rce.tau_end": 0.1,
        "grpo.epochs": 25 if phase == "grpo" else 0,
        "grpo.kl.beta": 0.0,
        "grpo.kl.adaptive": False,
        f"{phase}.lr": 5e-3,
    }
    seen = []
    Trainer(changed(RECIPE, values), parts, None, tmp_path / "run", Sinks([]), lambda r: seen.append(r.metrics)).run()
    curve = [metrics["train-core/pointer_selector/accuracy/mean"] for metrics in seen]
    assert curve[0] < 0.75 < 0.9 < max(curve)
    if phase == "grpo":
        said = {
            "actor/kl_loss",
            "actor/ratio_max",
            "actor/pg_clipfrac",
            "critic/advantages/std",
            "critic/silent_groups",
        }
        assert said <= set(seen[-1])


REFUSALS = {
    "shots": ({"data.shot_num": 2}, "trained for 4 shots, and this run asks for 2"),
    "recipe": ({"grpo.lr": 1e-5}, "another recipe .*grpo.lr: 0.001 -> 1e-05"),
    "resume off": ({"trainer.resume": False}, "trainer.resume is off"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_another_run_is_not_resumed(made, whole, name):
    values, message = REFUSALS[name]
    with pytest.raises(RecipeError, match=message):
        trainer(made, whole[2], changed(RECIPE, values)).run()


def test_other_data_is_not_resumed(made, whole):
    parts, model = made
    fewer = parts | {"train": parts["train"].keep_queries(np.arange(len(parts["train"])) > 0)}
    with pytest.raises(RecipeError, match="trained on other data"):
        Trainer(RECIPE, fewer, model, whole[2], Sinks([])).run()


def test_a_warm_up_for_other_shots_or_of_another_shape_is_refused(made, whole, tmp_path):
    start = str(whole[2])
    with pytest.raises(RecipeError, match="trained for 4 shots, and this run asks for 3"):
        trainer(made, tmp_path, changed(RECIPE, {"trainer.warm_up_from": start, "data.shot_num": 3})).run()
    with pytest.raises(RecipeError, match="'layers': 1.*'layers': 2"):
        trainer(made, tmp_path, changed(RECIPE, {"trainer.warm_up_from": start, "policy.layers": 2})).run()


def test_broken_checkpoints_are_named(made, tmp_path):
    trainer(made, tmp_path).run()
    folder = checkpoints.latest(tmp_path)
    state = folder / "trainer_state.pt"
    content = state.read_bytes()
    state.write_bytes(content[: len(content) // 2])
    with pytest.raises(RecipeError, match="state is broken"):
        trainer(made, tmp_path).run()
    state.unlink()
    with pytest.raises(RecipeError, match="cannot be resumed from"):
        trainer(made, tmp_path).run()
    best = checkpoints.resolve(tmp_path) / "model.safetensors"
    best.write_bytes(best.read_bytes()[:100])
    with pytest.raises(RecipeError, match="selector cannot be read"):
        load_policy(tmp_path)
    with pytest.raises(RecipeError, match="no trained selector"):
        load_policy(tmp_path / "nothing")


def test_gradients_that_are_not_finite_name_the_queries(made, tmp_path):
    run = trainer(made, tmp_path)
    with torch.no_grad():
        run.policy.state_norm.weight.fill_(float("nan"))
    with pytest.raises(RecipeError, match="gradient is not finite at step 1") as caught:
        run.run()
    assert any(query in caught.value.where for query in made[0]["train"].query_ids)


def test_without_a_frozen_model_logged_candidates_are_ranked(tmp_path):
    path, table = write_data(tmp_path, queries=40)
    parts = by_split(read_data(path, table, table), SplitConfig())
    recipe = changed(RECIPE, {"data.shot_num": 2, "policy.start": "random"})
    seen = []
    progress = Trainer(recipe, parts, None, tmp_path / "run", Sinks([]), lambda r: seen.append(r.metrics)).run()
    assert {k for k in seen[0] if k.startswith("val-core") and "@" in k} == {
        "val-core/pointer_selector/acc/shots@1",
        "val-core/pointer_selector/acc/shots@2",
    }
    assert 0 < progress.best.value < 1


def test_pools_smaller_than_the_shots_are_named(tmp_path):
    path, table = write_data(tmp_path, pool=3, shots=(1,))
    parts = by_split(read_data(path, table, table), SplitConfig())
    model = FrozenModel(
        *(torch.zeros(20, 4) for _ in range(2)),
        *[torch.zeros(20, dtype=torch.long)] * 1,
        torch.zeros(20, 4),
        torch.zeros(20, dtype=torch.long),
        1.0,
        1.0,
    )
    recipe = changed(RECIPE, {"data.shot_num": 1, "policy.start": "random"})
    with pytest.raises(RecipeError, match="pool of query '.*' has 3 examples, fewer than 4 shots"):
        Trainer(recipe, parts, model, tmp_path / "run", Sinks([])).run()


def test_health_is_judged_in_words():
    codes = {
        f.code for f in findings_of_epoch({"actor/kl_loss": 0.5, "actor/pg_clipfrac": 0.5, "actor/ratio_max": 40.0})
    }
    assert codes == {"kl_high", "clip_high", "ratio_high"}
    inflated = findings_of_epoch({"actor/kl_loss": 900.0, "val-aux/pointer_selector/kl_on_policy": 0.3})
    assert [f.code for f in inflated] == ["kl_inflated"]
    assert [f.code for f in findings_of_epoch({"actor/kl_loss": 0.002})] == ["kl_low"]
    assert findings_of_epoch({"actor/kl_loss": 0.05, "critic/silent_groups": 0.2, "critic/advantages/std": 0.7}) == []
    assert [f.code for f in findings_of_epoch({"critic/silent_groups": 0.9})] == ["silent"]
    assert [f.code for f in findings_of_curves([0.5, 0.7, 0.8, 0.9], [0.5, 0.6, 0.58, 0.55])] == ["over_fit"]
    assert [f.code for f in findings_of_curves([0.5, 0.5, 0.5], [0.6, 0.6, 0.6])] == ["no_gain"]
    assert findings_of_curves([0.5, 0.6], [0.5, 0.6]) == []


def test_history_survives_half_a_line(tmp_path):
    path = tmp_path / "m.jsonl"
    sink = JsonLines(path)
    sink.write(1, {"a": 1.0, "b": float("nan")})
    sink.close()
    with path.open("a") as file:
        file.write('{"step": 2, "da')
    sink = JsonLines(path)
    sink.write(1, {"a": 2.0})
    sink.write(2, {"a": 3.0})
    sink.close()
    assert read_history(path) == [(1, {"a": 2.0, "b": None}), (2, {"a": 3.0})]
