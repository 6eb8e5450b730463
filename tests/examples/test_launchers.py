"""Launchers: the recipe's values in their heads; the kit's launcher from a user's folder."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from recipes.config import load, tasks
from recipes.config.schema import Recipe, leaves
from recipes.paths import ROOT
from tests.recipes.engines.conftest import variables

LAUNCHERS = [path for path in sorted(ROOT.glob("examples/*/*.sh")) if path.parent.name != "cluster"]
ENTRY = re.compile(r"#   ([A-Z][A-Z_]+) +(\S+)( .*)?")
EXEC = re.compile(r'source "\$\(dirname "\$\{BASH_SOURCE\[0\]\}"\)/\.\./\.\./scripts/launch\.sh" (\w+) "\$@"')
DECLARED = {path: leaf.info for path, leaf in leaves(Recipe).items() if leaf.info.variable}
KEYS = {name: path for path, info in reversed(DECLARED.items()) for name in info.variable.split()}


@pytest.mark.parametrize("task", tasks())
def test_the_variables_in_the_head_have_the_recipes_values(task, monkeypatch):
    monkeypatch.delenv("ARTIFACTS_DIR", raising=False)
    heads = {match[1]: path for path in LAUNCHERS if (match := EXEC.search(path.read_text(encoding="utf-8")))}
    entries = [
        match for line in heads[task].read_text(encoding="utf-8").splitlines() if (match := ENTRY.fullmatch(line))
    ]
    recipe = load(task, environ={"TINY": "0"}, hardware="gpu")
    for name, value, _ in (match.groups() for match in entries):
        in_recipe, shown = recipe.value(KEYS[name]), yaml.safe_load(value)
        if isinstance(in_recipe, str):
            in_recipe = in_recipe.removeprefix(f"{ROOT}/")
        assert in_recipe == (float(shown) if isinstance(in_recipe, float) else shown), name


def kit(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`bash train.sh WORDS` of the custom kit, from a folder."""
    environ = {**variables(folder / "artifacts"), **more}
    command = ["bash", str(ROOT / "examples" / "custom_task" / "train.sh"), *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


@pytest.mark.parametrize("path", [*LAUNCHERS, ROOT / "scripts" / "sft.sh"], ids=lambda path: path.stem)
def test_help_shows_the_launchers_variables_and_installs_nothing(path, tmp_path):
    """The tools of the system alone, in a copy without an environment."""
    for part in ("examples", "scripts"):
        shutil.copytree(ROOT / part, tmp_path / part, dirs_exist_ok=True)
    command = ["bash", str(tmp_path / path.relative_to(ROOT)), "--help"]
    shown = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=20)
    assert (shown.returncode, shown.stderr) == (0, "")
    names = [match[1] for line in path.read_text("utf-8").splitlines() if (match := ENTRY.fullmatch(line))]
    assert len(names) > 4 or "#   " not in path.read_text("utf-8")  # a launcher may list none
    assert all(f"  {name} " in shown.stdout for name in names)
    assert not list(tmp_path.glob(".venv*"))


def test_the_kits_dry_run_from_a_users_folder(tmp_path):
    lines = [{"prompt": f"What is {i} + 1?", "ground_truth": i + 1, "data_source": "gsm8k"} for i in range(300)]
    (tmp_path / "my.json").write_text(json.dumps(lines))
    reward = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    (tmp_path / "my_reward.py").write_text(reward)
    words = ["--model", "Qwen/Qwen2.5-7B", "--rollout_n", "8", "--epochs", "20", "--data", "my.json"]
    done = kit(tmp_path, *words, "--reward_func", "./my_reward.py", "--dry_run", "--gpus", "8x80", HF_HUB_OFFLINE="0")
    assert done.returncode == 0, done.stderr
    for part in (
        "actor_rollout_ref.rollout.n=8",
        "trainer.total_epochs=20",
        f"reward.custom_reward_function.reward_kwargs.path={tmp_path}/my_reward.py",
        f"trainer.default_local_dir={tmp_path}/artifacts/outputs/checkpoints/custom",
        "# rows: train 285 (gsm8k 285); test 15 (gsm8k 15)",
        "# responses per step: 2,048",
    ):
        assert part in done.stdout
    assert not (tmp_path / "artifacts" / "runs").exists()


def test_the_kits_help_lists_every_option_and_a_mistake_is_one_message(tmp_path):
    shown = kit(tmp_path, "--help").stdout
    for path, info in DECLARED.items():
        assert f"\n--{(info.option or info.variable.lower()).split()[0]}" in shown
        assert path in shown
    assert "--data [examples/custom_task/data/example.jsonl]" in shown
    wrong = kit(tmp_path, "--rolout_n", "8")
    assert wrong.returncode == 2
    assert "did you mean --rollout_n?" in wrong.stderr
    assert "Traceback" not in wrong.stderr
