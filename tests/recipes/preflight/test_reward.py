"""A reward that the trainer could not use is found before it starts."""

import importlib
from contextlib import nullcontext
from functools import partial

import pytest

from recipes.config import load, to_yaml
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import child, reward
from recipes.preflight.resume import fingerprint
from recipes.rewards.function import Call
from tests.mistakes import mistake
from tests.recipes.preflight.conftest import TRUTH, write_rows

PLAIN = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
HEAD = PLAIN.replace("=None", "=None, **kwargs")
SOLVES = "    return float('3 * 8' in solution_str)\n"
ROW = Call("countdown", "", "24", {"solution": "3 * 8"})


@pytest.fixture
def checked(make, files):
    """The whole check, with its process."""

    def check(source, *changes):
        path = files / "my_reward.py"
        path.write_text(source)
        return reward.check_reward(make(f"worker.reward.reward_function={path}", *changes))

    return check


@pytest.fixture
def tried(tmp_path):
    """The trial in this process, on one row."""

    def run(source, engine="verl", row=ROW, **options):
        path = tmp_path / "my_reward.py"
        path.write_text(source)
        return reward.try_reward(str(path), engine, [row], **options)

    return run


def test_the_recipes_own_reward_passes_and_a_file_that_prints(make, checked):
    assert reward.check_reward(make()) == []
    assert checked(HEAD + "    print('hi'); return '8' in solution_str") == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HEAD + "    import os; os._exit(3)", "exit code 3"),
        (HEAD + "    value = 1\n    return value / 0", "ZeroDivisionError"),
    ],
)
def test_what_ends_the_process_is_an_error_with_its_key(checked, source, message):
    error = mistake(lambda: checked(source), message)
    assert "worker.reward.reward_function" in error.where
    assert "ZeroDivision" not in message or "my_reward.py:3" in error.where


STATED = """
    right = ground_truth in solution_str
    return {"score": right - len(solution_str) / 999, "acc": right}
"""
FORMED = "    return float(ground_truth in solution_str) + 0.2 * ('<answer>' in solution_str)"


@pytest.mark.parametrize("source", [STATED, FORMED], ids=["stated", "formed"])
def test_a_solution_that_the_reward_does_not_pay_is_named(tried, source):
    """The truth's own forms hide its score; parts for form and length are no mistake of a solution."""
    info = {"solution": "3 * 8 is 25", "file": "my.jsonl", "line": 7}
    note = tried(HEAD + source, row=Call("qa", "", "24", info))
    assert note[0].startswith("1 of 1 tried solutions earn less than the full score, the first in line 7 of my.jsonl")
    assert tried(HEAD + source, row=Call("qa", "", "24", {**info, "solution": "3 * 8, which is long, is 24"})) == []
    marked = HEAD + "    return float(f'#### {ground_truth}' in solution_str)"
    assert tried(marked, row=Call("qa", "", "24", {**info, "solution": "24"})) == [], "a column of truths, as TRL's"


HANGS = """import sys, time
def hang():
    print("trying the response x", file=sys.stderr, flush=True)
    time.sleep(600)
"""


def test_a_hang_names_the_response_and_is_said_before_its_limit(monkeypatch, tmp_path, capsys):
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(child, "SILENCE", 0.2)
    hang = importlib.import_module("hangs").hang
    what = mistake(partial(child.ask, hang, limit_s=100, step_limit_s=0.6, where="w; x", fix="f")).what
    assert what == "no answer within 1 s; last, it was trying the response x"
    assert "s without an answer from w: trying the response x" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError"),
        ("def score(): return 1", "compute_score"),
        (HEAD + "    return {'score': 1.0, **({'bonus': 1} if solution_str else {})}", "bonus"),
        (f"async {HEAD}    return None", "None"),
        (f"async {HEAD}    return 1.0\nwaits = compute_score\n{HEAD}    return waits(1, 2, 3)", "coroutine"),
    ],
)
@pytest.mark.parametrize("engine", ["verl", "easyr1"])
def test_what_no_engine_can_use(tried, source, named, engine):
    assert "my_reward.py" in mistake(lambda: tried(source, engine), named).where


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        ("    return {'score': int('8' in solution_str), 'acc': True}", None),
        ("    return 0.25", "gave 0.25 to each of 10 responses"),
        ("    return float(len(solution_str) == 0)", "no more than an empty response in 1 of 1 rows of countdown"),
        ("    import time; time.sleep(0.06)\n" + SOLVES, "ms a call, more than 50 ms"),
    ],
)
def test_what_would_teach_nothing_or_take_long_is_remarked(tried, body, remark):
    remarks = tried(HEAD + body)
    assert remarks == [] if remark is None else remark in remarks[0]


def test_a_reward_that_judges_by_source_is_asked_about_every_row(make, files):
    write_rows(file := files / "t.parquet", source="qa", file=lambda _: "my.csv", line=lambda index: 10 * index)
    check = "\ndef check_sources(truths, **kwargs): assert len(list(truths)) == 16; return ['row 3: no', 'row 5: x']"
    (files / "mine.py").write_text(HEAD + SOLVES + check)
    recipe = make(f"worker.reward.reward_function={files}/mine.py", f"data.train_files={file}")
    error = mistake(lambda: reward.trial(recipe))
    assert error.where == f"line 20 of my.csv; {file}"
    assert error.what.endswith("row 3: no\n  line 40 of my.csv; row 5: x")
    assert error.fix == reward.FIX_ROWS


