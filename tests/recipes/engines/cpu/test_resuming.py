"""Damaged and changed checkpoints of the real trainer: what the next start decides, and what then takes effect.

Four starts make and resume one experiment; every damage is done to a copy of its checkpoints. The decisions are the
table of docs/FAULTS.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from recipes.config import load
from recipes.engines.checkpoints import EVERYTHING, MODEL, checkpoint_at, last_checkpoint
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import resume
from recipes.runs.folder import read_changes
from recipes.runs.metrics import read_history

pytestmark = pytest.mark.trainer

PAGE = ROOT / "docs" / "FAULTS.md"
BEGIN, END = "<!-- generated: decisions -->", "<!-- end of decisions -->"
REWARD = f"""
import importlib.util

import bonus

spec = importlib.util.spec_from_file_location("countdown", {str(ROOT / "reward_functions" / "countdown.py")!r})
countdown = importlib.util.module_from_spec(spec)
spec.loader.exec_module(countdown)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    result = countdown.compute_score(data_source, solution_str, ground_truth, extra_info)
    return {{**result, "score": result["score"] + bonus.BONUS}}
"""
LR, NEW_LR = 1e-4, 3e-4


@dataclass(frozen=True)
class Experiment:
    """Countdown on its tiny model, which saves each step, with a reward of its own."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "artifacts" / "checkpoints" / "countdown"

    @property
    def run_folder(self) -> Path:
        return self.folder / "artifacts" / "runs" / "countdown"

    @property
    def keys(self) -> list[str]:
        return [
            f"worker.reward.reward_function={self.folder / 'rewards' / 'mine.py'}",
            *("data.max_response_length=32", "worker.rollout.n=4", "trainer.save_freq=1", "trainer.val_freq=-1"),
            "trainer.val_before_train=false",
        ]

    def start(self, *keys: str, **variables: str) -> str:
        """Train to the end; what the launcher printed."""
        environ = {**os.environ, **self.environ, **variables}
        command = [sys.executable, "-m", "recipes.launch", "countdown", *self.keys, *keys]
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
        text = done.stdout + done.stderr
        log = self.run_folder / "train.log"
        assert done.returncode == 0, text + (log.read_text(errors="replace")[-4000:] if log.exists() else "")
        return text

    @property
    def environ(self) -> dict[str, str]:
        helper = f"{ROOT}:{self.folder / 'rewards'}"
        return {"ARTIFACTS_DIR": str(self.folder / "artifacts"), "HARDWARE": "cpu", "PYTHONPATH": helper}

    def decision(self, *keys: str, **variables: str) -> str:
        """What a start would say first of its checkpoints, a refusal with its first way on."""
        recipe = load("countdown", arguments=[*self.keys, *keys], environ={"HARDWARE": "cpu", **variables})
        try:
            return "; ".join(resume.check_resume(recipe)[:3])
        except RecipeError as error:
            return f"refused: {error.what}"

    def rates(self) -> dict[int, float]:
        return {step.step: step.get("actor/lr") for step in read_history(self.run_folder / "metrics.jsonl")}


def delete(*patterns: str) -> Callable[[Path], None]:
    def damage(saved: Path) -> None:
        for pattern in patterns:
            for file in saved.glob(pattern):
                shutil.rmtree(file) if file.is_dir() else file.unlink()

    return damage


