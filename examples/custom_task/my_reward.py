"""A reward to start from: ./train.sh --reward_func ./my_reward.py. docs/CUSTOM_TASK.md says what it may return."""

from __future__ import annotations


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1.0 for a response whose last line states the ground truth, else 0.0."""
    lines = solution_str.strip().splitlines()
    right = bool(lines) and ground_truth.strip().lower() in lines[-1].lower()
    return {"score": 1.0 if right else 0.0, "acc": float(right)}
