"""The rows of the generated data stay as they are, and both engines read them."""

from __future__ import annotations

import hashlib
import json

import pytest

from recipes.data.rows import write_split
from recipes.paths import ROOT
from recipes.tasks.countdown import rows as countdown
from recipes.tasks.countdown.problems import PRESETS, Problem
from recipes.tasks.countdown.rows import rows
from recipes.tasks.gsm8k import rows as gsm8k
from recipes.tasks.gsm8k.problems import TINY, Question

PROBLEMS = [Problem((3, 8, 1, 1), 24, "8 * 3 + 1 - 1"), Problem((20, 39, 37), 18, "37 + 20 - 39")]


def test_the_tiny_presets_have_the_problems_of_the_published_runs():
    for splits, digest in (
        (countdown.generated(PRESETS["tiny"], seed=0), "a8e517499c39d6f9"),
        (gsm8k.generated(TINY, seed=0), "1af4f9b8a26de58c"),
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


def test_verl_reads_it(tmp_path, monkeypatch):
    dataset = pytest.importorskip("verl.utils.dataset.rl_dataset")
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    path = tmp_path / "train.parquet"
    write_split(path, rows(PROBLEMS, "train"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    config = OmegaConf.create(
        {
            "cache_dir": str(tmp_path / "verl"),
            "max_prompt_length": 256,
            "filter_overlong_prompts": True,
            "filter_overlong_prompts_workers": 1,
        }
    )
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "recipes/tasks/countdown/tiny")
    read = dataset.RLHFDataset(str(path), tokenizer, config)
    assert len(read) == 2
    first = read[0]
    assert first["data_source"] == "countdown"
    assert first["reward_model"] == {"style": "rule", "ground_truth": '{"target": 24, "numbers": [3, 8, 1, 1]}'}
    assert first["raw_prompt"][0]["role"] == "user"
    assert (first["index"], first["extra_info"]["solution"]) == (
        0,
        "<think>8 * 3 + 1 - 1</think>\n<answer>8 * 3 + 1 - 1</answer>",
    )
    config.max_prompt_length = 3
    assert len(dataset.RLHFDataset(str(path), tokenizer, config)) == 0
