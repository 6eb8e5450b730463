"""The launcher from end to end, with a trainer that is not the real one."""

import io
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from recipes import launch
from recipes.config import load
from recipes.paths import ROOT
from recipes.preflight import resume
from recipes.runs.metrics import read_history
from tests.mistakes import mistake

FAKE = ROOT / "tests" / "recipes" / "runs" / "fake_trainer.py"
KEYS = ("data.rollout_batch_size=8", "worker.actor.global_batch_size=8", "trainer.save_freq=1", "trainer.max_steps=3")


def with_fake_trainer(folder, patch):
    """`launched(mode, steps, keys, **environ)` -> exit code and output of Countdown's recipe; artifacts in `folder`."""
    patch.setenv("ARTIFACTS_DIR", str(folder))
    patch.setenv("RECIPES_LAUNCHER", "examples/countdown/qwen3_4b_countdown_grpo.sh")
    for name in ("MAX_STEPS", "EXPERIMENT_NAME", "WATCHDOG_MINUTES"):
        patch.delenv(name, raising=False)

    def launched(mode="good", steps=3, keys=(), **environ):
        engine = SimpleNamespace(
            command=lambda recipe: [sys.executable, str(FAKE), mode, str(steps)],
            environment=lambda recipe, environ: {"FAKE_CHECKPOINTS": str(resume.folder(recipe))},
        )
        patch.setitem(launch.ENGINES, "verl", engine)
        recipe = load("countdown", arguments=(*KEYS[: 4 - len(keys)], *keys), environ=environ, hardware="cpu")
        out = io.StringIO()
        return launch.run(recipe, Console(file=out, width=300), "countdown"), out.getvalue()

    return launched


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A launch without data whose trainer crashes before its first checkpoint: folder, exit code and output."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        return folder, *with_fake_trainer(folder, patch)("crash_at_start")


@pytest.fixture
def launched(first, tmp_path, monkeypatch):
    shutil.copytree(first[0] / "data", tmp_path / "data")
    return with_fake_trainer(tmp_path, monkeypatch)


def test_missing_data_is_made_and_a_crash_before_the_first_checkpoint_is_reported(first):
    folder, code, text = first
    assert code == 1
    assert "making the data" in text
    assert (folder / "data" / "countdown_tiny" / "train.parquet").is_file()
    assert "no checkpoint was written yet" in text


def test_a_run_trains_and_sums_up_and_is_not_started_again(launched, tmp_path):
    """A near miss of a variable stands beside the number of steps, in the last line before the trainer starts."""
    code, text = launched(MAX_STEP="1")
    folder = tmp_path / "runs" / "countdown"
    assert code == 0
    last = text[: text.index("the trainer's own output")].splitlines()[-1]
    assert "MAX_STEP (did you mean MAX_STEPS" in last
    assert "3 steps" in last
    for part in (
        "countdown on verl, cpu: tiny model and data; experiment countdown",
        "step 3/3 | reward 0.300 | accuracy 0.750",
        "0.250 (step 0) -> 0.450 (step 2)",
        "global_step_3/actor/huggingface",
        "MAX_STEPS=6 bash examples/countdown/qwen3_4b_countdown_grpo.sh",
        "actor/huggingface --served-model-name countdown",
    ):
        assert part in text
    assert "making the data" not in text
    assert re.search(r"steps +3 of 3", text)
    assert next(tmp_path.glob("checkpoints/countdown/global_step_3/actor/huggingface/README.md"))
    files = {path.name for path in folder.iterdir()}
    assert files >= {"config.yaml", "command.sh", "metrics.jsonl", "train.log"}
    assert load(str(folder / "config.yaml"), environ={}, hardware="cpu").trainer.max_steps == 3
    code, text = launched("crash_at_start")
    assert code == 0
    assert "nothing to do" in text
    assert re.search(r"steps +3 of 3", text)
    for other in ("worker.actor.model.lora.rank=4", "trainer.n_gpus_per_node=2"):
        assert "global_step_3" in mistake(lambda other=other: launched(keys=(other,))).where


def test_a_crash_is_explained_and_the_next_run_resumes(launched, tmp_path, monkeypatch):
    code, text = launched("crash")
    assert code == 1
    for part in ("error: ValueError: the batch is empty", "/site/verl/trainer/ppo.py:12 in fit", "resumed from step 2"):
        assert part in text
    assert "RayTaskError" not in text
    read, fingerprint = [], resume.fingerprint
    monkeypatch.setattr(resume, "fingerprint", lambda recipe: read.append(recipe) or fingerprint(recipe))
    code, text = launched("good")
    folder = tmp_path / "runs" / "countdown"
    assert code == 0
    assert len(read) == 1, "rows, reward and weights are read once in a start"
    assert "note: resuming from step 2" in text
    assert "step 3/3" in text
    assert "step 1/3" not in text
    assert [step.step for step in read_history(folder / "metrics.jsonl")] == [0, 1, 2, 3]
    assert folder.joinpath("train.log").read_text().count("==== attempt") == 2


def test_a_blind_rollout_fails_the_run_and_its_checkpoints_are_not_gone_on_from(launched):
    images = ("worker.rollout.limit_images=1",)
    code, text = launched("blind", steps=2, keys=images)
    assert code == 1
    assert "error: step 2: " in text
    assert "rollout_corr/kl is 1.3" in text
    assert "resumed from" not in text
    assert "step 2" in mistake(lambda: launched("good", keys=images)).what


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["countdown", "trainer.max_step=1"], {}, "max_steps"),
        (["config=none.yaml", "trainer.max_steps=1"], {}, "where: none.yaml"),
        (["countdown"], {"MAX_STEPS": "many", "LR": "1e-4"}, "trainer.max_steps"),
    ],
)
def test_a_mistake_ends_with_one_message(tmp_path, monkeypatch, capsys, arguments, variables, message):
    for name, value in {"ARTIFACTS_DIR": str(tmp_path), "HARDWARE": "cpu", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        launch.main(arguments[0], arguments[1:])
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in printed
    assert printed.count("error:") == 1
    assert "  fix:   " in printed
