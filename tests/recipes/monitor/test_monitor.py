"""`python -m recipes.monitor` on the files of runs: healthy, torn, of another version, alive, and none."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from recipes.config import load, to_yaml
from recipes.engines.checkpoints import STOP_REQUEST
from recipes.monitor import runs
from recipes.monitor.__main__ import app
from recipes.monitor.watch import sparkline, watch
from recipes.paths import ROOT


def cli(*arguments):
    """Exit code and everything printed."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Writes runs of 12 steps with three validations of 40 questions; `right` says how many are right at each."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))

    def make(name, right=(10, 15, 30), arguments=(), tail=""):
        folder = tmp_path / "runs" / name
        (folder / "validation").mkdir(parents=True)
        (folder / "rollouts").mkdir()
        keys = (f"trainer.experiment_name={name}", "trainer.max_steps=12", *arguments)
        (folder / "config.yaml").write_text(to_yaml(load("countdown", arguments=keys, environ={}, hardware="cpu")))
        lines = []
        for step in range(13):
            data = {}
            if step:
                data = {"critic/score/mean": 0.1 * step**0.5, "actor/entropy": 0.2, "timing_s/step": 4.0}
                data |= {"actor/grad_norm": 0.1, "actor/reward_kl_penalty": 0.001 * step, "response_length/mean": 20.0}
                groups = [{"input": f"p{i // 4}", "gts": "1", "score": float(i % 2)} for i in range(8)]
                (folder / "rollouts" / f"{step}.jsonl").write_text("\n".join(map(json.dumps, groups)))
            if step % 6 == 0:
                count = right[step // 6]
                data["val-core/countdown/acc/mean@1"] = count / 40
                answers = [
                    {"input": f"question <{i}>", "output": f"<think>{i}</think>&", "gts": "1", "acc": float(i < count)}
                    for i in range(40)
                ]
                dump = "\n".join(json.dumps(answer | {"score": answer["acc"]}) for answer in answers)
                (folder / "validation" / f"{step}.jsonl").write_text(dump + "\n")
            lines.append(json.dumps({"step": step, "data": data}))
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n" + tail)
        (folder / "train.log").write_text("==== attempt of 2026-01-01\n")
        return folder

    return make


def loaded_by(page):
    """What a browser would load for a page: none of it is in the file itself."""
    return re.findall(r"<script|(?:src|href)=[\"'](?!#)[^\"']*", page)


def test_list_watch_and_report_of_a_good_run(make_run):
    folder = make_run("good")
    make_run("older")
    os.utime(folder.parent / "older", (1, 1))
    code, text = cli("list")
    assert code == 0
    assert re.search(r"good +finished +12/12 +0\.750", text)
    assert text.index("good") < text.index("older")

    code, text = cli("watch", "good", "--once")
    assert code == 0
    assert "held-out accuracy" in text
    assert "0.250 → 0.750" in text
    assert "0 of 10 groups have zero variance" in text
    assert "▲" not in text
    assert "✖" not in text

    code, text = cli("report", "good")
    assert code == 0
    page = (folder / "report.html").read_text()
    assert loaded_by(page) == []
    assert page.count("<svg") >= 6
    assert all(page.count(f"<{tag}") == page.count(f"</{tag}>") for tag in ("section", "table", "details", "figure"))
    assert "No rule objects." in page
    assert "question &lt;10&gt;" in page, "a question that was won, escaped"
    assert "75.0 (59.8 to 85.8)" in page, "Wilson's interval of 30 in 40"
    assert "worker.actor.optim.lr" in page


def test_two_runs_with_intervals_the_paired_difference_and_their_settings(make_run, tmp_path):
    make_run("one")
    make_run("two", right=(10, 12, 12), arguments=("worker.actor.optim.lr=3e-5",))
    svg = tmp_path / "curves.svg"
    code, text = cli("compare", "one", "two", "--output", str(svg))
    assert code == 0
    assert "75.0 (59.8 to 85.8)" in text
    assert "step 12, 40 questions: two - one = -45.0 points" in text
    assert "they differ" in text
    assert re.search(r"worker\.actor\.optim\.lr +0\.0001 +3e-05", text)
    assert "experiment_name" not in text
    assert svg.read_text().lstrip().startswith("<?xml")
    assert cli("compare", "one", "one")[0] == 2


OTHER_VERSION = '{"step": 1, "data": {"loss": 0.5}}\n'


@pytest.mark.parametrize(
    ("tail", "note"),
    [
        ('{"step": 13, "data": {"critic/sc', "1 line of metrics.jsonl cannot be read"),
        ('{"step": 13, "data": {"actor/grad_norm": NaN, "critic/score/mean": -Infinity}}\n', "not a number"),
        ('{"step": 13, "data": {"actor/grad_norm": null, "critic/score/mean": 0.1}}\n', "not a number"),
        ('{"step": 12, "data": {"critic/score/mean": 0.9}}\n', "step 12 of 12"),
        ('[]\n{"step": Infinity, "data": {}}\n{"step": 1, "data": 7}\n\xff\n', "4 lines of metrics.jsonl"),
        (OTHER_VERSION, "another version may have written it: "),
    ],
)
def test_broken_files_are_noted_and_the_rest_is_shown(make_run, tail, note):
    folder = make_run("broken", tail=tail)
    if tail == OTHER_VERSION:
        with (folder / "config.yaml").open("a") as file:
            file.write("\nof_another_version: 1\n")
        (folder / "metrics.jsonl").write_text(tail)
        (folder / "validation" / "6.jsonl").write_text('{"input"')
    code, text = cli("watch", "broken", "--once")
    assert code == 0
    assert note in text
    assert ("no known metric" if tail == OTHER_VERSION else "held-out accuracy") in text
    assert (cli("list")[0], cli("report", "broken")[0]) == (0, 0)
    page = (folder / "report.html").read_text()
    assert ("validation of step 6 left out" in page) == (tail == OTHER_VERSION)
    assert len({step.step for step in runs.read(folder).history}) == len(runs.read(folder).history)


def test_no_run(tmp_path, monkeypatch, make_run):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "empty"))
    assert cli("list") == (0, "no runs yet\n")
    code, text = cli("report")
    assert code == 2
    assert "start one first" in text
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    make_run("countdown")
    code, text = cli("watch", "cuontdown", "--once")
    assert code == 2
    assert "did you mean countdown?" in text


