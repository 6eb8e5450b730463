"""`scripts/pretrain_countdown.py` in five steps: a loadable folder with a manifest, and nothing is overwritten."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from recipes.paths import ROOT

SCRIPT = ROOT / "scripts" / "pretrain_countdown.py"
FAST = {"device": "cpu", "steps": 5, "examples": 80, "batch": 8, "problems": 4}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("pretrain_countdown", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_five_steps_make_a_loadable_folder(script, tmp_path, monkeypatch, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "tiny"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", "tiny", "--steps", "5"])
    script.main(out=out, **FAST)
    assert "step 5/5" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]  # the unfinished work is cleared away
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"] == "python scripts/pretrain_countdown.py --out tiny --steps 5"
    assert (manifest["plan"]["steps"], manifest["held_out"]["problems"]) == (5, 4)
    assert manifest["device"].startswith("CPU")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.chat_template

    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(SystemExit) as stop:
        script.main(out=out, **FAST)
    assert stop.value.code == 2
    assert f"{out} exists" in capsys.readouterr().err
    assert (out / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"batch": 100}, "--batch 100 is larger than --examples 80"), ({"device": "tpu"}, "no device 'tpu'")],
)
def test_mistakes_are_told(script, tmp_path, capsys, wrong, message):
    with pytest.raises(SystemExit) as stop:
        script.main(out=tmp_path / "tiny", **{**FAST, **wrong})
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
