"""A reward that the trainer could not use is found before it starts."""

from __future__ import annotations

import pytest

from recipes.data.rows import make_row, write_split
from recipes.errors import RecipeError
from recipes.preflight import reward, reward_worker
from recipes.preflight.reward import Trial, answers

HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"

HEAD_BATCH = "def compute_score_batch(reward_inputs): "


def tried(make, files, source, *changes):
    path = files / "my_reward.py"
    path.write_text(source)
    return reward.check_reward(make(f"worker.reward.reward_function={path}", *changes))


def test_the_recipes_own_reward_passes(make):
    assert reward.check_reward(make()) == []


@pytest.mark.parametrize(
    "body",
    [
        "    return 0.5 * ('8' in solution_str)",
        "    return {'score': int('8' in solution_str), 'acc': True}",
        "    print('hi'); return '8' in solution_str",
    ],
)
def test_floats_and_dicts_are_scores(make, files, body):
    assert tried(make, files, HEAD + body) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_at_all", "fails at import: ModuleNotFoundError"),
        ("def broken(:\n", "fails at import: SyntaxError"),
        ("def score(): return 1", r"has no function compute_score \(it has score\)"),
        (HEAD + "    return float('nan')", "nan, not a finite number"),
        (HEAD + "    return {'score': float('inf')}", "inf, not a finite number"),
        (HEAD + "    return None", "None, not a finite number"),
        (HEAD + "    return {'reward': 1.0}", "has no 'score'"),
        (HEAD + "    return {'score': 1.0, **({'b': 1} if solution_str else {})}", "different keys"),
        (HEAD + "    return 1 / len(solution_str)", "raises ZeroDivisionError"),
        (HEAD + "    import os; os._exit(3)", "ended its process: exit code 3"),
        (HEAD + "    raise SystemExit('stop')", "ended its process: stop"),
    ],
)
def test_what_is_no_score_is_refused(make, files, source, message):
    with pytest.raises(RecipeError, match=message) as caught:
        tried(make, files, source)
    assert "my_reward.py" in caught.value.where
    assert "worker.reward.reward_function" in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("body", "key", "fine"),
    [
        ("return {'score': 0.5 * len(solution_str), 'accuracy': 1.0}", "accuracy", True),
        ("return {'score': 0.5 * len(solution_str), 'right': 1.0}", "accuracy", False),
        ("return {'score': 0.5 * len(solution_str)}", "overall", True),
        ("return 0.5 * len(solution_str)", "acc", True),
        ("return 0.5 * len(solution_str)", "accuracy", False),
    ],
)
def test_dynamic_sampling_needs_its_part_of_the_answer(make, files, body, key, fine):
    changes = ("algorithm.online_filtering=true", f"algorithm.filter_key={key}")
    if fine:
        tried(make, files, f"{HEAD}    {body}", *changes)
        return
    with pytest.raises(RecipeError, match="algorithm.filter_key is 'accuracy', which the reward's answer") as caught:
        tried(make, files, f"{HEAD}    {body}", *changes)
    assert "overall" in caught.value.fix
    tried(make, files, f"{HEAD}    {body}", changes[1])


def test_the_line_that_raises_is_named(make, files):
    with pytest.raises(RecipeError) as caught:
        tried(make, files, HEAD + "    value = 1\n    return value / 0")
    assert "my_reward.py:3" in caught.value.where


def test_a_reward_that_never_returns(make, files, monkeypatch):
    monkeypatch.setattr(reward, "LIMIT_S", 1.0)
    with pytest.raises(RecipeError, match="took more than 1 s"):
        tried(make, files, HEAD + "    while True: pass")


def test_a_file_that_is_missing(make, files):
    with pytest.raises(RecipeError, match="no reward file"):
        reward.check_reward(make(f"worker.reward.reward_function={files}/none.py"))


def test_another_function_and_its_arguments(make, files):
    source = HEAD.replace("compute_score", "other").replace("**kwargs", "weight=0")
    source += "    return len(solution_str) / weight"
    path = files / "named.py"
    path.write_text(source)
    key = f"worker.reward.reward_function={path}:other"
    assert reward.check_reward(make(key, "worker.reward.reward_function_kwargs={weight: 2}")) == []
    with pytest.raises(RecipeError, match="ZeroDivisionError"):
        reward.check_reward(make(key))


def test_easyr1_wants_a_list(make, files):
    path = files / "batch.py"
    body = "return [{'overall': float(len(entry['response']))} for entry in reward_inputs]"
    path.write_text(HEAD_BATCH + body)
    recipe = make(f"worker.reward.reward_function={path}").model_copy(update={"engine": "easyr1"})
    assert reward.check_reward(recipe) == []
    path.write_text("import numpy as np\n" + HEAD_BATCH + body.replace("}", ", 'right': np.bool_(1)}"))
    assert reward.check_reward(recipe) == []
    for value in ("'wrong'", "'1.0'", "None", "[1.0, 2.0]"):
        path.write_text(HEAD_BATCH + body.replace("}", f", 'reason': {value}}}"))
        with pytest.raises(RecipeError, match="EasyR1 averages every key .* 'reason' is .*, not a number"):
            reward.check_reward(recipe)
    path.write_text("def compute_score_batch(reward_inputs): return 1.0")
    with pytest.raises(RecipeError, match="not one dict a response"):
        reward.check_reward(recipe)
    path.write_text("async def compute_score_batch(reward_inputs): return []")
    with pytest.raises(RecipeError, match="EasyR1 does not wait"):
        reward.check_reward(recipe)


PLAIN = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
AWARE = "    return float('3 * 8' in solution_str)\n"
ROW = {"data_source": "countdown", "ground_truth": "24", "extra_info": {"solution": "3 * 8"}}