def test_a_living_run_is_followed_to_its_end_and_can_be_asked_to_stop(make_run):
    folder = make_run("alive")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:6]))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        (folder / ".lock").write_text(str(launcher.pid))
        run = runs.read(folder)
        assert (run.state, run.step, run.left_s) == ("running", 5, pytest.approx(28.0))
        code, text = cli("stop", "alive")
        assert code == 0, text
        assert (run.checkpoint, run.recipe.trainer.save_freq) == (None, 20)
        assert (folder.parent.parent / "checkpoints" / "alive" / STOP_REQUEST).exists()

        looks = []

        def sleep(_):
            looks.append(runs.read(folder).step)
            (folder / "metrics.jsonl").write_text("".join(lines[: 6 + 2 * len(looks)]))
            if len(looks) == 3:
                launcher.communicate(b"\n")

        console = Console(force_terminal=True, width=120, file=io.StringIO())
        watch(folder, console, 0.2, once=False, sleep=sleep)
        assert looks == [5, 7, 9]
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed == {"metrics.jsonl", ".lock"}, "watching writes nothing"
    assert cli("stop", "alive")[0] == 2


@given(st.lists(st.floats(), max_size=200), st.integers(1, 60))
def test_a_sparkline_is_no_wider_than_asked(values, width):
    assert len(sparkline(values, width)) <= width
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, float("nan"), 1]) == "▄ ▄"


def test_the_command_starts_without_the_trainers_libraries():
    """`watch` beside a run must not take a gigabyte: neither torch nor verl is imported."""
    code = (
        "import sys, recipes.monitor.__main__, recipes.monitor.watch; print({'torch','verl','ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
