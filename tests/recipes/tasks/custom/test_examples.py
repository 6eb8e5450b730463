"""The kit's example data is what its generator makes, fills a step, and fits the tiny model."""

from __future__ import annotations

import pytest

from recipes.paths import ROOT
from recipes.tasks.custom import examples
from recipes.tasks.custom.reading import records
from recipes.tasks.custom.splitting import Survey


@pytest.mark.parametrize("name", examples.FILES)
def test_the_files_are_what_the_generator_makes(name):
    assert (examples.FOLDER / name).read_text(encoding="utf-8") == examples.text(examples.FILES[name]())


@pytest.mark.parametrize("name", examples.FILES)
def test_no_prompt_is_there_twice(name):
    assert Survey(0).add(records([examples.FOLDER / name])).repeated() == 0


def test_the_example_fills_a_step_of_the_default_batch_after_validation_is_split_off():
    survey = Survey(0).add(records([examples.FOLDER / "example.jsonl"]))
    assert survey.counts.total() - len(survey.validation(0.05)) >= 256
    assert len(survey.counts) == 6


def test_the_embedded_problems_take_37_tokens_of_the_tiny_model():
    from recipes.tasks.lengths import PromptLengths

    lengths = PromptLengths(str(ROOT / "recipes" / "tasks" / "countdown" / "tiny"), 48)
    rows = ({"prompt": [{"role": "user", "content": record["prompt"]}]} for record in examples.embedded())
    assert sum(1 for _ in lengths.over(rows)) == examples.EMBEDDED
    assert set(lengths.lengths) == {37}
