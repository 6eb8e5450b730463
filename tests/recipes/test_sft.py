"""Warm start by verl's supervised trainer: its settings, its rows, and a run of the real trainer."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from verl.trainer.sft_trainer import create_sft_dataset

from recipes import sft
from recipes.config import load
from recipes.config.resolve import replaced
from recipes.data.lengths import chat_tokenizer
from recipes.data.rows import make_row
from recipes.paths import ROOT
from recipes.preflight.data_files import check_data
from recipes.runs import folder
from tests.mistakes import mistake

TINY = {"HARDWARE": "cpu"}


def test_later_layers_win_and_the_model_is_built_as_grpos():
    environ = {**TINY, "LR": "1e-5", "TRAIN_BATCH_SIZE": "16", "EXPERIMENT_NAME": "mine", "MAX_PROMPT_LENGTH": "50"}
    chosen = sft.plan("gsm8k", ["data.train_batch_size=8", "optim.betas=[0.9,0.95]"], environ)
    settings = chosen.settings
    assert (settings.optim.lr, settings.data.train_batch_size, chosen.experiment) == (1e-5, 8, "mine")
    assert settings.data.max_length == 50 + 48
    assert settings.model.override_config.attn_implementation == "torch_varlen_flash"
    assert sft.plan("gsm8k", [], TINY).settings.optim.lr == 2e-4, "LR of GRPO's recipe is another"
    for sign in ("", "+"):
        chosen = sft.plan("gsm8k", [f"{sign}data.apply_chat_template_kwargs.enable_thinking=false"], TINY)
        assert chosen.settings.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert "optim.lrr" in mistake(lambda: sft.plan("gsm8k", ["optim.lrr=1e-5"], TINY)).what


def test_the_launchers_options_act_and_the_printed_commands_repeat_them():
    """What only the training reads waits for it, what only the warm start reads is not repeated."""
    thinking = "data.apply_chat_template_kwargs.enable_thinking=false"
    words = ["--prompt_key", "q", "reward_func=r.py", "--lr", "1e-5", "data.max_length=99", thinking]
    words += ["--rollout_n", "3"]
    environ = {**TINY, "TRAIN_FILES": "my.jsonl", "LEARNING_RATE": "3e-4", "MODEL_PATH": "recipes/tasks/gsm8k/tiny"}
    chosen = sft.plan("custom", words, environ)
    assert (chosen.settings.optim.lr, chosen.settings.data.max_length) == (1e-5, 99)
    assert chosen.recipe.data.prompt_key == "q"
    assert str(chosen.recipe.data.train_files).endswith("my.jsonl")
    assert sft.remarks(chosen.recipe)[-1].endswith("does: option --rollout_n 3")
    model, probe, train = sft.next_commands(chosen, "custom", environ)
    given = "HARDWARE=cpu TRAIN_FILES=my.jsonl "
    assert probe.startswith(f"probe     {given}python ")
    assert probe.endswith(f"custom_sft analyse prompt_key=q reward_func=r.py {thinking} rollout_n=3")
    words = f"--prompt_key q reward_func=r.py {thinking} --rollout_n 3 --model_path"
    assert train == f"train     {given}bash scripts/launch.sh custom {words} {model.split()[1]}"


@pytest.mark.parametrize(
    ("words", "environ", "where"),
    [
        ([], {"LR": "inf"}, "LR=inf"),
        (["--epochs", "0"], {}, "--epochs 0"),
        (["data.train_batch_size=-1"], {}, "data.train_batch_size=-1"),
        (["optim.weight_decay=abc"], {}, "optim.weight_decay=abc"),
        (["trainer.default_local_dir=/x"], {}, "trainer.default_local_dir=/x"),
        (["checkpoint.save_contents=[model]"], {}, "checkpoint.save_contents=[model]"),
    ],
)
def test_a_value_that_no_training_can_have_is_named_as_it_was_typed(words, environ, where):
    assert where in mistake(lambda: sft.plan("gsm8k", words, {**TINY, **environ})).where


@pytest.mark.parametrize(
    "words",
    [
        ["--lr", "1e-3", "worker.actor.optim.lr=1e-4"],
        ["--max_steps", "5", "trainer.total_training_steps=7"],
        ["--train_batch_size", "32", "data.train_batch_size=16"],
        ["trainer.total_epochs=9", "--epochs", "2"],
        ["data.max_length=98", "data.max_length=99"],
    ],
)
def test_two_values_of_one_key_are_refused(words):
    error = mistake(lambda: sft.plan("gsm8k", words, TINY))
    assert all(word in error.where for word in words)
    alike = sft.plan("gsm8k", ["--lr", "1e-3", "worker.actor.optim.lr=1e-3"], TINY)
    assert alike.settings.optim.lr == 1e-3


def written(
    tmp_path, monkeypatch, solutions: list[str | None], prompt: str = "5 + 3?", fields=None, **columns
) -> sft.Plan:
    """A plan over rows with these worked answers."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    facts = {"data_source": "gsm8k", "prompt": prompt, "ground_truth": "8", "ability": "math"}
    extra = [
        {"split": "train", "index": index, "solution": text, **(fields or {})} for index, text in enumerate(solutions)
    ]
    rows = [make_row(**facts, extra_info=each) | columns for each in extra]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    return sft.plan("gsm8k", [], {**TINY, "TRAIN_FILES": str(tmp_path / "train.parquet")})


