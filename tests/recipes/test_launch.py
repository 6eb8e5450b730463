"""The launcher from end to end, with a trainer that is not the real one."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from recipes import launch
from recipes.config import load
from recipes.errors import RecipeError
from recipes.monitor.metrics import read_history
from recipes.monitor.summary import exit_reason
from recipes.monitor.supervise import Limits
from recipes.paths import ROOT
from recipes.preflight import resume

FAKE = ROOT / "tests" / "recipes" / "monitor" / "fake_trainer.py"
KEYS = ("data.rollout_batch_size=8", "worker.actor.global_batch_size=8", "trainer.save_freq=1", "trainer.max_steps=3")


def fake_engine(mode, steps, folder):
    variables = {"FAKE_PIDS": str(folder / "pids")}

    def environment(recipe):
        return {
            **variables,
            "FAKE_ROLLOUTS": str(recipe.trainer.rollout_data_dir),
            "FAKE_CHECKPOINTS": str(resume.folder(recipe)),
        }

    return SimpleNamespace(
        command=lambda recipe: [sys.executable, str(FAKE), mode, str(steps)], environment=environment
    )


class Launcher:
    """Launches the Countdown recipe with the fake trainer, artifacts in a folder of the test."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.run_dir = folder / "runs" / "countdown"

    def __call__(self, mode="good", steps=3, keys=(), environ=None):
        self._monkeypatch.setitem(launch.ENGINES, "verl", fake_engine(mode, steps, self._folder))
        recipe = load("countdown", arguments=(*KEYS[: 4 - len(keys)], *keys), environ=environ or {}, hardware="cpu")
        out = io.StringIO()
        code = launch.run(recipe, Console(file=out, width=300))
        return code, out.getvalue()


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """The tiny data, made once."""
    folder = tmp_path_factory.mktemp("rows")
    command = [sys.executable, "scripts/data_prep_countdown.py", "--preset", "tiny"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "ARTIFACTS_DIR": str(folder)}, check=True, capture_output=True)
    return folder / "data"


@pytest.fixture
def launched_without_data(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    for name in ("MAX_STEPS", "EXPERIMENT_NAME", "WATCHDOG_MINUTES"):
        monkeypatch.delenv(name, raising=False)
    return Launcher(tmp_path, monkeypatch)


@pytest.fixture
def launched(launched_without_data, tmp_path, rows):
    shutil.copytree(rows, tmp_path / "data")
    return launched_without_data


def test_the_data_is_made_when_it_is_missing(launched_without_data, tmp_path):
    code, text = launched_without_data("crash_at_start")
    assert code == 1
    assert "making the data" in text
    assert (tmp_path / "data" / "countdown_tiny" / "train.parquet").is_file()


def test_a_run_trains_and_sums_up(launched):
    code, text = launched()
    assert code == 0
    assert "making the data" not in text
    assert "step 3/3 | reward 0.300 | accuracy 0.750" in text
    assert re.search(r"steps +3 of 3", text)
    assert "0.250 (step 0) -> 0.450 (step 2)" in text
    assert "global_step_3/actor/huggingface" in text
    assert "MAX_STEPS=6 bash examples/countdown/qwen3_4b_countdown_grpo.sh" in text
    assert "train.log" in text
    assert "actor/huggingface --served-model-name countdown" in text
    assert next(launched.run_dir.parents[1].glob("checkpoints/countdown/global_step_3/actor/huggingface/README.md"))
    assert {path.name for path in launched.run_dir.iterdir() if path.is_file()} >= {
        "config.yaml",
        "command.sh",
        "metrics.jsonl",
        "train.log",
    }
    assert load(str(launched.run_dir / "config.yaml"), environ={}, hardware="cpu").trainer.max_steps == 3


def test_a_finished_run_is_not_started_again(launched):
    launched()
    code, text = launched("crash_at_start")
    assert code == 0
    assert "nothing to do" in text
    assert re.search(r"steps +3 of 3", text)


def test_a_crash_is_explained_and_the_next_run_resumes(launched):
    code, text = launched("crash")
    assert code == 1
    assert "error: ValueError: the batch is empty" in text
    assert "/site/verl/trainer/ppo.py:12 in fit" in text
    assert "train.log" in text
    assert "resumed from step 2" in text
    assert "RayTaskError" not in text
    code, text = launched("good")
    assert code == 0
    assert "note: resuming from step 2" in text
    assert "step 3/3" in text
    assert "step 1/3" not in text
    assert [step.step for step in read_history(launched.run_dir / "metrics.jsonl")] == [0, 1, 2, 3]
    assert launched.run_dir.joinpath("train.log").read_text().count("==== attempt") == 2


def test_a_crash_before_the_first_checkpoint_says_so(launched):
    code, text = launched("crash_at_start")
    assert code == 1
    assert "no checkpoint was written yet" in text


def test_a_blind_rollout_fails_the_run_and_its_checkpoints_are_not_gone_on_from(launched):
    images = ("worker.rollout.limit_images=1",)
    code, text = launched("blind", steps=2, keys=images)
    assert code == 1
    assert "error: step 2: vLLM and the trainer do not see the same image (rollout_corr/kl is 1.3 nats a token" in text
    assert "are not to be used: remove" in text
    assert "resumed from" not in text
    with pytest.raises(RecipeError, match="the checkpoint to go on from was trained on a wrong image: step 2"):
        launched("good", keys=images)
    shutil.rmtree(launched.run_dir.parent.parent / "checkpoints")
    code, text = launched("good", keys=images)
    assert (code, "step 3/3" in text) == (0, True)


def test_a_run_without_images_is_not_judged_by_them(launched):
    code, text = launched("blind")
    assert (code, "same image" in text) == (0, False)


def test_another_recipe_does_not_touch_the_checkpoints(launched):
    launched()
    code, text = launched(keys=("worker.actor.model.lora.rank=4",))
    assert code == 0
    assert re.search(r"experiment (\S+) is another recipe's .*: this run is the experiment \1-lora4", text)
    with pytest.raises(RecipeError, match="checkpoints of another recipe"):
        launched(keys=("trainer.n_gpus_per_node=2",))


def test_data_that_cannot_be_made(launched_without_data):
    with pytest.raises(RecipeError, match="data could not be made"):
        launched_without_data(keys=('prepare=["-c", "raise SystemExit(3)"]',))


def test_a_data_file_of_the_users_is_not_made(launched, tmp_path):
    with pytest.raises(RecipeError, match="does not exist") as caught:
        launched(keys=(f"data.train_files={tmp_path}/mine.parquet",))
    assert "data.train_files" in caught.value.where


@pytest.mark.parametrize(("text", "minutes"), [("", 20.0), ("5", 5.0), ("0.5", 0.5)])
def test_patience(text, minutes):
    assert Limits.from_environment({"WATCHDOG_MINUTES": text}).idle_s == 60 * minutes


@pytest.mark.parametrize(("code", "words"), [(-9, "memory ran out"), (-11, "SIGSEGV"), (3, "exit code 3")])
def test_an_end_without_an_exception_in_words(code, words):
    assert words in exit_reason(code)


@pytest.mark.parametrize("text", ["soon", "0", "-1"])
def test_patience_that_is_none(text):
    with pytest.raises(RecipeError, match="not a positive number"):
        Limits.from_environment({"WATCHDOG_MINUTES": text})


def start(*arguments, **variables):
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/"), **variables}
    return subprocess.run(
        [sys.executable, "-m", "recipes.launch", *arguments],
        capture_output=True,
        text=True,
        env=environ,
        cwd=ROOT,
        timeout=120,
    )


def test_without_a_task_the_tasks_and_variables_are_listed():
    said = start()
    assert said.returncode == 2
    for word in ("countdown", "MAX_STEPS", "trainer.max_steps", "DRY_RUN", "usage:"):
        assert word in said.stdout
    assert start("--help").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["countdwn"], {}, "countdown"),
        (["countdown", "trainer.max_step=1"], {}, "max_steps"),
        (["countdown"], {"MAX_STEPS": "many"}, "trainer.max_steps"),
        (["countdown"], {"MAXSTEPS": "1"}, "MAX_STEPS"),
        (["countdown", "worker.actor.model.model_path=./no/model"], {}, "does not exist"),
    ],
)
def test_a_mistake_ends_with_one_message_and_no_traceback(tmp_path, arguments, variables, message):
    said = start(*arguments, ARTIFACTS_DIR=str(tmp_path), HARDWARE="cpu", **variables)
    assert said.returncode == 2
    assert message in said.stderr
    assert said.stderr.count("error:") == 1
    assert "Traceback" not in said.stderr