def halve(name: str) -> Callable[[Path], None]:
    return lambda saved: os.truncate(saved / name, (saved / name).stat().st_size // 2)


OPTIM = "actor/optim_world_size_1_rank_0.pt"
DAMAGES = [
    ("the optimiser's file cut off", halve(OPTIM), "is cut off"),
    ("`actor/optim*` deleted", delete("actor/optim*"), "optim_world_size_1_rank_0.pt is missing"),
    ("all `*.pt` deleted", delete("**/*.pt"), "is missing"),
    ("`actor/` deleted", delete("actor"), "is missing"),
    ("`data.pt` deleted", delete("data.pt"), "data.pt is missing"),
    ("the weights' file empty", lambda saved: os.truncate(saved / "actor/model_world_size_1_rank_0.pt", 0), "is empty"),
]
"""Of the last of three steps."""
CHANGES = [
    ("the reward's helper", "rewards/bonus.py", "BONUS = 0.5\n", (), "reward: another bonus.py"),
    ("the learning rate", None, "", ("worker.actor.optim.lr=3e-4",), "worker.actor.optim.lr: 0.0001 -> 0.0003"),
    ("the KL coefficient", None, "", ("algorithm.kl_coef=0.5",), "algorithm.kl_coef"),
    ("the precision", None, "", ("worker.actor.fsdp.torch_dtype=bf16",), "worker.actor.fsdp.torch_dtype"),
    ("`save_model_only`", None, "", ("trainer.save_model_only=true",), "trainer.save_model_only: False -> True"),
    ("rows in the same file", "artifacts/data/countdown_tiny/test.parquet", None, (), "validation rows: "),
]


def test_what_a_start_makes_of_the_checkpoints_before_it(tmp_path, monkeypatch):
    rewards = tmp_path / "rewards"
    rewards.mkdir()
    (rewards / "mine.py").write_text(REWARD)
    (rewards / "bonus.py").write_text("BONUS = 0.0\n")
    experiment = Experiment(tmp_path)
    experiment.start(MAX_STEPS="3")
    assert checkpoint_at(experiment.checkpoints, 3).holds() == EVERYTHING
    monkeypatch.setenv("ARTIFACTS_DIR", experiment.environ["ARTIFACTS_DIR"])

    rows = []
    backup = tmp_path / "backup"
    shutil.copytree(experiment.checkpoints, backup)
    for name, damage, problem in DAMAGES:
        damage(experiment.checkpoints / "global_step_3")
        said = experiment.decision(MAX_STEPS="3")
        assert problem in said
        assert "resuming from step 2" in said
        rows.append([f"{name}, last step", "goes on from the step before, and names the file"])
        shutil.rmtree(experiment.checkpoints)
        shutil.copytree(backup, experiment.checkpoints)
    for name, file, text, keys, difference in CHANGES:
        place = tmp_path / (file or "rewards/bonus.py")
        before = place.read_bytes()
        if text is None:
            shutil.copy(place.with_name("train.parquet"), place)
        elif file:
            place.write_text(text)
        assert difference in (said := experiment.decision(*keys, MAX_STEPS="3")), said
        assert said.startswith("refused: the checkpoints are another run's")
        said = experiment.decision(*keys, MAX_STEPS="3", RESUME="changed")
        assert said.startswith("resuming from step 3"), said
        assert f"changed: {difference}" in said
        place.write_bytes(before)
        rows.append([f"{name} changed", "refused; `RESUME=changed` goes on with it, and says so"])
    model = load("countdown", arguments=experiment.keys, environ={"HARDWARE": "cpu"}).worker.actor.model.model_path
    shutil.copytree(model, tmp_path / "other")
    weights = next((tmp_path / "other").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\1\2\3\4")
    said = experiment.decision(f"worker.actor.model.model_path={tmp_path / 'other'}", RESUME="changed")
    assert "the checkpoint belongs to that model" in said
    rows.append(["the model changed", "refused, also with `RESUME=changed`: the checkpoint belongs to that model"])

    delete("actor/optim*")(experiment.checkpoints / "global_step_3")
    (rewards / "bonus.py").write_text("BONUS = 0.5\n")
    changed = (f"worker.actor.optim.lr={NEW_LR}", "data.seed=7", "trainer.save_model_only=true")
    text = experiment.start(*changed, MAX_STEPS="4", RESUME="changed")
    assert "resuming from step 2" in text
    assert "the data begins anew" in text
    assert experiment.rates()[2] == pytest.approx(LR)
    assert experiment.rates()[4] == pytest.approx(NEW_LR), "the new learning rate did not take effect"
    assert checkpoint_at(experiment.checkpoints, 4).holds() == {MODEL}
    names = {change.name for each in read_changes(experiment.run_folder) for change in each.changes}
    assert names == {"reward", "worker.actor.optim.lr", "data.seed", "trainer.save_model_only"}
    rows.append(
        ["a step saved with `save_model_only`, the same again", "goes on with its weights; says what begins anew"]
    )

    text = experiment.start(*changed[:2], MAX_STEPS="5", RESUME="changed")
    assert "step 4 was saved without the optimiser's state and schedule and random state" in text
    assert experiment.rates()[5] == pytest.approx(NEW_LR)
    assert last_checkpoint(experiment.checkpoints).holds() == EVERYTHING
    rows.append(["`save_model_only` true -> false", "refused; `RESUME=changed` goes on with the weights alone"])

    record = experiment.checkpoints / resume.RECORD
    record.write_text(json.dumps({"recipe": "countdown", "engine": "verl", "ranks": 1}))
    assert "refused: no recipe.json" in experiment.decision(*changed[:2])
    rows.append(["a record of another form", "refused, says what cannot be known; `RESUME=changed` goes on"])
    shutil.rmtree(experiment.checkpoints)
    assert "has no checkpoint: the run begins" in experiment.decision(RESUME="changed")
    rows.append(["`RESUME=changed` without a checkpoint", "says so, and begins"])
    _write(rows)


def _write(rows: list[list[str]]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = ["| what | the next start |", "| --- | --- |", *("| " + " | ".join(row) + " |" for row in rows)]
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", encoding="utf-8")
