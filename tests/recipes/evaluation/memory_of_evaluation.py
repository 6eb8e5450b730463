"""Print the peak memory in MiB of evaluations of cached responses: `memory_of_evaluation.py GROUP...`."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recipes.data.rows import make_row, write_split
from recipes.evaluation.evaluate import passes_of, run
from recipes.evaluation.models import Subject
from recipes.evaluation.plan import EvaluationPlan
from recipes.evaluation.questions import load_questions
from recipes.evaluation.sampling import Group, Response, Sampling
from recipes.evaluation.scoring import Reward

QUESTIONS = 250  # the same throughout, because a bootstrap of n questions takes n x n numbers
THOUGHT = "Take the {0} apples and add the {1} that came later, which makes {2} in all. "


def peak_mib(group: int) -> float:
    """Return this process's peak resident memory after an evaluation with `group` cached responses a question."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder), QUESTIONS)
        sampling = Sampling(n=group, temperature=1.0, max_tokens=1024)
        subject = Subject("model", "synthetic", "synthetic", "synthetic", Path(folder))
        reward = Reward("reward_functions/countdown.py")
        output = Path(folder) / "report"
        plan = EvaluationPlan("bench", (subject,), data, reward, sampling, None, batch=32, output=output)
        fill_cache(plan)
        run(plan, silent)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_data(folder: Path, questions: int) -> Path:
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
    write_split(path, rows, {"source": "synthetic"})
    return path


def fill_cache(plan: EvaluationPlan) -> None:
    """Write responses of about 600 characters, half of them right, where generation would have put them."""
    file = passes_of(plan)[0].file
    file.open_for_append()
    for question in load_questions(plan.data):
        third = question.row % 50 + 7
        texts = [
            "<think>" + "".join(THOUGHT.format(sample, line, sample + line) for line in range(8)) + "</think>\n"
            f"<answer>1 + 2 {'+' if (sample * 7 + question.row) % 2 else '-'} {third}</answer>"
            for sample in range(plan.sampled.n)
        ]
        file.append(Group(question.row, tuple(Response(text, len(text) // 4, "stop", -30.0) for text in texts)))
    file.close()


@contextmanager
def silent(description: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as artifacts:
        os.environ["ARTIFACTS_DIR"] = artifacts
        for count in sys.argv[1:]:
            print(peak_mib(int(count)))
