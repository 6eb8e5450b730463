"""`scripts/collect_completions.py` on dumps as verl writes them."""

from __future__ import annotations

import json


def test_logs_lie_beside_the_rollouts_with_reasons(script, tmp_path):
    rollouts = tmp_path / "run" / "rollouts"
    rollouts.mkdir(parents=True)
    gold = json.dumps({"target": 24, "numbers": [3, 8]})
    lines = [
        {"input": "Make 24 from 3, 8.", "output": text, "gts": gold, "score": score, "step": 1, "uid": f"a_{number}_0"}
        for number, (text, score) in enumerate((("<answer>3 * 8</answer>", 1.0), ("<answer>24</answer>", 0.0)))
    ]
    (rollouts / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = script("collect_completions")(rollouts, "--task", "countdown")
    assert done.exit_code == 0, done.output
    logs = rollouts.parent / "completions" / "rollouts"
    reasons = [json.loads((logs / f"step_1_{kind}.jsonl").read_text())["reason"] for kind in ("success", "fail")]
    assert reasons == ["correct", "target_copied"]
