"""The rows of the generated data stay as they are, and both engines read them."""

from __future__ import annotations

import hashlib
import json

from recipes.tasks.countdown import rows as countdown
from recipes.tasks.countdown.problems import PRESETS, Problem
from recipes.tasks.gsm8k import rows as gsm8k
from recipes.tasks.gsm8k.problems import Question

PROBLEMS = [Problem((3, 8, 1, 1), 24, "8 * 3 + 1 - 1"), Problem((20, 39, 37), 18, "37 + 20 - 39")]


def test_the_tiny_presets_have_the_problems_of_the_published_runs():
    for splits, digest in (
        (countdown.generated(PRESETS["tiny"], seed=0), "a8e517499c39d6f9"),
        (gsm8k.generated(seed=0), "1af4f9b8a26de58c"),
    ):
        found = hashlib.sha256()
        for split in splits:
            for row in split.rows:
                found.update(json.dumps([row["prompt"], row["answer"]]).encode())
        assert found.hexdigest()[:16] == digest


def test_a_solution_of_gsm8k_is_a_whole_response_without_annotations_for_a_calculator():
    answer = "He has 48/2 = <<48/2=24>>24 clips.\nThat is $<<24*50=1200>>1,200.\n#### 1,200"
    row = next(gsm8k.rows([Question("How much?", answer, "line 1")], "train"))
    assert row["extra_info"]["solution"] == "He has 48/2 = 24 clips.\nThat is $1,200.\n#### 1200"
    assert row["extra_info"]["num_steps"] == 2
