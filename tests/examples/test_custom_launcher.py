"""The custom kit: its launcher from any folder, its help, and one real step with a user's async reward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.config.variables import VARIABLES, usual_name
from recipes.monitor.metrics import read_history, validation
from recipes.paths import ROOT

LAUNCHER = ROOT / "examples" / "custom_task" / "train.sh"
REWARD = '''
async def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Half a point for an answer in the asked form, the rest for a short one."""
    return 0.5 * ("<answer>" in solution_str) + 0.5 / (1 + len(solution_str) // 16)
'''


def start(folder: Path, *words: str, timeout: int = 120, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "ARTIFACTS_DIR": str(folder / "artifacts"), "HARDWARE": "cpu", **variables}
    return subprocess.run(
        ["bash", str(LAUNCHER), *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout
    )


@pytest.fixture
def mine(tmp_path):
    """A folder of a user's, with data and a reward."""
    lines = [{"prompt": f"What is {i} + 1?", "ground_truth": i + 1, "data_source": "gsm8k"} for i in range(300)]
    (tmp_path / "my.json").write_text(json.dumps(lines))
    (tmp_path / "my_reward.py").write_text(REWARD)
    return tmp_path


def test_a_dry_run_from_a_users_folder_with_data_of_its_own(mine):
    words = ["--model", "Qwen/Qwen2.5-7B", "--rollout_n", "8", "--epochs", "20", "--data", "my.json"]
    done = start(mine, *words, "--reward_func", "./my_reward.py", "--dry_run", HARDWARE="gpu")
    assert done.returncode == 0, done.stderr
    for part in (
        "actor_rollout_ref.rollout.n=8",
        "trainer.total_epochs=20",
        f"reward.custom_reward_function.path={mine}/my_reward.py",
        f"trainer.default_local_dir={mine}/artifacts/outputs/checkpoints/custom",
        "# rows: train 285 (gsm8k 285); test 15 (gsm8k 15)",
        "# responses per step: 2,048",
    ):
        assert part in done.stdout
    assert not (mine / "artifacts" / "runs").exists()


def test_help_lists_every_option_with_its_default_and_key():
    done = start(ROOT, "--help")
    assert done.returncode == 0, done.stderr
    for variable in VARIABLES:
        assert f"\n--{usual_name(variable)}" in done.stdout
        assert variable.key in done.stdout
    for line in ("--rollout_n [5]", "--lr [1e-06]", "--data [examples/custom_task/data/example.jsonl]", "--dry_run"):
        assert line in done.stdout


def test_a_mistake_is_one_message(mine):
    done = start(mine, "--rolout_n", "8")
    assert done.returncode == 2
    assert "did you mean --rollout_n?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.trainer
def test_one_real_step_with_a_users_async_reward_on_mixed_data(mine):
    words = ("--reward_func", "./my_reward.py", "--max_steps", "1", "trainer.val_freq=1", "trainer.save_freq=1")
    done = start(mine, *words, timeout=600)
    run = mine / "artifacts" / "runs" / "custom"
    log = (run / "train.log").read_text(errors="replace")[-4000:] if (run / "train.log").is_file() else ""
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{log}"
    assert "step 1/1 | reward " in done.stdout
    first, last = read_history(run / "metrics.jsonl")
    assert set(validation(first)) == set(validation(last)) == {"classification", "math"}
    assert last.get("actor/grad_norm") > 0
    scores = [json.loads(line)["score"] for line in (run / "rollouts" / "1.jsonl").read_text().splitlines()]
    assert len(set(scores)) > 1
    model = mine / "artifacts" / "outputs" / "checkpoints" / "custom" / "global_step_1" / "actor" / "huggingface"
    assert list(model.glob("*.safetensors"))
    assert "MAX_STEPS=2" in done.stdout
    assert "--reward_func ./my_reward.py" in done.stdout