def test_what_only_easyr1_can_do_waits_for_the_training():
    words = ["engine=easyr1", "worker.actor.clip_ratio_dual=4", "worker.actor.optim.strategy=adamw_bf16"]
    chosen = sft.plan("gsm8k", words, TINY)
    assert all(word in sft.remarks(chosen.recipe)[-1] for word in words[1:])


def test_the_last_step_is_one_that_the_epochs_have(tmp_path, monkeypatch):
    """verl saves the model at the last step alone."""
    chosen = written(tmp_path, monkeypatch, ["So 5 + 3 = 8.\n#### 8", "So 5 + 3 = 8.\n" * 60])
    assert sft.write_rows(chosen) == (1, 1), "one is too long"
    assert "TRAIN_BATCH_SIZE" in mistake(lambda: sft.steps_of(chosen, rows=63)).fix
    for most, steps in ((None, 6), (7, 6), (2, 2)):
        chosen.settings.trainer.total_training_steps = most
        assert sft.steps_of(chosen, rows=128) == steps
        assert ("TOTAL_EPOCHS" in sft.counted(chosen, rows=128, long=0)) == (most == 7)
    chosen.settings.trainer.total_training_steps, chosen.settings.data.train_max_samples = None, 64
    assert sft.steps_of(chosen, rows=128) == 3


@pytest.mark.parametrize(
    ("prompt", "images", "solution", "what"),
    [
        ("<image>5 + 3?", [], "#### 8", "image"),
        ("5 + 3?", [{"bytes": b"\x89PNG"}], "#### 8", "image"),
    ],
)
def test_images_are_refused(tmp_path, monkeypatch, prompt, images, solution, what):
    chosen = written(tmp_path, monkeypatch, [solution], prompt, images=images)
    error = mistake(lambda: sft.write_rows(chosen), "train.parquet")
    assert mistake(lambda: sft.try_rows(chosen), "train.parquet").what == error.what, "a dry run says it, too"
    assert all(part in error.what for part in ("row 0", what))


def test_marks_of_videos_are_text_in_a_warm_start(tmp_path, monkeypatch):
    assert sft.write_rows(written(tmp_path, monkeypatch, ["#### 8"] * 2, "What does <video> do?")) == (2, 0)


def test_rows_without_worked_answers_are_counted_and_the_first_is_named(tmp_path, monkeypatch):
    for fields, first in ({}, "row 1 of "), ({"file": "my.jsonl", "line": 7}, "line 7 of my.jsonl"):
        chosen = written(tmp_path, monkeypatch, ["#### 8", None, None], fields=fields)
        for call in (sft.write_rows, sft.try_rows):
            error = mistake(lambda call=call, chosen=chosen: call(chosen), f"the first: {first}")
            assert "2 of 3 rows have no worked answer" in error.what


def test_rows_of_another_form_are_refused_in_words(tmp_path, monkeypatch):
    chosen = written(tmp_path, monkeypatch, ["#### 8"])
    table = pq.read_table(tmp_path / "train.parquet").rename_columns({"prompt": "chat"})
    pq.write_table(table, tmp_path / "train.parquet")
    assert "column prompt" in mistake(lambda: sft.write_rows(chosen), "train.parquet").what