def test_what_a_reward_notes_of_truths_is_said_once_and_no_right_answer_is_no_remark(make, files):
    check = "\ndef check_sources(truths, **_): return [*truths][:0]\ndef note(source, truth): return 'is odd', truth"
    (files / "mine.py").write_text(HEAD + "    return 0.0" + check)
    (note, constant) = reward.trial(make(f"worker.reward.reward_function={files}/mine.py"))
    assert note == f"{TRUTH} is odd"
    assert "gave 0 to each" in constant
    assert reward.try_reward(f"{files}/mine.py", "verl", [Call("code", "", {"asserts": ["assert f()"]})]) == []


def test_a_recipes_reward_refuses_other_data_and_a_users_own_may_read_another_form():
    other = Call("math", "", "42")
    right = Call("countdown", "", '{"target": 24, "numbers": [3, 8]}', {"solution": "<answer>3 * 8</answer>"})
    own = str(ROOT / "reward_functions" / "countdown.py")
    assert reward.try_reward(own, "verl", [right, right, other], ours=True)
    assert reward.try_reward(own, "verl", [right, other, other])
    mistake(lambda: reward.try_reward(own, "verl", [right, other, other], ours=True))


def test_a_run_on_other_data_is_refused(tmp_path):
    write_rows(file := tmp_path / "t.parquet", 3, source="gsm8k", truth="1")
    arguments = [f"data.train_files={file}", f"data.val_files={file}"]
    mistake(lambda: reward.trial(load("countdown", arguments=arguments, environ={"TINY": "1"}, hardware="cpu")))


def test_a_reward_that_a_recipes_file_names_is_the_users_own_too(make, files):
    (files / "mine.py").write_text(HEAD + "    return {'score': 0.0, 'acc': 0.0}")
    (files / "config.yaml").write_text(to_yaml(make(f"worker.reward.reward_function={files}/mine.py")))
    (remark,) = reward.trial(load(str(files / "config.yaml"), environ={}, hardware="cpu"))
    assert "gave 0 to each" in remark


def test_each_of_several_rewards_is_tried_by_itself(make, files):
    good, bad, short = files / "solving.py", files / "odd.py", files / "short.py"
    batch = "def compute_score_batch(reward_inputs): return None  # of weighted rewards no engine calls it\n\n\n"
    good.write_text(batch + PLAIN.replace("=None", "=None, scale=1.0") + SOLVES)
    bad.write_text(f"def compute_score(): return 1.0\n{PLAIN.replace('compute_score', 'none')}    return None\n")
    short.write_text(f"{PLAIN}    return 1.0 - len(solution_str) / 1e6")

    def recipe(*parts, engine="verl"):
        return make(
            f"engine={engine}",
            f"worker.reward.reward_function=[{','.join(map(str, parts))}]",
            "worker.reward.reward_weights=[1,2]",
            "worker.reward.reward_function_kwargs.scale=2.0",
        )

    for engine in ("verl", "easyr1"):
        assert reward.check_reward(recipe(good, short, engine=engine)) == []
    assert set(fingerprint(recipe(good, short)).content["reward"]) == {"1: solving.py", "2: short.py"}
    assert fingerprint(recipe(good, short)).content["worker.reward.reward_weights"] == [1.0, 2.0]
    for part in (bad, f"{bad}:none", f"{bad}:no"):
        assert "odd.py" in mistake(lambda part=part: reward.trial(recipe(good, part))).where


def test_a_reward_imports_what_lies_beside_it_and_counts_it(checked, make, files):
    (files / "helper_of_mine.py").write_text("RIGHT = '3 * 8'")
    source = f"from helper_of_mine import RIGHT\n{PLAIN}    return float(RIGHT in solution_str)"
    assert checked(source) == []
    recipe = make(f"worker.reward.reward_function={files}/my_reward.py")
    assert set(fingerprint(recipe).content["reward"]) == {"helper_of_mine.py", "my_reward.py"}


@pytest.mark.parametrize("name", ["json", "verl", "recipes", "tokenize"])
def test_a_helper_with_the_name_of_another_module_is_refused(tried, tmp_path, name):
    (tmp_path / f"{name}.py").write_text("RIGHT = 1")
    error = mistake(lambda: tried(f"from {name} import RIGHT\n{PLAIN}    return 1.0"), name)
    assert error.fix == f"rename {name}.py to a name of its own"


@pytest.mark.parametrize("key", ["accuracy", "overall", "acc", "format"])
@pytest.mark.parametrize(
    ("body", "engine", "taken"),
    [
        ("1.0", "verl", ("accuracy", "overall", "acc")),
        ("{'score': 1, 'acc': True}", "verl", ("accuracy", "overall", "acc")),
        ("{'score': 1, 'accuracy': 0}", "easyr1", ("accuracy", "overall", "acc")),
        ("{'score': 0.5}", "easyr1", ("overall",)),
        ("{'score': 0.5, 'format': 'a text'}", "verl", ("accuracy", "overall", "acc")),
        ("{'score': 0.5, 'format': True}", "verl", ("accuracy", "overall", "acc", "format")),
    ],
)
def test_dynamic_sampling_takes_whatever_a_reward_calls_its_accuracy(tried, body, engine, taken, key):
    with nullcontext() if key in taken else pytest.raises(RecipeError, match="filter_key"):
        tried(f"{PLAIN}    return {body}", engine, filter_key=key)


@pytest.mark.parametrize("body", [SOLVES, "    return float(kwargs.get('other', 0))\n"], ids=["unread", "read"])
def test_an_argument_that_nothing_in_the_reward_reads_is_refused(checked, body):
    with nullcontext() if "other" in body else pytest.raises(RecipeError, match="reads its argument other"):
        checked(HEAD + body, "worker.reward.reward_function_kwargs.other=1")
