"""What a user reads while a run goes on."""

from __future__ import annotations

import io

from rich.console import Console

from recipes.monitor.metrics import Step
from recipes.monitor.progress import Pace, Progress, duration, number, step_line, validation_line

STEP = Step(
    3,
    {
        "critic/score/mean": 0.412,
        "actor/entropy": 1.204,
        "actor/reward_kl_penalty": 0.0000312,
        "actor/grad_norm": 0.529,
        "perf/throughput": 1234.6,
        "timing_s/step": 4.2,
        "timing_s/gen": 2.1,
        "timing_s/old_log_prob": 0.3,
        "timing_s/ref": 0.2,
        "timing_s/update_actor": 1.12,
        "timing_s/adv": 0.01,
    },
)


def test_a_step_in_one_line():
    assert step_line(STEP, 60, 0.35) == (
        "step 3/60 | reward 0.412 | accuracy 0.350 | entropy 1.204 | KL 3.1e-05 | grad-norm 0.529 | "
        "1,235 tokens/s/GPU | 4.2 s (generate 2.1, log-probs 0.5, update 1.1)"
    )


def test_what_the_trainer_did_not_give_is_a_dash():
    line = step_line(Step(1, {"timing_s/step": 1.0, "actor/entropy": None}), None, None)
    assert line == "step 1 | reward - | accuracy - | entropy - | KL - | grad-norm - | - tokens/s/GPU | 1.0 s"


def test_kl_is_the_penalty_in_the_reward_or_else_the_loss():
    assert "KL 0.020" in step_line(Step(1, {"actor/kl_loss": 0.02}), None, None)
    assert "KL 0.010" in step_line(Step(1, {"actor/reward_kl_penalty": 0.01, "actor/kl_loss": 0.02}), None, None)


def test_numbers():
    assert [number(value) for value in (None, 0.0, 1.23456, -0.00002)] == ["-", "0.000", "1.235", "-2.0e-05"]


def test_validation_in_one_line():
    assert (
        validation_line(Step(20, {"val-core/countdown/acc/mean@1": 0.51}))
        == "validation at step 20: accuracy countdown 0.510"
    )
    assert validation_line(STEP) is None


def test_without_a_terminal_there_are_plain_lines_and_each_phase_once():
    out = io.StringIO()
    clock = iter(range(100))
    with Progress(Console(file=out, width=40), 60, lambda step: 0.35, clock=lambda: float(next(clock))) as progress:
        progress.phase("vLLM starts")
        progress.phase("vLLM starts")
        progress.step(Step(0, {"val-core/countdown/acc/mean@1": 0.3}))
        progress.step(STEP)
        progress.tick()
    lines = out.getvalue().splitlines()
    assert [line.split("]")[-1].strip() for line in lines[:1]] == ["vLLM starts"]
    assert lines[1] == "validation at step 0: accuracy countdown 0.300"
    assert lines[2] == step_line(STEP, 60, 0.35) + " | 57 steps, 4 min left", "a line is not wrapped at the width"
    assert len(lines) == 3
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_a_spinner_shows_what_goes_on():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, _environ={}, width=120, height=20)
    with Progress(console, 60, lambda step: None) as progress:
        progress.phase("vLLM starts")
        progress.step(STEP)
        progress.tick()
        console._live_stack[-1].refresh()
    assert "step 4 of 60" in out.getvalue()


def test_time_left_comes_from_the_steps_after_the_first():
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.left(0, 60) == ""
    for step, end in enumerate((110.0, 140.0, 170.0), start=1):
        now[0] = end
        pace.step(Step(step, {"timing_s/step": 90.0}))
        expected = {1: "59 steps, 88 min left", 2: "58 steps, 29 min left", 3: "57 steps, 28 min left"}[step]
        assert pace.left(step, 60) == expected
    assert (pace.left(3, None), pace.left(60, 60)) == ("", "")
    assert [duration(seconds) for seconds in (40, 600, 7_200)] == ["40 s", "10 min", "2.0 h"]