QWEN3 = (
    "{% for each in messages %}{{ '<|im_start|>' + each.role + '\n' }}"
    "{% if each.role == 'assistant' and loop.last and not loop.first %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ each.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
"""What Qwen3's template does with messages without tools or reasoning."""


def with_template(tmp_path, monkeypatch, template: str, solution="3 + 4 * 5") -> sft.Plan:
    """A plan over one row, for a model with this chat template."""
    chosen = written(tmp_path, monkeypatch, [solution])
    chosen.settings.model.path = str(shutil.copytree(ROOT / "recipes/tasks/countdown/tiny", tmp_path / "model"))
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    return chosen


@pytest.mark.parametrize(("thinking", "trained"), [(True, "<think>\n\n</think>\n\n3 + 4"), (False, "3 + 4")])
def test_the_answer_is_trained_on_behind_the_prompt_that_is_sampled(tmp_path, monkeypatch, thinking, trained):
    chosen = with_template(tmp_path, monkeypatch, QWEN3)
    chosen.settings.data.apply_chat_template_kwargs = {"enable_thinking": thinking}
    assert sft.write_rows(chosen) == (1, 0)
    tokenizer = chat_tokenizer(chosen.settings.model.path)
    row = create_sft_dataset(str(chosen.rows), chosen.settings.data, tokenizer, None)[0]
    answer = tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
    assert answer.startswith(trained)
    assert "<|im_start|>" not in answer


def test_the_recipes_own_template_is_used_and_one_that_does_not_do_names_row_and_model(tmp_path, monkeypatch):
    shortened = "{% if add_generation_prompt %}{{ messages[0].content }}{% else %}{{ messages[-1].content }}{% endif %}"
    chosen = with_template(tmp_path, monkeypatch, "{{ raise_exception('no such role') }}")
    for _ in range(2):
        where = mistake(lambda: sft.write_rows(chosen), "row 0").where
        (tmp_path / "model" / "chat_template.jinja").write_text(shortened)
    assert str(tmp_path / "model") in where
    chosen.settings.model.custom_chat_template = QWEN3
    assert sft.write_rows(chosen) == (1, 0)


TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for each in messages %}{{ '<|im_start|>' + each.role + '\n' + (each.content or '') }}"
    "{% for call in each.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("arguments", [{"x": 3, "y": None}, '{"x": 3}'])  # with parquet's null, and as servers write
def test_calls_are_trained_and_what_the_tool_wrote_is_not(tmp_path, monkeypatch, arguments):
    """Each turn of the model up to its end mark, as it is sampled; the prompt shows the tools that training has."""
    calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
    turns = [("assistant", "3 + ", calls), ("tool", "5", None), ("assistant", "4 * 5", None)]
    solution = [{"role": role, "content": text, "tool_calls": called} for role, text, called in turns]
    chosen = with_template(tmp_path, monkeypatch, TOOLS, solution)
    (tmp_path / "mine.py").write_text('def f(x: int) -> str:\n    """F.\n\n    Args:\n        x: x\n    """\n')
    environ = {**TINY, "TRAIN_FILES": str(tmp_path / "train.parquet"), "TOOLS": str(tmp_path / "mine.py")}
    chosen = replace(chosen, recipe=sft.plan("gsm8k", [], environ).recipe)
    chosen.settings.data.max_length = 999
    assert sft.write_rows(chosen) == (1, 0)
    tokenizer = chat_tokenizer(chosen.settings.model.path)
    row = create_sft_dataset(str(chosen.rows), chosen.settings.data, tokenizer, None)[0]
    assert "description" in tokenizer.decode(row["input_ids"])
    trained = tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
    assert trained == '3 + {"x": 3}<|im_end|>4 * 5<|im_end|>\n'


@pytest.mark.parametrize("file", ["runs/gsm8k_sft/config.yaml", "checkpoints/gsm8k_sft/global_step_2/data.pt"])
def test_a_run_of_grpo_is_not_replaced(tmp_path, monkeypatch, file):
    chosen = written(tmp_path, monkeypatch, ["#### 8"])
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("kept")
    assert "EXPERIMENT_NAME" in mistake(lambda: sft.run(chosen, Console(), "gsm8k")).fix
    assert (tmp_path / file).read_text() == "kept"


