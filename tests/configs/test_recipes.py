"""Every YAML file of the tree loads as its kind, comments name verl's keys rightly, documented commands divide."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

import pytest

from recipes.config import accounting, check, load
from recipes.config.layers import read
from recipes.config.resolve import tasks
from recipes.config.schema import Recipe, leaves
from recipes.engines.verl import translation as verl
from recipes.paths import CONFIGS
from recipes.tasks.gsm8k.problems import PUBLISHED
from recipes.tasks.number_game.rules import PRESETS
from tools.tiny_models.gsm8k import GSM8K
from tools.tiny_models.text import chats

ABOUT = re.compile(r"^about:\n(  .*\n)+", re.MULTILINE)
"""What an algorithm's file says of it in prose."""
FILES = sorted(CONFIGS.rglob("*.yaml"))
COMMENTED = [path for path in FILES if path.parent.name in ("hardware", "algorithms") or path.stem in tasks()]


def shown(path: Path) -> str:
    return os.path.relpath(path, CONFIGS)


def test_no_yaml_has_a_key_twice():
    assert all(read(path) for path in FILES)


@pytest.mark.parametrize("task", tasks())
def test_a_recipe_resolves_passes_its_checks_and_translates(task):
    for hardware, embedded in (("cpu", "0"), ("cpu", "1"), ("gpu", "0"), ("gpu", "1")):
        few = {"GPUS_PER_NODE": "1"} if embedded == "1" else {}
        recipe = load(task, environ={"EMBEDDED": embedded, **few}, hardware=hardware)
        check(recipe)
        assert recipe.name == task
        assert verl.translate(recipe)["trainer.experiment_name"] == recipe.trainer.experiment_name


@pytest.mark.parametrize("path", COMMENTED, ids=shown)
def test_every_value_has_a_comment_and_verls_names_in_it_are_right(path):
    """`key: value  # verl's name; why`: the key is translated to that name."""
    parents = [(-1, "")]
    for line in ABOUT.sub("", path.read_text(encoding="utf-8")).splitlines():
        code, _, comment = line.partition("  # ")
        name, colon, value = code.strip().partition(":")
        if not colon or code.strip().startswith("#"):
            continue
        indent = len(code) - len(code.lstrip())
        while parents[-1][0] >= indent:
            parents.pop()
        key = f"{parents[-1][1]}.{name}".lstrip(".").removeprefix("embedded.")
        parents.append((indent, key))
        assert not value.strip() or len(comment.strip()) > 3, f"{shown(path)}: {key} has no comment"
        word = comment.split(";")[0].split()[0].rstrip(":,") if comment.strip() else ""
        if key in leaves(Recipe) and "." in word and not word.endswith((".sh", ".py")):
            names = leaves(Recipe)[key].info.verl
            right = any(verls == word or verls.endswith(f".{word}") for verls in names)
            assert right or path.parent.name == "hardware", f"{shown(path)}: {key} is not {word}"


SEVEN_B = "GPUS_PER_NODE=4 TENSOR_PARALLEL_SIZE=2 ROLLOUT_BATCH_SIZE=256 GLOBAL_BATCH_SIZE=128"


@pytest.mark.parametrize(
    ("task", "variables", "step", "epoch", "total"),
    [
        ("gsm8k", "", (32, 512, 1, 64), 233, 699),
        ("number_game", "TOTAL_EPOCHS=15", (128, 640, 2, 160), 9, 135),
        ("number_game", f"MODEL_PATH=/path/to/Qwen2.5-VL-7B-Instruct {SEVEN_B}", (256, 1280, 2, 160), 4, 60),
        ("number_game", "ROLLOUT_BATCH_SIZE=64 GLOBAL_BATCH_SIZE=32", (64, 320, 2, 80), 18, 270),
    ],
)
def test_documented_commands_divide_evenly(task, variables, step, epoch, total):
    environ = dict(word.split("=", 1) for word in variables.split())
    for engine in ("verl", "easyr1"):
        check(recipe := load(task, environ={**environ, "ENGINE": engine}, hardware="gpu"))
        counted = accounting(recipe, PUBLISHED["train"] if task == "gsm8k" else PRESETS["full"].train_size)
        assert (counted.prompts, counted.responses, counted.updates, counted.responses_per_gpu) == step
        assert (counted.steps_per_epoch, counted.total_steps) == (epoch, total)


def test_generated_problems_and_their_answers_fit_the_lengths():
    tokenizer = GSM8K().tokenizer()
    limits = load("gsm8k", environ={}, hardware="cpu").data
    drawn = list(islice(GSM8K().examples(0), 1000))
    prompts = [len(ids) for ids in tokenizer(chats(tokenizer, [example.prompt for example in drawn])).input_ids]
    responses = [len(ids) + 1 for ids in tokenizer([example.response for example in drawn]).input_ids]
    assert limits.max_prompt_length - 10 <= max(prompts) <= limits.max_prompt_length
    assert max(responses) <= limits.max_response_length
