"""What a user reads of the time that a run still takes."""

from __future__ import annotations

from recipes.monitor.progress import time_left
from recipes.runs.metrics import Step


def test_time_left_has_validations_in_it_and_outgrows_a_slow_first_step():
    steps = [Step(number, {"timing_s/step": 90.0 if number == 1 else 25.0}) for number in range(1, 5)]
    assert time_left(steps[:1], 60) == "59 steps, 88 min left"
    assert time_left(steps, 60) == "56 steps, 23 min left"
    assert time_left([Step(9, {"timing_s/step": 25.0, "timing_s/testing": 35.0})], 10) == "1 step, 60 s left"
