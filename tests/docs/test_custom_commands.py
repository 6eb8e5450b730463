"""Every command of the custom kit's pages is run as a dry run, on a GPU machine's recipe, in a user's folder."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from recipes import launch
from recipes.config import load
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import Findings

_spec = importlib.util.spec_from_file_location("docs_markdown", Path(__file__).with_name("markdown.py"))
markdown = importlib.util.module_from_spec(_spec)
sys.modules["docs_markdown"] = markdown
_spec.loader.exec_module(markdown)

PAGES = (ROOT / "docs" / "CUSTOM_TASK.md", ROOT / "examples" / "custom_task" / "README.md")
COMMANDS = [command for page in PAGES for command in markdown.commands(page)]
STARTS = (("bash", "examples/custom_task/train.sh"), ("./train.sh",), ("python", "-m", "recipes.launch", "custom"))
PYTHON = re.compile(r"```python my_reward.py\n(.*?)```", re.DOTALL)
JSON = re.compile(r"```json\n(.*?)\n```", re.DOTALL)


def words_of(command):
    """The launcher's arguments; None for another command."""
    for start in STARTS:
        if command.words[: len(start)] == start:
            return [word for word in command.words[len(start) :] if word != "--dry_run"]
    return None


LAUNCHED = [command for command in COMMANDS if words_of(command) is not None]


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    """What the pages speak of: data in two formats, templates, and the pages' own reward."""
    rows = [{"prompt": f"{i} + 1?", "ground_truth": str(i + 1), "data_source": "gsm8k"} for i in range(300)]
    (tmp_path / "my.json").write_text(json.dumps(rows))
    for name in ("my.csv", "val.csv"):
        (tmp_path / name).write_text("prompt,ground_truth\n" + "".join(f"{name} {i}?,{i}\n" for i in range(300)))
    (tmp_path / "system.txt").write_text("Be brief.")
    (tmp_path / "template.jinja").write_text("{{ content }} Think first.")
    (tmp_path / "my_reward.py").write_text(PYTHON.search(PAGES[0].read_text(encoding="utf-8"))[1])
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pages_have_commands_and_each_is_of_a_known_kind():
    assert len(LAUNCHED) >= 20
    others = {command.words[:2] for command in COMMANDS if words_of(command) is None}
    assert others == {("cd", "examples/custom_task"), ("python", "scripts/data_prep_custom.py")}


@pytest.mark.parametrize("command", LAUNCHED, ids=str)
def test_every_command_is_a_plan(command, users_folder, capsys, monkeypatch):
    monkeypatch.setattr(launch.preflight, "dry", lambda recipe: Findings())  # processes; another test runs the checks
    environ = {name: value for name, _, value in (word.partition("=") for word in assignments(command))}
    launch.show_plan(load("custom", arguments=words_of(command), environ=environ, hardware="gpu"))
    shown = capsys.readouterr().out
    assert "verl.trainer.main_ppo" in shown
    assert "# steps per epoch:" in shown
    assert "known when the data is made" not in shown


def assignments(command):
    return re.findall(r"(?:^|\s)([A-Z][A-Z0-9_]*=\S+)", command.text.split("bash")[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_reward_and_row_are_right(page, tmp_path):
    from recipes.data.readers import Place, checked
    from recipes.preflight.reward_worker import try_reward

    text = page.read_text(encoding="utf-8")
    (tmp_path / "my_reward.py").write_text(PYTHON.search(text)[1])
    row = {"data_source": "x", "ground_truth": "42", "extra_info": None}
    path = str(tmp_path / "my_reward.py")
    question = {"location": path, "engine": "verl", "kwargs": {}, "rows": [row], "files": [], "columns": []}
    assert try_reward({**question, "filter_key": "overall"}) == []
    for example in JSON.findall(text):
        assert checked(json.loads(example), Place("page", 1)).ground_truth == "42"


def test_the_messages_on_the_page_are_the_programs(users_folder):
    page = PAGES[0].read_text(encoding="utf-8")
    said = []
    (users_folder / "my.json").write_text('[\n\n{"prompt": "p", "answer": "1", "data_source": "qa"}]')
    for words in (["--data", "my.json"], ["--rollout_n", "8", "actor_rollout_ref.rollout.n=5"]):
        with pytest.raises(RecipeError) as caught:
            launch.show_plan(load("custom", arguments=words, environ={}, hardware="gpu"))
        said.append(f"error: {caught.value}".replace(f"{users_folder}/", ""))
    for message in said:
        assert f"```text\n{message}\n```" in page, message


def test_the_defaults_on_the_page_are_the_recipes():
    from recipes.config.variables import VARIABLES

    recipe = load("custom", environ={}, hardware="gpu")
    keys = {name: variable.key for variable in VARIABLES for name in variable.names}
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([\w.-]+)", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 9
    for name, default in rows:
        value = recipe.value(keys[name]) if name != "KL_LOSS_COEF" else recipe.algorithm.kl_coef
        assert str(value).lower() == default or float(default) == value