def test_a_second_start_touches_nothing_of_the_first(tmp_path, monkeypatch):
    chosen = written(tmp_path, monkeypatch, ["#### 8"])
    with folder.lock_run(chosen.experiment):
        chosen.rows.write_text("rows")
        saved = tmp_path / "checkpoints" / chosen.experiment / "global_step_2"
        saved.mkdir(parents=True)
        assert "wait for it" in mistake(lambda: sft.run(chosen, Console(), "gsm8k")).fix
        assert (chosen.rows.read_text(), saved.is_dir()) == ("rows", True)


def test_nothing_starts_on_gpus_that_are_planned_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    planned = sft.plan("gsm8k", ["--gpus", "1x24"], {})
    assert "--gpus" in mistake(lambda: sft.run(planned, Console(), "gsm8k")).fix


@pytest.mark.trainer(seconds=20)
def test_the_supervised_trainer_makes_a_model_and_never_replaces_one(tmp_path):
    environ = {**os.environ, **TINY, "ARTIFACTS_DIR": str(tmp_path), "MAX_STEPS": "6", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "recipes.sft", "gsm8k", "data.train_batch_size=32"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "runs" / "gsm8k_sft" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(line)["data"]["train/loss"] for line in lines]
    assert len(losses) == 6
    assert losses[-1] < losses[0], "0.63 falls to 0.3: the order of the rows is seeded"
    assert (tmp_path / "models" / "gsm8k_sft" / "model.safetensors").is_file()
    model = tmp_path / "models" / "gsm8k_sft"
    assert "attn_implementation" not in (model / "config.json").read_text(), "transformers alone does not know ours"
    seen = folder.read(tmp_path / "runs" / "gsm8k_sft")
    assert (seen.task, seen.state, seen.notes) == ("gsm8k, warm start", "finished", ())
    arguments = ["--model_path", str(model), "--hardware", "cpu"]
    assert load("gsm8k", arguments=arguments, environ={}).resolution.is_tiny, "its sizes are the tiny model's"
    other = ["--model_path", str(ROOT / "recipes/tasks/countdown/tiny"), "--hardware", "cpu"]
    assert not load("gsm8k", arguments=other, environ={}).resolution.is_tiny
    assert not (tmp_path / "checkpoints").joinpath("gsm8k_sft").exists()
    again = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert again.returncode == 2
    assert "models/gsm8k_sft" in again.stderr


def test_a_worked_answer_that_the_reward_does_not_pay_is_named(tmp_path, monkeypatch):
    chosen = written(tmp_path, monkeypatch, ["So it is.\n#### 9", "#### 8"])
    assert sft.row_remarks(chosen.recipe)[-1].startswith("1 of 2 tried solutions earn less")


@pytest.mark.parametrize(("name", "stops"), [("add", ""), ("sub", "there is no tool sub")])
def test_calls_in_worked_answers_are_tried_as_before_a_training(tmp_path, monkeypatch, name, stops):
    file = tmp_path / "adding.py"
    file.write_text(
        'def add(a: int) -> str:\n    """Add.\n\n    Args:\n        a: one\n    """\n    return str(a + 3)\n'
    )
    call = {"function": {"name": name, "arguments": '{"a": 5}'}}
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "8"}]
    solution = [*turns, {"role": "assistant", "content": "#### 8"}]
    chosen = written(tmp_path, monkeypatch, [solution] * 2, prompt="5 + 3? Use add.")
    keys = {"worker.rollout.tools": str(file), "data.max_prompt_length": 128, "data.max_response_length": 256}
    said = sft.row_remarks(replaced(chosen.recipe, keys, "a test"))
    assert [stops in each for each in said if "the training after the warm start would stop" in each] == [True] * bool(
        stops
    )


def test_calls_of_tools_that_no_prompt_shows_are_noted(tmp_path, monkeypatch):
    call = {"function": {"name": "add", "arguments": '{"a": 5}'}}
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "8"}]
    solution = [*turns, {"role": "assistant", "content": "#### 8"}]
    recipe = written(tmp_path, monkeypatch, [solution] * 2).recipe
    note = "2 of the first 2 solutions call tools, which no prompt shows"
    training = replaced(recipe, {"data.rollout_batch_size": 2, "data.val_files": []}, "a test")
    for remarks in (sft.row_remarks(recipe), check_data(training)):
        assert [each.startswith(note) for each in remarks].count(True) == 1
