"""What a user reads while a run goes on: phases of the start, a line for each step, and a sign of life in silences."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from recipes.runs.metrics import Step
from recipes.runs.terminal import Progress, time_left


def test_time_left_has_validations_in_it_and_outgrows_a_slow_first_step():
    steps = [Step(number, {"timing_s/step": 90.0 if number == 1 else 25.0}) for number in range(1, 5)]
    assert time_left(steps[:1], 60) == "59 steps, 88 min left"
    assert time_left(steps, 60) == "56 steps, 23 min left"
    assert time_left([Step(9, {"timing_s/step": 25.0, "timing_s/testing": 35.0})], 10) == "1 step, 60 s left"


TRAINED = {
    "critic/score/mean": 0.3125, "reward/format": 0.5, "reward_accuracy": 0.375, "actor/entropy": 1.5,
    "actor/kl_loss": 2e-4, "actor/grad_norm": 0.7, "perf/throughput": 1234.5,
    "timing_s/step": 20.0, "timing_s/gen": 12.0,
    "timing_s/old_log_prob": 1.0, "timing_s/ref": 1.5, "timing_s/update_actor": 4.0, "timing_s/reward": 0.01,
    "timing_s/testing": 5.0, "val-core/countdown/acc/mean@1": 0.25, "val-core/gsm8k/acc/mean@1": 0.75,
}  # fmt: skip


def test_phases_steps_validations_and_a_line_in_every_silence():
    now, shown = [100.0], io.StringIO()

    def printed(seconds: int) -> list[str]:
        for _ in range(seconds):
            now[0] += 1.0
            progress.tick()
        lines = shown.getvalue().splitlines()
        shown.seek(0)
        shown.truncate()
        return lines

    progress = Progress(Console(file=shown, width=400), 3, clock=lambda: now[0])
    progress.phase("the model is read")
    assert printed(1) == ["[    0 s] the model is read"]
    for name in ("vLLM starts", "the model is read", "vLLM starts"):  # EasyR1 reads the reference model meanwhile
        progress.phase(name)
    assert printed(24) == [f"[{at:5d} s] vLLM starts{since}" for at, since in ((1, ""), (11, ", 10 s"), (21, ", 20 s"))]
    progress.step(Step(0, {"val-core/countdown/acc/mean@1": 0.125}))
    assert printed(1) == ["validation at step 0: accuracy countdown 0.125"]
    progress.step(Step(1, TRAINED))
    step, validation = printed(1)
    parts = step.split(" | ")
    assert parts[:3] == ["step 1/3", "reward 0.312 (format 0.500)", "accuracy 0.375"]
    assert {"KL 2.0e-04", "25.0 s (generate 12.0, log-probs 2.5, update 4.0, validate 5.0)"} < set(parts)
    assert validation.endswith("accuracy countdown 0.250, gsm8k 0.750")
    progress.step(Step(2, {"timing_s/step": 20.0, "timing_s/gen": 12.0, "timing_s/validation": 5.0}))  # as EasyR1 says
    assert "20.0 s (generate 12.0, validate 5.0)" in printed(1)[0]
    assert len(printed(60)) == 1, "a line a minute after a step"


ENDS = """
import sys
from pathlib import Path
from rich.console import Console
from recipes.runs.terminal import LastingOutput
console = Console(file=LastingOutput(Path(sys.argv[1])))
console.print("step 1")
sys.stdin.read()
console.print("stopped by \x1b[31mSIGINT")
print("the summary")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_is_printed_after_tee_ended_goes_to_a_file_where_there_is_no_terminal(tmp_path, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-c", ENDS, str(tmp_path / "log")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, start_new_session=True, text=True, **pipes) as process:
        assert process.stdout.readline() == "step 1\n"
        process.stdout.close()
        process.stdin.close()
        assert process.wait(60) == 0
    assert (tmp_path / "log").read_text() == "stopped by \\x1b[31mSIGINT\nthe summary\n"
