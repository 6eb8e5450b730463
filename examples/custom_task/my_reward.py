"""A reward to start from: ./train.sh --reward_func ./my_reward.py. docs/CUSTOM_TASK.md says what it may return."""

from __future__ import annotations

import json


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1.0 for a response whose last line states the ground truth, or one of several, else 0.0."""
    several = json.loads(ground_truth) if ground_truth.startswith("[") else [ground_truth]
    last = "".join(solution_str.strip().splitlines()[-1:]).lower()
    right = any(str(truth).strip().lower() in last for truth in several)
    return {"score": 1.0 if right else 0.0, "acc": float(right)}
