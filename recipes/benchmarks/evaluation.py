"""What an evaluation costs besides generation: seconds and peak memory for a given number of responses."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT

if TYPE_CHECKING:
    from recipes.evaluation.plan import EvaluationPlan

MINUTES = 3.0
"""The most that a probe may take."""
OWN_SHARE = 0.05
"""The most of it that may go to anything but generation."""
GROUP = 16
THOUGHT = "Take the {0} apples and add the {1} that came later, which makes {2} in all. "


@dataclass(frozen=True)
class Cost:
    """CPU seconds from cached responses to the finished report, and the process's peak resident memory in MiB."""

    responses: int
    seconds: float
    peak_mib: float

    @property
    def microseconds_each(self) -> float:
        """CPU time of one response."""
        return 1e6 * self.seconds / self.responses


def measure(*responses: int) -> list[Cost]:
    """The cost of each number of responses, which must grow: all run in one process, whose peak never falls again."""
    output = _run([sys.executable, "-m", "recipes.benchmarks.evaluation", *map(str, responses)])
    return [Cost(**json.loads(line)) for line in output.splitlines()]


def _run(command: list[str]) -> str:
    """What a command prints. Raises RecipeError with the end of its messages where it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RecipeError("the measured process failed", where=" ".join(command), fix=done.stderr[-2000:])
    return done.stdout


def probe_seconds(task: str, model: str, questions: int, n: int) -> dict[str, float]:
    """Seconds of each stage of a real signal probe, run as a user runs it; `whole` is the command from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report"
        options = {"model_path": model, "limit": questions, "rollout_n": n, "output_dir": output}
        command = [sys.executable, f"scripts/eval_{task}.py", "analyse", "--fresh"]
        command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
        begin = time.perf_counter()
        _run(command)
        whole = time.perf_counter() - begin
        report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    return report["seconds"] | {"whole": whole}


def _measure_here(responses: int) -> Cost:
    from recipes.evaluation.evaluate import run
    from recipes.evaluation.models import Subject
    from recipes.evaluation.plan import EvaluationPlan
    from recipes.evaluation.sampling import Sampling
    from recipes.evaluation.scoring import Reward

    with tempfile.TemporaryDirectory() as folder:
        data = _write_data(Path(folder), responses // GROUP)
        sampling = Sampling(n=GROUP, temperature=1.0, max_tokens=1024)
        subject = Subject("model", "synthetic", "synthetic", "synthetic", Path(folder))
        reward = Reward("reward_functions/countdown.py")
        output = Path(folder) / "report"
        plan = EvaluationPlan("bench", (subject,), data, reward, sampling, None, batch=32, output=output)
        _fill_cache(plan)
        begin = time.process_time()
        run(plan, _silent)
        seconds = time.process_time() - begin
    return Cost(responses, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _write_data(folder: Path, questions: int) -> Path:
    from recipes.data.rows import make_row, write_split

    rows = (
        make_row(
            data_source="countdown",
            prompt=f"Make {row % 50 + 10} from 1, 2, {row % 50 + 7}.",
            ground_truth=json.dumps({"target": row % 50 + 10, "numbers": [1, 2, row % 50 + 7]}),
            ability="math",
            extra_info={"split": "train", "index": row},
        )
        for row in range(questions)
    )
    path = folder / "train.parquet"
    write_split(path, rows, manifest={"source": "synthetic"})
    return path


def _fill_cache(plan: EvaluationPlan) -> None:
    """Responses of about 600 characters, half of them right, in the place where generation would have put them."""
    from recipes.evaluation.cache import hash_file
    from recipes.evaluation.evaluate import Pass
    from recipes.evaluation.questions import load_questions
    from recipes.evaluation.sampling import Group, Response

    file = Pass(plan.subjects[0], "sampled", plan.sampled, hash_file(plan.data), plan.engine).file
    file.open_for_append()
    for question in load_questions(plan.data):
        third = question.row % 50 + 7
        texts = [
            "<think>" + "".join(THOUGHT.format(sample, line, sample + line) for line in range(8)) + "</think>\n"
            f"<answer>1 + 2 {'+' if (sample * 7 + question.row) % 2 else '-'} {third}</answer>"
            for sample in range(GROUP)
        ]
        file.append(Group(question.row, tuple(Response(text, len(text) // 4, "stop", -30.0) for text in texts)))
    file.close()


@contextmanager
def _silent(description: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


def command(
    responses: Annotated[int, typer.Option("--responses", help="the largest number of cached responses")] = 100_000,
    task: Annotated[str, typer.Option("--task", help="task of the real probe")] = "countdown",
    model_path: Annotated[
        str, typer.Option("--model_path", help="model of the real probe; empty: leave it out")
    ] = "recipes/tasks/countdown/tiny",
    questions: Annotated[int, typer.Option("--questions", help="questions of the real probe")] = 256,
    rollout_n: Annotated[int, typer.Option("--rollout_n", help="answers to each")] = 16,
) -> None:
    """Time an evaluation besides generation.

    Scoring and reporting of cached responses, and a real signal probe, which needs the task's data and vLLM.
    """
    console = Console()
    with reported_errors():
        table = Table(title="From cached responses to the report", title_justify="left")
        for name in ("responses", "CPU seconds", "microseconds each", "peak MiB"):
            table.add_column(name, justify="right")
        for cost in measure(responses // 10, responses):
            each = f"{cost.microseconds_each:.0f}"
            table.add_row(f"{cost.responses:,}", f"{cost.seconds:.1f}", each, f"{cost.peak_mib:.0f}")
        console.print(table)
        if model_path:
            _probe(console, task, model_path, questions, rollout_n)


def _probe(console: Console, task: str, model: str, questions: int, n: int) -> None:
    seconds = probe_seconds(task, model, questions, n)
    own = sum(value for name, value in seconds.items() if name not in ("generate", "whole"))
    share = own / seconds["whole"]
    around = seconds["whole"] - seconds["generate"] - own
    minutes = seconds["whole"] / 60
    console.print(f"probe of {questions} questions x {n}: " + ", ".join(f"{k} {v:.1f} s" for k, v in seconds.items()))
    console.print(f"Python's start and end, and the imports before the first stage: {around:.1f} s")
    console.print(
        f"besides generation {share:.1%} (at most {OWN_SHARE:.0%}): {'kept' if share <= OWN_SHARE else 'MISSED'}"
    )
    console.print(f"whole {minutes:.1f} min (at most {MINUTES:.0f}): {'kept' if minutes <= MINUTES else 'MISSED'}")


if __name__ == "__main__":
    import os

    with tempfile.TemporaryDirectory() as artifacts:
        os.environ["ARTIFACTS_DIR"] = artifacts
        for count in sys.argv[1:]:
            print(json.dumps(asdict(_measure_here(int(count)))))
