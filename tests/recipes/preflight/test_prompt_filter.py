"""verl's filter of long prompts is left out only where every prompt was counted and fits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.config import Recipe, load
from recipes.data.manifests import manifest_path
from recipes.engines.verl import translation as verl
from recipes.files import sha256
from recipes.paths import ROOT
from recipes.preflight.data_files import FILTER, without_filter


def written(path: Path, words: list[int]) -> Path:
    """Rows whose prompts have so many numbers, with a manifest."""
    prompts = [[{"role": "user", "content": "Use " + "3 " * count}] for count in words]
    pq.write_table(pa.table({"prompt": prompts}), path)
    manifest_path(path).write_text(json.dumps({"rows": len(words), "sha256": sha256(path)}), encoding="utf-8")
    return path


@pytest.fixture
def recipe(tmp_path: Path):
    """A recipe on GPUs over two files; `train` are the lengths of its training prompts."""

    def make(*arguments: str, train: tuple[int, ...] = (5, 20), hardware: str = "gpu") -> Recipe:
        files = [f"data.train_files={written(tmp_path / 'train.parquet', list(train))}"]
        files += [f"data.val_files={written(tmp_path / 'test.parquet', [7])}", "data.max_prompt_length=64"]
        model = shutil.copytree(ROOT / "recipes" / "tasks" / "countdown" / "tiny", tmp_path / "m", dirs_exist_ok=True)
        environ = {"MODEL_PATH": str(model)}
        return load("countdown", arguments=[*files, *arguments], environ=environ, hardware=hardware)

    return make


def test_it_is_left_out_where_every_prompt_fits(recipe):
    lines = []
    plain = without_filter(recipe(), lines.append)
    assert plain.value(FILTER) is False
    assert "data.filter_overlong_prompts=true" not in verl.overrides(plain)
    (line,) = lines
    assert "tokens and the limit is 64: verl does not measure the prompts again" in line


def test_it_stays_where_the_engine_renders_otherwise_or_other_rows_were_counted(recipe, tmp_path):
    thinking = "+data.apply_chat_template_kwargs.enable_thinking=false"
    for other in (recipe(hardware="cpu"), recipe(thinking), recipe(train=(5, 200))):
        assert without_filter(other, print).value(FILTER) is True
    made = recipe()
    manifest_path(tmp_path / "test.parquet").unlink()
    assert without_filter(made, print).value(FILTER) is True
