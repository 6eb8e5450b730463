"""The lines of EasyR1 that are replaced: where they stand, when they take part, and that nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recipes.engines import easyr1_source
from recipes.engines.easyr1_compat import lines
from recipes.errors import RecipeError
from recipes.paths import ROOT

EVERY = lines.chosen(on_cpu=True)
needs_easyr1 = pytest.mark.skipif("EASYR1_HOME" not in os.environ, reason="EasyR1: EASYR1_HOME names no source of it")


@needs_easyr1
@pytest.mark.parametrize("file", sorted({line.file for line in EVERY}))
def test_every_line_stands_where_it_is_said_to_and_the_result_compiles(file):
    source = (Path(os.environ["EASYR1_HOME"]) / file).read_text(encoding="utf-8")
    text = source.splitlines()
    for line in EVERY:
        if line.file == file:
            assert text[line.number - 1].count(line.old) == 1, line
    everything = tuple(
        lines.Line(line.file, line.number, line.old, line.new, line.why) for line in EVERY if line.file == file
    )
    for chosen in (everything, tuple(line for line in everything if line not in lines.DEVICES)):
        changed = lines.applied(source, file, chosen)
        assert len(changed.splitlines()) == len(text)
        compile(changed, file, "exec")


@needs_easyr1
def test_the_source_is_the_tested_commit():
    assert easyr1_source.find(os.environ).remarks == ()


@pytest.mark.parametrize("line", lines.VERSIONS, ids=lambda line: f"{line.file}:{line.number}")
def test_the_installed_versions_ask_for_each_line(line):
    """One that they do not ask for any more is to be deleted."""
    assert line.when()


def test_easyr1s_own_pins_ask_for_none_of_them(monkeypatch):
    """vLLM 0.11, transformers 4.57, an older peft, flash-attn: what each of the lines looks at is as it was."""
    import peft.tuners.tuners_utils
    import transformers
    import transformers.modeling_utils
    import vllm
    import vllm.distributed.parallel_state
    import vllm.engine.arg_utils
    import vllm.lora.lora_model

    class EngineArgs:
        def __init__(self, disable_mm_preprocessor_cache: bool = False) -> None: ...

    class SamplingParams:
        eos_token_id = None

    class LoRAModel:
        def from_lora_tensors(self, embedding_modules=None): ...

    class Tokenizer:
        def apply_chat_template(self, conversation, return_dict=False): ...

    monkeypatch.setattr(lines, "find_spec", lambda name: object())
    monkeypatch.setattr(lines, "version", lambda name: "4.57.1")
    monkeypatch.setattr(transformers.modeling_utils, "no_init_weights", object(), raising=False)
    monkeypatch.setattr(transformers, "PreTrainedTokenizerBase", Tokenizer)
    group = "get_tensor_model_parallel_group"
    monkeypatch.setattr(vllm.distributed.parallel_state, group, object(), raising=False)
    monkeypatch.setattr(vllm.engine.arg_utils, "EngineArgs", EngineArgs)
    monkeypatch.setattr(vllm, "SamplingParams", SamplingParams)
    monkeypatch.setattr(vllm.lora.lora_model, "LoRAModel", LoRAModel)
    monkeypatch.delattr(peft.tuners.tuners_utils.BaseTuner, "_get_adapter_state_dict")
    assert [line for line in lines.VERSIONS if line.when()] == []


LINE = lines.Line("verl/a.py", 2, "two", "2", "a reason")


def test_a_line_that_moved_is_found_and_one_that_is_gone_or_doubled_stops_the_start():
    assert lines.applied("one\ntwo\n", "verl/a.py", (LINE,)) == "one\n2\n"
    assert lines.applied("one\nnew\ntwo\n", "verl/a.py", (LINE,)) == "one\nnew\n2\n"
    assert lines.applied("one\ntwo\n", "verl/b.py", (LINE,)) == "one\ntwo\n"
    for text in ("one\n", "two\none\ntwo\n"):
        with pytest.raises(RecipeError, match=r"EasyR1 has changed: \d lines of verl/a.py read 'two'") as raised:
            lines.applied(text, "verl/a.py", (LINE,))
        assert "verl/a.py:2" in raised.value.where


@needs_easyr1
def test_lines_are_replaced_in_a_process_that_asks_and_the_files_stay():
    code = (
        "from recipes.engines.easyr1_compat import imports; imports.install();"
        "import verl, torch; print(verl.__file__, torch.cuda.get_device_name())"
    )
    home = Path(os.environ["EASYR1_HOME"]).resolve()
    path = os.pathsep.join([str(ROOT), str(home)])
    environ = {**os.environ, "PYTHONPATH": path, "EASYR1_HOME": str(home), "RECIPES_EASYR1_ON_CPU": "1"}
    before = easyr1_source.find(environ).remarks
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=50)
    assert done.stdout.split() == [str(home / "verl/__init__.py"), "cpu"], done.stderr
    assert easyr1_source.find(environ).remarks == before == ()


def folder_of(owner: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "verl/trainer").mkdir(parents=True)
        names = {"EasyR1": ("protocol.py", "trainer/ray_trainer.py"), "verl": ("protocol.py", "trainer/main_ppo.py")}
        for name in names.get(owner, ()):
            (folder / "verl" / name).touch()
        return folder

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "nowhere", "is not a folder"),
        (folder_of("nobody"), "it is not EasyR1"),
        (folder_of("verl"), "is verl's own source, not EasyR1's"),
        (lambda folder: folder_of("EasyR1")(folder) / "verl", "name the folder above"),
    ],
)
def test_a_home_that_is_not_easyr1_is_named(tmp_path, make, words):
    with pytest.raises(RecipeError, match="EasyR1") as raised:
        easyr1_source.find({"EASYR1_HOME": str(make(tmp_path))})
    assert words in raised.value.what
    assert "EASYR1_HOME" in raised.value.where
    assert "setup_env.sh easyr1" in raised.value.fix


def test_another_commit_is_noted_and_none_at_all_says_what_to_type(tmp_path, monkeypatch):
    other = folder_of("EasyR1")(tmp_path / "other")
    assert "is not EasyR1's tested commit b44b311" in easyr1_source.find({"EASYR1_HOME": str(other)}).remarks[0]
    monkeypatch.setattr(easyr1_source, "DEFAULT", tmp_path / "none")
    with pytest.raises(RecipeError, match="the `verl` of this environment is verl's own") as raised:
        easyr1_source.find({})
    assert "bash scripts/setup_env.sh easyr1" in raised.value.fix


def test_a_clone_is_whole_or_not_there(tmp_path):
    with pytest.raises(RecipeError, match="git fetch"):
        easyr1_source.fetch(tmp_path / "easyr1", str(tmp_path / "no-repository"))
    assert not (tmp_path / "easyr1").exists()
