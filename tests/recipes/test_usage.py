"""What the launcher offers to type next."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from recipes import usage
from recipes.config import load
from recipes.monitor import summary
from recipes.monitor.summary import Checkpoint, shown
from recipes.paths import ROOT, run_dir


@pytest.fixture
def recipe():
    return load("countdown", arguments=["trainer.max_steps=4"], environ={}, hardware="cpu")


def test_evaluate_with_this_python_and_train_on_with_the_users_variables(recipe):
    checkpoint = Checkpoint(4, Path("c/global_step_4"), Path("c/global_step_4/actor/hugging face"))
    environ = {"LR": "1e-4", "HARDWARE": "cpu", "MAX_STEPS": "4", "MODEL_PATH": "", "OTHER": "x"}
    commands = dict(summary.next_commands(recipe, checkpoint, 4, environ))
    python = shown(Path(sys.executable))  # relative where the environment lies in the user's folder
    assert commands == {
        "report": f"{python} -m recipes.monitor report countdown",
        "evaluate": f"{python} {shown(ROOT / 'scripts' / 'eval.py')} reward --run {shown(run_dir('countdown'))}",
        "more steps": "HARDWARE=cpu LR=1e-4 MAX_STEPS=8 bash examples/countdown/qwen3_4b_countdown_grpo.sh",
    }


def test_a_checkpoint_without_a_model_cannot_be_evaluated(recipe):
    checkpoint = Checkpoint(4, Path("c/global_step_4"), None)
    assert [purpose for purpose, _ in summary.next_commands(recipe, checkpoint, 4, {})] == ["report", "more steps"]
    assert [purpose for purpose, _ in summary.next_commands(recipe, None, 4, {})] == ["report"]


def test_a_task_without_a_launcher_of_its_own_has_the_general_one():
    assert summary.launcher("countdown") == "bash examples/countdown/qwen3_4b_countdown_grpo.sh"
    assert summary.launcher("mine") == "bash scripts/launch.sh mine"


def test_help_names_every_task_and_algorithm():
    out = io.StringIO()
    usage.show(Console(file=out, width=200))
    for name in ("countdown", "gsm8k", "dr_grpo", "reinforce_plus_plus_baseline", "ALGORITHM"):
        assert name in out.getvalue()
