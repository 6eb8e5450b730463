"""Mixed data: the right judge for each row, the envelope, and what is known before the start."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from recipes.paths import ROOT
from recipes.rewards.identity import own_files
from tests.reward_functions.sandboxes import dispatch, needs_sandbox

pytestmark = pytest.mark.timeout(300)  # a program's own seconds, and a queue for a core

CODE = {"inputs": ["2"], "outputs": ["4"]}
PROGRAM = "```python\nprint(int(input()) * 2)\n```"
# source -> (truth, right response, wrong response)
ROWS = {
    "math_reasoning": ("72", "\\boxed{72}", "\\boxed{7}"),
    "gsm8k": ("72", "#### 72", "#### 7"),
    "math": ("[1, 2)", "\\boxed{[1,2)}", ""),
    "code": (json.dumps(CODE), PROGRAM, "no program"),
    "code_generation": (json.dumps(CODE), PROGRAM, "no program"),
    "qa": ('["Paris"]', "<answer>Paris</answer>", "<answer>Rome</answer>"),
    "trivia": ("巴黎", "Answer：巴黎", "<answer>罗马</answer>"),
    "classification": ("yes", "yes", "no"),
}
LIGHT = {source: row for source, row in ROWS.items() if not source.startswith("code")}


@pytest.mark.parametrize("source", [pytest.param(s, marks=[needs_sandbox] if s not in LIGHT else []) for s in ROWS])
def test_each_source_with_and_without_an_envelope(source):
    truth, right, wrong = ROWS[source]
    parsed = json.loads(truth) if truth[0] in "{[" and source != "math" else truth
    for data_source, given in (
        (source, truth),
        ("any name", dispatch.envelope(source, truth)),
        ("", {"data_source": source, "ground_truth": truth}),
        (source, dispatch.envelope(source, parsed)),
    ):
        full, none = (dispatch.compute_score(data_source, response, given, {"index": 1}) for response in (right, wrong))
        assert full.keys() == none.keys() == {"score", "acc", "accuracy", "format", "f1", "tests", "pred", "reason"}
        assert (full["score"], full["accuracy"], full["reason"]) == (1.0, 1.0, "correct")
        assert (none["score"] <= 0.1, none["accuracy"]) == (True, 0.0)


@pytest.mark.parametrize("source", ["countdown", "", "GSM8K", None, 5, ["qa"]])
def test_an_unknown_source_lists_the_known_ones(source):
    for data_source, truth in ((source, "x"), ("qa", {"data_source": source, "ground_truth": "x"})):
        with pytest.raises(ValueError) as caught:
            dispatch.compute_score(data_source, "x", truth)
        assert type(caught.value) is ValueError, "Ray's driver cannot load a class of this file"
        assert repr(source) in str(caught.value)


@pytest.mark.parametrize("limits", [{"memory_bytes": 1e9}, {"memory_bytes": "1GB"}, {"test_s": -1}, {"tests": 1}])
def test_limits_that_no_program_could_keep_are_refused(limits):
    (problem,) = dispatch.check_sources([("qa", "Paris")], limits=limits)
    assert next(iter(limits)) in problem
    with pytest.raises((TypeError, ValueError)):
        dispatch.compute_score("code", PROGRAM, json.dumps(CODE), limits=limits)


@pytest.mark.parametrize(
    ("source", "truth", "says"),
    [
        ("math_reasoning", "\\frac{x+1}{2}", "`math` compares formulas"), ("math_reasoning", "3,14", "is none"),
        ("code", {"fn_name": "f", "inputs": [[2]], "outputs": [[3]]}, "the value or the list"),
        ("code", {"fn_name": "f", "inputs": [[2]], "outputs": [3]}, ""), ("math", "\\frac{x+1}{2}", ""),
        ("code", {"fn_name": "f", "asserts": ["assert f(2) == 3"]}, ""),
        ("code", {"fn_name": "f", "inputs": [], "outputs": []}, ""),
        *(("math_reasoning", truth, "") for truth in ("90^\\circ", "\\frac12", "12 000", "1,00,000", "1e3", "B")),
    ],
)  # fmt: skip
def test_what_is_said_of_a_truth_before_the_start(source, truth, says):
    found = dispatch.note("any", dispatch.envelope(source, truth))
    assert says in found[0] if says else found is None


def test_its_parts_have_the_same_name_in_every_process():
    code = "import runpy; print(runpy.run_path('reward_functions/dispatch.py')['PACKAGE'])"
    commands = [{"PYTHONHASHSEED": seed, "PATH": os.environ["PATH"]} for seed in ("1", "2")]
    names = {subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=each) for each in commands}
    assert len(names) == 1


def test_a_resume_compares_all_of_its_parts():
    parts = {path.name for path in (ROOT / "reward_functions/sources").rglob("*.*") if path.suffix != ".pyc"}
    assert {path.name for path in own_files(ROOT / "reward_functions/dispatch.py")} == {"dispatch.py", *parts}


@needs_sandbox
def test_as_verls_reward_loop_calls_it():
    rows = [(source, right, truth, {}) for source, (truth, right, _) in ROWS.items()]
    with ThreadPoolExecutor(8) as pool:
        assert {pool.submit(dispatch.compute_score, *row).result()["score"] for row in rows * 2} == {1.0}
    assert dispatch.judges.SOURCES.keys() == ROWS.keys()
    assert dispatch.check_sources([(source, truth) for source, (truth, _, _) in ROWS.items()]) == []
