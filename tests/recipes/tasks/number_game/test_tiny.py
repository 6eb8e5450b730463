"""The screenshots that ship with the recipe."""

import pyarrow.parquet as pq

from recipes.data.rows import find_manifest
from recipes.files import sha256
from recipes.paths import ROOT

DATA = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data"


def test_training_shares_no_deal_no_theme_and_no_size_with_testing():
    found = {}
    for split, rows in (("train", 144), ("test", 288)):
        manifest = find_manifest(DATA / f"{split}.parquet")
        assert manifest.sha256 == sha256(DATA / f"{split}.parquet")
        assert set(manifest.counts["light_and_answer"].values()) == {rows // 9}
        facts = pq.read_table(DATA / f"{split}.parquet", columns=["extra_info"])["extra_info"].to_pylist()
        found[split] = [{each["deal"] for each in facts}, {each["theme"] for each in facts}]
        found[split].append({(each["width"], each["height"]) for each in facts})
        assert len(found[split][0]) == rows
    assert not any(train & test for train, test in zip(found["train"], found["test"], strict=True))