def tried_here(folder, source, files=()):
    """The trial in this process, on one row."""
    path = folder / "my_reward.py"
    path.write_text(source)
    columns = ["data_source", "reward_model.ground_truth"]
    question = {
        "location": str(path),
        "engine": "verl",
        "kwargs": {},
        "filter_key": "overall",
        "rows": [ROW],
        "files": files,
        "columns": columns,
    }
    return reward_worker.try_reward(question)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def compute_score(response, truth): return 1.0", r"compute_score\(response, truth\) cannot be called"),
        ("def compute_score(data_source, solution_str, ground_truth): return 1.0", "cannot be called"),
        (PLAIN.replace("extra_info=None", "extra_info, weight") + AWARE, "cannot be called.*weight"),
        (f"async {HEAD}    return None", "None, not a finite number"),
        (f"async {HEAD}    raise KeyError('x')", "raises KeyError"),
        (f"async {HEAD}    return 1.0\nwaits = compute_score\n{PLAIN}    return waits(1, 2, 3)", "would not wait"),
    ],
)
def test_signatures_and_async_functions_that_the_trainer_cannot_use(tmp_path, source, message):
    with pytest.raises(RecipeError, match=message) as caught:
        tried_here(tmp_path, source)
    assert caught.value.fix


def test_async_rewards_and_rewards_without_further_arguments_pass(make, files):
    assert tried(make, files, f"import asyncio\nasync {PLAIN}    await asyncio.sleep(0)\n{AWARE}") == []


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        ("    return 0.25", "gave 0.25 to each of 6 responses"),
        ("    return float(len(solution_str) == 0)", "no more than an empty response in 1 of 1 rows of countdown"),
        ("    import time; time.sleep(0.06)\n" + AWARE, "ms a call, more than 50 ms"),
    ],
)
def test_what_would_teach_nothing_or_take_long_is_remarked(tmp_path, body, remark):
    (said,) = tried_here(tmp_path, HEAD + body)
    assert remark in said


def test_a_hang_names_the_response(make, files, monkeypatch):
    monkeypatch.setattr(reward, "LIMIT_S", 6.0)
    with pytest.raises(RecipeError, match="trying the response 'é中"):
        tried(make, files, HEAD + "    while solution_str: pass\n    return 0.0")


def test_rows_of_every_data_source_are_tried(files):
    rows = [
        make_row(data_source=source, prompt="p", ground_truth="1", ability="", extra_info={"split": "", "index": 0})
        for source in 50 * ["a"] + ["b"] + 50 * ["a"] + ["c"]
    ]
    write_split(files / "mixed.parquet", rows, manifest={})
    found, count = reward.by_source([str(files / "mixed.parquet")])
    assert count == 102
    assert [row["data_source"] for row in found] == ["a", "b", "c", "a", "a"]


def test_a_reward_that_judges_by_source_is_asked_about_every_row(files):
    rows = files / "train.parquet"
    check = """
def check_sources(truths, **kwargs):
    return [f"row {n}: no rules for {source!r}; known: qa" for n, (source, _) in enumerate(truths, 1) if source != "qa"]
"""
    with pytest.raises(RecipeError, match=r"row 1: no rules for 'countdown'; known: qa \(and 15 more\)") as caught:
        tried_here(files, HEAD + AWARE + check, files=[str(rows)])
    assert "train.parquet" in caught.value.where
    assert caught.value.fix == reward_worker.OF_THE_ROWS


def test_what_the_machine_lacks_is_not_mended_in_the_rows(files):
    check = "\ndef check_sources(truths, **kwargs): return ['programs only run in a sandbox; install bubblewrap']"
    with pytest.raises(RecipeError, match="install bubblewrap") as caught:
        tried_here(files, HEAD + AWARE + check, files=[str(files / "train.parquet")])
    assert caught.value.fix == reward_worker.OF_THE_REST


def test_a_row_of_a_converted_file_is_named_by_its_line(tmp_path):
    rows = [
        make_row(
            data_source="qa",
            prompt="p",
            ground_truth="1",
            ability="",
            extra_info={"split": "train", "index": line, "file": "my.csv", "line": 10 * line},
        )
        for line in range(3)
    ]
    write_split(tmp_path / "t.parquet", rows, manifest={})
    check = "\ndef check_sources(truths, **kwargs): return [f'row {len(list(truths))}: bad']"
    with pytest.raises(RecipeError, match="row 3: bad") as caught:
        tried_here(tmp_path, HEAD + AWARE + check, files=[str(tmp_path / "t.parquet")])
    assert caught.value.where.startswith("line 20 of my.csv; ")


@pytest.mark.parametrize(
    ("truth", "extra", "said"),
    [
        ("42", None, ["42"]),
        ('["Wien", "Vienna"]', None, ["Wien"]),
        ('{"inputs": [], "outputs": []}', None, []),
        ('{"inputs": []}', {"solution": "print(1)"}, ["print(1)"]),
        ('{"data_source": "qa", "ground_truth": "[1, 2]"}', None, ["1"]),
        ("[not JSON", None, ["[not JSON"]),
        (None, None, []),
    ],
)
def test_gold_answers_of_a_truth(truth, extra, said):
    assert answers({"ground_truth": truth, "extra_info": extra}) == said


def test_a_truth_that_only_a_program_meets_asks_for_a_solution():
    row = {"data_source": "code", "ground_truth": '{"asserts": []}', "extra_info": None}

    def score(data_source, solution_str, ground_truth, extra_info=None):
        return float(len(solution_str))

    (remark,) = Trial(score, "score", "f.py", "verl", {}).run([row])
    assert "field `solution`" in remark
