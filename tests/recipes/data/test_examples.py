"""The kit's example data is what its generator makes, fills a step, and fits the tiny model."""

from __future__ import annotations

import pytest

from recipes.data.custom import Survey
from recipes.data.readers import records
from recipes.paths import ROOT
from recipes.tasks import custom


@pytest.mark.parametrize("name", custom.FILES)
def test_the_files_are_what_the_generator_makes(name):
    assert (custom.FOLDER / name).read_text(encoding="utf-8") == custom.text(custom.FILES[name]())


@pytest.mark.parametrize("name", custom.FILES)
def test_no_prompt_is_there_twice(name):
    assert Survey(0).add(records([custom.FOLDER / name])).repeated() == 0


def test_the_example_fills_a_step_of_the_default_batch_after_validation_is_split_off():
    survey = Survey(0).add(records([custom.FOLDER / "example.jsonl"]))
    assert survey.counts.total() - len(survey.validation(0.05)) >= 256
    assert len(survey.counts) == 6


def test_the_embedded_problems_take_37_tokens_of_the_tiny_model():
    from recipes.data.prepare import PromptLengths

    lengths = PromptLengths(str(ROOT / "recipes" / "tasks" / "countdown" / "tiny"), 48)
    rows = ({"prompt": [{"role": "user", "content": record["prompt"]}]} for record in custom.embedded())
    assert sum(1 for _ in lengths.over(rows)) == custom.EMBEDDED
    assert set(lengths.lengths) == {37}
