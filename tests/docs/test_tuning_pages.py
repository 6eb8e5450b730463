"""The pages on tuning and on evaluation say what the recipes and the code say: values, arithmetic, odds, commands."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import typer.main

from recipes import statistics
from recipes.config import accounting, load
from recipes.evaluation import probe, suspicious
from recipes.evaluation.cli import make_app
from recipes.paths import ROOT
from recipes.statistics import pass_at_k

_spec = importlib.util.spec_from_file_location("docs_markdown", Path(__file__).with_name("markdown.py"))
markdown = importlib.util.module_from_spec(_spec)
sys.modules["docs_markdown"] = markdown
_spec.loader.exec_module(markdown)

ROWS = {"countdown": 4096, "gsm8k": 7473}
EVALUATIONS = [
    command
    for page in markdown.pages()
    for command in markdown.commands(page)
    if re.fullmatch(r"scripts/eval(_countdown|_gsm8k)?\.py", command.words[1] if len(command.words) > 1 else "")
]


def text(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def recipe(task):
    return load(task, environ={"HARDWARE": "gpu"})


@pytest.mark.parametrize("command", EVALUATIONS, ids=str)
def test_evaluations_parse(command):
    task = re.search(r"eval_?(\w*)\.py", command.words[1]).group(1) or None
    arguments = [word for word in command.words[2:] if word not in ("[", "]")]
    typer.main.get_command(make_app(task)).make_context("eval", arguments)


def test_there_are_evaluations():
    assert len(EVALUATIONS) >= 8


VALUE = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)` (?:\*\*)?([\w.-]+)")


@pytest.mark.parametrize("task", ROWS)
def test_values_are_the_recipes(task):
    resolved = recipe(task)
    cells = [line.split("|")[1] for line in text(f"OPTIMIZATION_{task.upper()}.md").splitlines() if line[:3] == "| `"]
    stated = [
        pair for cell in cells for pair in VALUE.findall(cell) if pair[0].split(".")[0] in type(resolved).model_fields
    ]
    assert len(stated) >= 9
    for key, value in stated:
        found = resolved
        for part in key.split("."):
            found = getattr(found, part)
        if key == "worker.rollout.val_override_config":
            found, value = (found.temperature, found.n), "(0.0, 1)"
        assert str(found).lower() == value or float(found) == float(value), key


@pytest.mark.parametrize("task", ROWS)
def test_the_arithmetic_of_a_step(task):
    fixed = load(task, arguments=["worker.actor.dynamic_batching=false"], environ={}, hardware="gpu")
    counted = accounting(fixed, ROWS[task])
    lines = dict(re.findall(r"^\| ([a-z][^|]+) \| (.+) \|$", text(f"OPTIMIZATION_{task.upper()}.md"), flags=re.M))

    def last(name):
        return int(re.findall(r"= \**([\d,]+)", lines[name])[0].replace(",", ""))

    assert int(lines["prompts a step"]) == counted.prompts
    assert last("responses a step") == counted.responses
    assert last("updates a step") == counted.updates
    assert last("responses an update and GPU") == counted.responses_per_gpu
    assert last("gradient-accumulation steps, in micro-batches of 4") == counted.accumulation_steps
    assert last("steps an epoch") == counted.steps_per_epoch


def mixed(p, n):
    """Odds that n answers, each right with probability p, are neither all right nor all wrong."""
    return 1 - p**n - (1 - p) ** n


def test_the_odds_of_a_mixed_group():
    countdown, gsm8k, design = map(text, ("OPTIMIZATION_COUNTDOWN.md", "OPTIMIZATION_GSM8K.md", "EVALUATION_DESIGN.md"))
    for n in (16, 8, 4):
        assert f"{mixed(0.05, n):.0%}" in countdown
    for p, n in ((0.9, 4), (0.9, 16), (0.065, 16), (0.065, 5)):
        assert f"{mixed(p, n):.0%}" in gsm8k
    assert f"in {1 - mixed(0.05, 16):.0%} of cases at n = 16" in design


def test_the_design_states_the_codes_numbers():
    design = " ".join(text("EVALUATION_DESIGN.md").split())
    low, high = probe.ACCURACY_GOOD
    assert f"| mean accuracy | {low:.0%} to {high:.0%} | under {probe.ACCURACY_TOO_LOW:.0%}" in design
    assert f"over {probe.ACCURACY_TOO_HIGH:.0%}: use a harder set" in design
    assert f"above {probe.VARIANCE_GOOD} | under {probe.VARIANCE_NONE}: no signal" in design
    assert f"{probe.ENTROPY_GOOD[0]} to {probe.ENTROPY_GOOD[1]} bits" in design
    assert f"{statistics.RESAMPLES:,} resamples" in design
    assert f"from {statistics.BCA_UP_TO + 1:,} questions on" in design
    assert f"at least {suspicious.SAME_ANSWER_SHARE:.0%} of the groups" in design
    hundred_zeros = statistics.mean_with_interval([0.0] * 100, bounds=(0.0, 1.0))
    assert f'"under {hundred_zeros.high:.0%}"' in design
    assert all(f"| {rule} |" in design for rule in suspicious.RULES)


def test_five_to_nothing_is_not_enough_for_mcnemar():
    assert "With five questions on one side and none on the other p is 0.06" in " ".join(
        text("EVALUATION_DESIGN.md").split()
    )
    assert round(statistics.mcnemar(5, 0).p_value, 2) == 0.06
    assert statistics.mcnemar(6, 0).p_value < 0.05


def test_pass_at_k_is_the_formula_of_the_page():
    from math import comb

    assert "1 - C(n - c, k) / C(n, k)" in text("EVALUATION_DESIGN.md")
    assert pass_at_k(16, 3, 4) == 1 - comb(13, 4) / comb(16, 4)


@pytest.mark.parametrize("page", ["OPTIMIZATION_COUNTDOWN.md", "OPTIMIZATION_GSM8K.md"])
def test_what_common_notes_get_wrong_is_said(page):
    plain = " ".join(text(page).split())
    assert re.search(r"KL (of )?0 in the log is right (only when KL is in the reward|in one case only)", plain)
    assert "64 prompts" in plain or "64 / 8 / 4 = 2" in plain
    assert "32" in plain


METRIC = re.compile(r"`((?:actor|critic|response_length|rollout_corr|timing_s)/[\w/]+)`")


@pytest.mark.parametrize("page", ["OPTIMIZATION_COUNTDOWN.md", "OPTIMIZATION_GSM8K.md"])
def test_metrics_are_those_that_a_run_writes(page):
    logged: set[str] = set()
    for line in (ROOT / "docs" / "results" / "countdown_tiny_h200.jsonl").read_text(encoding="utf-8").splitlines():
        logged.update(json.loads(line)["data"])
    named = set(METRIC.findall(text(page)))
    assert len(named) >= 3
    # Absent with the KL in the reward, as the pages say.
    assert named - logged == {"actor/kl_loss"}
