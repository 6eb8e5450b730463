"""The rows of the generated data stay as they are, and both engines read them."""

from __future__ import annotations

import hashlib
import json

import pytest

from recipes.data.rows import write_split
from recipes.tasks.countdown import pretraining as countdown_model
from recipes.tasks.countdown import rows as countdown
from recipes.tasks.countdown.problems import PRESETS, Problem
from recipes.tasks.countdown.rows import rows
from recipes.tasks.gsm8k import rows as gsm8k
from recipes.tasks.gsm8k.problems import TINY

PROBLEMS = [Problem((3, 8, 1, 1), 24, "8 * 3 + 1 - 1", 6), Problem((20, 39, 37), 18, "37 + 20 - 39", 1)]


def test_the_tiny_presets_are_the_rows_of_the_published_runs():
    for splits, digest in (
        (countdown.generated(PRESETS["tiny"], seed=0), "74c0b61de24a3948"),
        (gsm8k.generated(TINY, seed=0), "b45058cf3fbcc4a2"),
    ):
        found = hashlib.sha256()
        for split in splits:
            for row in split.rows:
                del row["id"], row["extra_info"]["id"]  # those runs' rows had none
                found.update(json.dumps(row, sort_keys=True).encode())
        assert found.hexdigest()[:16] == digest


def test_verl_reads_it(tmp_path, monkeypatch):
    dataset = pytest.importorskip("verl.utils.dataset.rl_dataset")
    from omegaconf import OmegaConf

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
    tokenizer = countdown_model.SPEC.tokenizer()
    read = dataset.RLHFDataset(str(path), tokenizer, config)
    assert len(read) == 2
    first = read[0]
    assert first["data_source"] == "countdown"
    assert first["reward_model"] == {"style": "rule", "ground_truth": '{"target": 24, "numbers": [3, 8, 1, 1]}'}
    assert first["raw_prompt"][0]["role"] == "user"
    assert (first["index"], first["extra_info"]["solution"]) == (0, "8 * 3 + 1 - 1")
    config.max_prompt_length = 3
    assert len(dataset.RLHFDataset(str(path), tokenizer, config)) == 0
