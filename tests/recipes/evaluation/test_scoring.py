"""Strict and flexible accuracy stand side by side where the reward has the switch, and only there."""

from __future__ import annotations

from recipes.evaluation.metrics import question_stats
from recipes.evaluation.sampling import Response
from recipes.evaluation.scoring import Reward


def test_flexible_beside_strict():
    gsm8k, countdown = (Reward(f"reward_functions/{task}.py") for task in ("gsm8k", "countdown"))
    texts = ["so 72\n#### 72", "so it is 72", "so it is 71", "#### 71\nor 72"]
    scores = [gsm8k.score_raw("gsm8k", text, "72", {}) for text in texts]
    assert [(score.accuracy, score.flexible) for score in scores] == [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 0.1], "what training sees stays strict"
    stats = question_stats(0, [Response(text, 3, "stop", None) for text in texts], scores)
    assert (stats.accuracy, stats.flexible, stats.reasons["no_answer"]) == (0.25, 0.5, 2)
    assert countdown.score_raw("countdown", "<answer>3</answer>", '{"target": 3, "numbers": [3]}', {}).flexible is None
    switched = Reward("reward_functions/gsm8k.py", {"flexible": True})
    assert switched.score_raw("gsm8k", "so it is 72", "72", {}).accuracy == 1.0
