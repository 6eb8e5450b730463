"""Functions and rows of a script or a notebook, as files that load as they were."""

import functools
import importlib
import json
import linecache
import runpy
import sys
import threading
from collections import UserDict
from decimal import Decimal
from pathlib import Path

import pytest

from recipes.data.readers import Columns, Mistakes, records
from recipes.from_python import function_location, rows_file
from recipes.rewards.function import Call, load_function
from tests.mistakes import mistake

SCRIPT = """
from __future__ import annotations

import json as j
import re
from dataclasses import dataclass
from functools import lru_cache

from normal import lowered

BONUS, LINES, FOUND = 0.5, open, re.compile("<a>(.*)</a>", re.DOTALL)


@dataclass
class Judged:
    right: bool
    bonus: float = BONUS


@lru_cache
def answer(text: str) -> str:
    found = FOUND.search(text)
    return lowered(found[1]) if found and even(2) else j.dumps(text)


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def reward(data_source, solution_str, ground_truth, extra_info=None):
    judged = Judged(answer(solution_str) == ground_truth)
    return judged.right + judged.bonus


raise_if_loaded = 1 / (__name__ == "__main__")
location = place(reward)
"""


def scored(location: str, text: str) -> float:
    return load_function(location).score(Call("x", text, "yes")).score


