"""What a user reads while a run goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from recipes.monitor.metrics import Step
from recipes.monitor.progress import Progress, duration, number, step_line, time_left
from recipes.monitor.rollouts import Groups

STEP = Step(
    3,
    {
        "critic/score/mean": 0.412,
        "actor/entropy": 1.204,
        "actor/reward_kl_penalty": 0.0000312,
        "actor/kl_loss": 0.2,
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
LINE = (
    "step 3/60 | reward 0.412 | accuracy 0.625{} | entropy 1.204 | KL 3.1e-05 | grad-norm 0.529 | "
    "1,235 tokens/s/GPU | 4.2 s (generate 2.1, log-probs 0.5, update 1.1)"
)


@pytest.mark.parametrize(("by_source", "shown"), [({}, ""), ({"math": 0.5, "qa": 0.75}, " (math 0.500, qa 0.750)")])
def test_a_step_in_one_line(by_source, shown):
    assert step_line(STEP, 60, Groups(8, 0, 0, 0.625, by_source)) == LINE.format(shown)


def test_what_the_trainer_did_not_give_is_a_dash():
    line = step_line(Step(1, {"timing_s/step": 1.0, "actor/entropy": None, "actor/kl_loss": 0.02}), None)
    assert line == "step 1 | reward - | accuracy - | entropy - | KL 0.020 | grad-norm - | - tokens/s/GPU | 1.0 s"
    assert [number(value) for value in (0.0, 1.23456, -0.00002)] == ["0.000", "1.235", "-2.0e-05"]


def test_plain_lines_without_a_terminal_and_a_spinner_on_one():
    out, shown = io.StringIO(), io.StringIO()
    responses = Groups(8, 0, 0, 0.625)
    clock = iter(range(100))
    with Progress(Console(file=out, width=40), 60, lambda _: responses, lambda: float(next(clock))) as progress:
        progress.phase("vLLM starts")
        progress.phase("vLLM starts")
        progress.step(Step(0, {"val-core/countdown/acc/mean@1": 0.3}))
        progress.step(STEP)
        progress.tick()
    phase, validated, line = out.getvalue().splitlines()
    assert phase.split("]")[-1].strip() == "vLLM starts"
    assert validated == "validation at step 0: accuracy countdown 0.300"
    assert line == LINE.format("") + " | 57 steps, 4 min left", "a line is not wrapped at the width"

    console = Console(file=shown, force_terminal=True, _environ={}, width=120, height=20)
    with Progress(console, 60) as progress:
        progress.step(STEP)
        progress.tick()
        console._live_stack[-1].refresh()
    assert "step 4 of 60" in shown.getvalue()


def test_time_left_has_validations_in_it_and_outgrows_a_slow_first_step():
    steps = [Step(number, {"timing_s/step": 90.0 if number == 1 else 25.0}) for number in range(1, 5)]
    assert time_left([], 60) == ""
    assert time_left(steps[:1], 60) == "59 steps, 88 min left"
    assert time_left(steps, 60) == "56 steps, 23 min left"
    assert time_left([Step(9, {"timing_s/step": 25.0, "timing_s/testing": 35.0})], 10) == "1 step, 60 s left"
    assert time_left(steps, None) == time_left(steps, 4) == ""
    assert [duration(seconds) for seconds in (None, 40, 600, 7_200)] == ["-", "40 s", "10 min", "2.0 h"]
