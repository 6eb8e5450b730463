"""The tiny Qwen2.5-VL and the screenshots that ship with the recipe, and how the model is made."""

from __future__ import annotations

import hashlib
import json

import pyarrow.parquet as pq
import pytest

from recipes.data.manifests import read_manifest
from recipes.paths import ROOT
from tools.tiny_models.number_game import NumberGame

torch = pytest.importorskip("torch")
TINY = NumberGame().shipped
DATA = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data"


def test_training_shares_no_deal_no_theme_and_no_size_with_testing():
    found = {}
    for split, rows in (("train", 144), ("test", 288)):
        manifest = read_manifest(DATA / f"{split}.parquet", verify=True)
        assert set(manifest.counts["light_and_answer"].values()) == {rows // 9}
        facts = pq.read_table(DATA / f"{split}.parquet", columns=["extra_info"])["extra_info"].to_pylist()
        found[split] = [{each["deal"] for each in facts}, {each["theme"] for each in facts}]
        found[split].append({(each["width"], each["height"]) for each in facts})
        assert len(found[split][0]) == rows
    assert not any(train & test for train, test in zip(found["train"], found["test"], strict=True))


def test_the_shipped_files_are_those_of_the_manifest_and_of_the_code():
    manifest = json.loads((TINY / "manifest.json").read_text())
    assert {path.name for path in TINY.iterdir()} == {*manifest["sha256"], "manifest.json"}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((TINY / name).read_bytes()).hexdigest() == digest, name
    assert manifest["bytes"] == sum((TINY / name).stat().st_size for name in manifest["sha256"]) <= 6 * 2**20
    model, _ = NumberGame().build()
    assert (model.dtype, model.num_parameters()) == (torch.float32, manifest["parameters"])
    held_out = manifest["held_out"]
    assert 0.45 <= held_out["greedy_pass@1"] <= 0.65, "GRPO needs room"
    assert held_out["mixed_groups"] > 0.3, "GRPO learns from groups that disagree"
    assert all(share < 0.42 for name, share in held_out["ablation"].items() if name != "as shown")
