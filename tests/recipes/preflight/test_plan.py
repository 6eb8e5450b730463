"""The plan on one screen, and seconds of a step beside what was measured."""

import json
import re
import shlex

import pytest
from rich.console import Console

from recipes.config import load
from recipes.preflight import plan
from tools.pages.speed import measurements


@pytest.mark.parametrize(("run", "estimated"), measurements())
def test_seconds_of_a_step_are_within_a_factor_of_a_half_more(run, estimated):
    assert 1 / plan.WRONG_BY < estimated.step / run["seconds"] < plan.WRONG_BY


@pytest.fixture
def planned(tmp_path, capsys):
    """Plan for 285 rows of one's own; returns the exit code and the text of each line."""
    rows = [{"q": f"{i} + 1?", "truth": str(i + 1), "solution": f"{i + 1}"} for i in range(285)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    )

    def on(gpus: str, *arguments: str) -> tuple[int, dict[str, str]]:
        own = ["--data", f"{tmp_path}/rows.jsonl", "--prompt_key", "q", "--answer_key", "truth"]
        words = [*own, "--reward_func", f"{tmp_path}/score.py", *arguments, "--gpus", gpus]
        recipe = load("custom", arguments=words, environ={})
        code = plan.show(Console(width=10_000), recipe, "custom", {"HARDWARE": "cpu", "LR": "1e-5"}, words)
        printed, lines, name = capsys.readouterr().out, {}, ""
        width = re.match("plan +", printed).end()
        for line in printed.splitlines():
            name = line[:width].strip() or name
            lines[name] = f"{lines.get(name, '')} {line[width:]}"
        return code, lines

    return on


def test_a_plan_says_what_a_run_would_do_and_what_to_type(planned, monkeypatch):
    code, lines = planned("1x80", "--model", "Qwen/Qwen3-4B", "--lora_rank", "64")
    assert code == 0
    for name, said in {
        "rows": "271 rows",
        "steps": "15 in all; 15 rows of each epoch not used; few: TRAIN_BATCH_SIZE=32 GLOBAL_BATCH_SIZE=32 makes 120",
        "rate": "LR=1e-05",
        "thinking": "ENABLE_THINKING=false",
        "time": "in all",
        "disk": "a checkpoint of",
        "warm start": "sft.sh custom --data",
    }.items():
        assert said in lines[name], lines[name]
    words = lines["train"].partition("launch.sh custom ")[2]
    recipe = load("custom", arguments=shlex.split(words), environ={})
    assert (recipe.worker.actor.model.lora.rank, recipe.resolution.planned_gpus) == (64, None)
    probe = shlex.split(lines["probe"])
    assert {"analyse", "prompt_key=q", "answer_key=truth"} <= set(probe)
    monkeypatch.setenv("GPUS_PER_NODE", "2")
    _, lines = planned("8x80", "--epochs", "1")
    assert lines["train"].strip().startswith("GPUS_PER_NODE=8 LR=1e-5 bash"), "HARDWARE=cpu is this machine's alone"
    assert "GPUS_PER_NODE=2" not in lines["train"]
    assert "few" not in lines["steps"], "5 responses to 2 prompts do not divide over 8 GPUs"


def test_what_is_not_known_or_does_not_fit_is_said(planned):
    small = ("1x24", "--model", "Qwen/Qwen2.5-1.5B")
    code, lines = planned(*small, "--max_steps", "7", "--lora_rank", "8")
    assert code == 0
    assert "no figure for this GPU" in lines["time"]
    assert "7, as MAX_STEPS says" in lines["steps"]
    code, lines = planned(*small)
    assert code == 2
    assert "train" not in lines, "what would be refused is not to be typed"
    assert "--gpus 2x24  # 2 such GPUs" in " ".join(lines.values())
