"""`scripts/collect_completions.py` on dumps as verl writes them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from recipes.paths import ROOT

SCRIPT = ROOT / "scripts" / "collect_completions.py"


def collect(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def rollouts(tmp_path):
    folder = tmp_path / "run" / "rollouts"
    folder.mkdir(parents=True)
    gold = json.dumps({"target": 24, "numbers": [3, 8]})
    answers = [
        ("<think>3 times 8 is 24, the target</think>\n<answer>3 * 8</answer>", 1.0),
        ("<answer>24</answer>", 0.0),
    ]
    lines = [
        {"input": "Make 24 from 3, 8.", "output": text, "gts": gold, "score": score, "step": 1, "uid": f"a_{number}_0"}
        for number, (text, score) in enumerate(answers)
    ]
    (folder / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_logs_lie_beside_the_rollouts_with_reasons(rollouts):
    done = collect(rollouts, "--task", "countdown")
    assert done.returncode == 0, done.stderr
    logs = rollouts.parent / "completions" / "rollouts"
    (good,) = [json.loads(line) for line in (logs / "step_1_success.jsonl").read_text().splitlines()]
    (bad,) = [json.loads(line) for line in (logs / "step_1_fail.jsonl").read_text().splitlines()]
    assert good["reason"] == "correct"
    assert bad["reason"] == "target_copied"
    assert str(logs) in done.stdout


def test_the_same_answer_in_every_group_is_named(tmp_path):
    lines = [
        {"input": f"question {number}", "output": "<answer>7</answer>", "gts": str(number), "score": 0.5, "step": 3}
        for number in range(6)
    ]
    (tmp_path / "3.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = collect(tmp_path / "3.jsonl", "--output_dir", tmp_path / "logs")
    assert "step 3: '7' is a rewarded answer in 100% of the groups" in done.stdout


def test_a_folder_that_is_not_there(tmp_path):
    done = collect(tmp_path / "none")
    assert done.returncode == 2
    assert "there is no" in done.stderr
    assert "Traceback" not in done.stderr
