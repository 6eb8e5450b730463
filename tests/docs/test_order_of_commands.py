"""The first pages' commands, typed from top to bottom: none is refused because of the runs before it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from recipes.config import load, to_yaml
from recipes.data.custom import ready
from recipes.paths import ROOT, run_dir
from recipes.preflight import resume

_spec = importlib.util.spec_from_file_location("docs_markdown", Path(__file__).with_name("markdown.py"))
markdown = importlib.util.module_from_spec(_spec)
sys.modules["docs_markdown"] = markdown
_spec.loader.exec_module(markdown)

PAGES = (
    "README.md",
    "README_zh.md",
    "examples/custom_task/README.md",
    "examples/gsm8k/README.md",
    "docs/ALGORITHMS.md",
)
TASKS = {"qwen3_4b_countdown_grpo.sh": "countdown", "qwen2_5_3b_gsm8k_grpo.sh": "gsm8k", "train.sh": "custom"}


def launches(page):
    """Task, variables and arguments of each command that starts a run."""
    for command in markdown.commands(ROOT / page):
        words = list(command.words[1:] if command.words[:1] == ("bash",) else command.words)
        task = TASKS.get(words[0].rpartition("/")[2]) if words else None
        given = dict(word.split("=", 1) for word in command.text.split(" bash ")[0].split() if "=" in word)
        environ = {name: value for name, value in given.items() if name in command.variables}
        if task and "DRY_RUN" not in environ:
            yield task, environ, words[1:], command


def finish(recipe):
    """Leave behind what a run leaves: its settings, a checkpoint, and whose it is."""
    resume.record(recipe)
    (resume.folder(recipe) / "global_step_1" / "actor").mkdir(parents=True, exist_ok=True)
    (resume.folder(recipe) / "latest_checkpointed_iteration.txt").write_text("1")
    settings = run_dir(recipe.trainer.experiment_name) / "config.yaml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(to_yaml(recipe))


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("page", PAGES)
def test_no_command_is_refused_because_of_those_before_it(page, hardware, tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{i} + 1?", "ground_truth": str(i + 1), "data_source": "gsm8k"} for i in range(300)]
    (tmp_path / "my.json").write_text(json.dumps(rows))
    (tmp_path / "my_reward.py").write_text("def compute_score(**given):\n    return 1.0\n")
    typed = list(launches(page))
    assert typed
    for task, environ, words, command in typed:
        remarks = []
        for _ in range(2):
            recipe = load(task, arguments=words, environ=environ, hardware=environ.get("HARDWARE", hardware))
            recipe = resume.with_own_name(ready(recipe, lambda line: None, fetch=False), lambda line: None)
            remarks = resume.check_resume(recipe)
            finish(recipe)
        assert remarks[0].startswith("resuming from step 1"), f"{command} does not resume"