def test_a_function_of_a_script_is_written_with_all_that_it_uses(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "normal.py").write_text("def lowered(text):\n    return text.lower()\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    to_file = functools.partial(function_location, folder=tmp_path / "run")
    location = runpy.run_path(str(tmp_path / "script.py"), {"place": to_file}, "__main__")["location"]
    assert scored(location, "so <a>YES</a>") == 1.5
    again = runpy.run_path(str(tmp_path / "script.py"), {"place": to_file}, "__main__")["location"]
    assert again == location


def test_functions_and_classes_of_cells_are_those_that_ran_last(tmp_path, monkeypatch):
    """The last cell did not run: it is mistyped."""
    cells = [
        "class Right:\n    value = 0.0\n",
        "class Right:\n    value = 1.0\n",
        "def reward(completions, **more):\n    ",
    ]
    cells[2] += "return [Right.value for _ in completions]\n"
    space = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        linecache.cache[f"<cell {number}>"] = len(cell), None, cell.splitlines(keepends=True), f"<cell {number}>"
        exec(compile(cell, f"<cell {number}>", "exec"), space)
    monkeypatch.setattr(sys.modules["__main__"], "In", [*cells, "class Right("], raising=False)
    location = function_location(space["reward"], tmp_path)
    assert "value = 1.0" in Path(location.rpartition(":")[0]).read_text()


def test_a_function_of_a_module_stays_in_its_file_and_one_of_a_package_is_imported(tmp_path, monkeypatch):
    (tmp_path / "my_own_rewards.py").write_text("def reward(completions, **more):\n    return [1.0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_own_rewards")
    assert function_location(module.reward, tmp_path) == f"{tmp_path}/my_own_rewards.py:reward"
    location = function_location(json.dumps, tmp_path)
    assert "import dumps" in Path(location.rpartition(":")[0]).read_text()


def closed(limit):
    def reward(completions, **more):
        return [len(text) > limit for text in completions]

    return reward


OPENED = sys.stdout


def logged(completions, **more):
    OPENED.write("judged")


logged.__module__ = "__main__"
logged_there = type(logged)(logged.__code__, {**globals(), "__name__": "__main__"}, "logged")


@pytest.mark.parametrize(
    "function", [lambda completions: [0.0], closed(3), len, "".join, functools.partial(scored, "x")]
)
def test_what_has_no_source_of_its_own_says_what_to_do(function, tmp_path):
    assert "my_rewards.py" in mistake(lambda: function_location(function, tmp_path)).fix


def test_an_object_that_no_file_can_hold_is_named(tmp_path):
    assert "OPENED" in mistake(lambda: function_location(logged_there, tmp_path), "my_rewards.py").what


class Raises:
    """An object whose attributes are looked up elsewhere, as a client's or a proxy's."""

    def __getattr__(self, name):
        raise RuntimeError(f"{name}: not connected")


def using(value, tmp_path):
    """The location of a reward whose global USED is a value; its score is 1 where it is the value still."""
    text = "def reward(data_source, solution_str, ground_truth, extra_info=None):\n"
    text += "    return float(repr(USED) == solution_str)\n"
    linecache.cache["<using>"] = len(text), None, text.splitlines(keepends=True), "<using>"
    exec(compile(text, "<using>", "exec"), space := {"__name__": "__main__", "USED": value})
    return function_location(space["reward"], tmp_path)


CONSTANTS = [None, True, 1, "a", b"a", 1j, (1, None), [[], {}], {"a": [None]}, {3, 1, 2}, UserDict(a=1)]


@pytest.mark.parametrize("value", CONSTANTS, ids=repr)
def test_a_constant_is_written_as_it_is(tmp_path, value):
    assert scored(using(value, tmp_path), repr(value)) == 1


ITSELF, DEEP = [], []
ITSELF.append(ITSELF)
for _ in range(5000):
    DEEP = [DEEP]


def test_no_object_that_a_reward_uses_ends_in_a_traceback(tmp_path):
    for value in (..., ITSELF, DEEP, sys.stdout, threading.Lock(), Raises(), float("nan"), iter([1])):
        assert "my_rewards.py" in mistake(functools.partial(using, value, tmp_path), "it uses").fix


def test_a_function_of_no_module_has_no_source(tmp_path):
    exec("def reward(completions, **more):\n    return [1.0]\n", space := {})
    assert "my_rewards.py" in mistake(lambda: function_location(space["reward"], tmp_path), "has no source").fix
    mistake(lambda: function_location(Raises(), tmp_path), "no function")
    assert "lambda" in mistake(lambda: function_location(lambda: 1, tmp_path), "no function").where


def test_rows_are_one_file_by_their_content(tmp_path, monkeypatch):
    import numpy as np
    import pandas
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (4, 4)).save("a.png")
    row = {"prompt": "a", "ground_truth": Decimal("0.5"), "when": pandas.NaT, "image": "a.png"}
    frame = pandas.DataFrame([row])
    (record,) = records([rows_file(frame, tmp_path)], Mistakes(Columns(images="image", data_source="math")))
    assert (record.ground_truth, record.rest["when"], record.images) == ("0.5", None, [str(tmp_path / "a.png")])

    asked = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "Which colour?"}]
    for row, key in [
        ({"prompt": "a", "images": np.array(["a.png"])}, "images"),
        ({"prompt": "a", "photo": [{"path": "a.png"}]}, "photo"),
        ({"prompt": np.array([{"role": "user", "content": np.array(asked)}])}, "images"),
        ({"prompt": "a", "images": ["a.png"], "meta": {"type": np.array(["a", "b"])}}, "images"),
    ]:
        file = rows_file([row | {"ground_truth": "a.png", "data_source": "qa"}], tmp_path, key)
        (record,) = records([file], Mistakes(Columns(images=key)))
        (held,) = record.images
        assert (held["path"] if isinstance(held, dict) else held) == str(tmp_path / "a.png")
        assert record.ground_truth == "a.png"

    picture = Image.new("CMYK", (4, 4))
    rows = [{"prompt": "<image>1 + 1 =", "ground_truth": np.int64(2), "images": [picture], "data_source": "math"}]
    file = rows_file(iter(rows), tmp_path)
    assert file == rows_file(rows, tmp_path)
    assert file != rows_file([*rows, *rows], tmp_path)
    (record,) = records([file], Mistakes())
    assert (record.ground_truth, len(record.images)) == ("2", 1)
    days = np.array(["2024-05-01", "NaT"], "datetime64[ns]")
    others = {"seconds": np.timedelta64(3, "ns"), "sha": b"ab", "view": memoryview(b"ab")}
    assert json.loads(rows_file([{"day": days[0], "days": days, **others}], tmp_path).read_text()) == {
        "day": "2024-05-01",
        "days": ["2024-05-01", None],
        "seconds": 3,
        "sha": "YWI=",
        "view": "YWI=",
    }
    for wrong, named in [
        ([], "no rows"),
        ([{"prompt": object()}], "row 1"),
        ([{"prompt": DEEP}], "row 1"),
        ([{"prompt": ITSELF}], "row 1"),
        ({"train": rows}, "row 1"),
        (["a"], "row 1"),
        ([{"prompt": b"1 + 1 ="}], "decode()"),
        ([{"prompt": "1 + 1 =", "ground_truth": b"2"}], "decode()"),
        ([{"prompt": "\ud83d"}], "row 1"),
        (pandas.DataFrame([["q", "1", "2"]], columns=["prompt", "answer", "answer"]), "answer is given twice"),
    ]:
        mistake(lambda wrong=wrong: rows_file(wrong, tmp_path), named)