def test_a_dry_run_prints_recipe_command_and_accounting_and_makes_nothing(tmp_path):
    said = start("countdown", ARTIFACTS_DIR=str(tmp_path), HARDWARE="cpu", DRY_RUN="1", MAX_STEPS="7")
    assert said.returncode == 0, said.stderr
    for part in ("max_steps: 7", "recipes.engines.verl_cpu.main", "# responses per step: ", "# total steps: 7"):
        assert part in said.stdout
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_running_and_a_resumable_run(tmp_path, rows):
    shutil.copytree(rows, tmp_path / "data")
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
import importlib.util
spec = importlib.util.spec_from_file_location("helper", {__file__!r})
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
helper.launch.ENGINES["verl"] = helper.fake_engine("daemons", 9, Path({str(tmp_path)!r}))
helper.launch.cli()
"""
    environ = {**os.environ, "ARTIFACTS_DIR": str(tmp_path), "HARDWARE": "cpu"}
    launcher = subprocess.Popen(
        [sys.executable, "-c", script, "countdown", *KEYS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
    )
    text = ""
    for line in launcher.stdout:
        text += line
        if "step 2/" in line:
            time.sleep(0.3)
            launcher.send_signal(signal.SIGINT)
    assert launcher.wait(60) == 130, text
    assert "stopped by SIGINT" in text
    assert "resumed from step 2" in text
    for pid in (tmp_path / "pids").read_text().split():
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_run_that_gains_nothing_ends_after_a_saved_step_and_the_same_command_does_nothing(launched):
    keys = ("trainer.early_stop.patience=1", "trainer.early_stop.metric=critic/score/mean")
    keys += ("trainer.early_stop.min_delta=1.0",)
    code, text = launched("hang", steps=5, keys=keys)
    assert code == 0, text
    assert "ended before its last step: critic/score/mean has not gained for 1 values (best 0.100 at step 1)" in text
    assert [step.step for step in read_history(launched.run_dir / "metrics.jsonl")] == [0, 1, 2]
    code, text = launched("crash_at_start", keys=keys)
    assert code == 0, text
    assert "nothing to do: " in text
    assert "raise trainer.early_stop.patience" in text
