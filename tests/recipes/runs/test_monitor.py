"""`python scripts/monitor.py` on the files of runs: healthy, torn, of another version, alive, and none."""

import io
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from recipes.config import load, to_yaml
from recipes.engines.checkpoints import STOP_REQUEST, checkpoint_at, keep_best, saved_steps
from recipes.runs import folder as runs
from recipes.runs.cli import app
from recipes.runs.summary import card, results
from recipes.runs.supervise import BestCheckpoint
from recipes.runs.terminal import validation_line, watch
from tests.mistakes import mistake
from tools.learning_curves import learning


def cli(*arguments):
    """Exit code and everything printed."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "200"})
    return done.exit_code, done.output


def save(folder, step):
    """A checkpoint that engines and launcher take for one."""
    model = folder / f"global_step_{step}" / "actor" / "huggingface"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_text("weights")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Writes runs of 12 steps with three validations of 40 questions; `right` says how many are right at each."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))

    def make(name, right=(10, 15, 30), arguments=(), tail="", stated=True, artifacts=tmp_path):
        folder = artifacts / "runs" / name
        (folder / "validation").mkdir(parents=True)
        keys = (f"trainer.experiment_name={name}", "trainer.max_steps=12", *arguments)
        (folder / "config.yaml").write_text(to_yaml(load("countdown", arguments=keys, environ={}, hardware="cpu")))
        lines = []
        for step in range(13):
            data = {}
            if step:
                data = {"critic/score/mean": 0.1 * step**0.5, "actor/entropy": 0.2, "timing_s/step": 4.0}
                data |= {"actor/grad_norm": 0.1, "actor/reward_kl_penalty": 0.001 * step, "response_length/mean": 20.0}
                data |= {"frac_reward_zero_std": 0.25}
            if step % 6 == 0:
                count = right[step // 6]
                data[f"val-core/countdown/{'acc' if stated else 'reward'}/mean@1"] = (1 if stated else 10) * count / 40
                answers = [
                    {"input": f"question <{i}>", "output": f"<think>{i}</think>&", "gts": "1", "acc": float(i < count)}
                    | {"row_id": f"r{i}"}
                    for i in range(40)
                ]
                for answer in answers:
                    answer["score"] = answer["acc"] if stated else 10 * answer.pop("acc")
                dump = "\n".join(map(json.dumps, answers))
                (folder / "validation" / f"{step}.jsonl").write_text(dump + "\n")
            lines.append(json.dumps({"step": step, "data": data}))
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n" + tail)
        (folder / "train.log").write_text("==== attempt of 2026-01-01\n")
        return folder

    return make


def test_list_watch_and_report_of_a_good_run(make_run):
    folder = make_run("good")
    make_run("older")
    os.utime(folder.parent / "older", (1, 1))
    code, text = cli("list")
    assert code == 0
    assert re.search(r"good +finished +12/12 +accuracy 0\.750", text)
    assert text.index("good") < text.index("older")

    code, text = cli("watch", "good", "--once")
    assert code == 0
    assert "0.250 → 0.750" in text
    assert not re.search("(warning|failure) ", text)

    code, text = cli("report", "good")
    assert code == 0
    page = (folder / "report.html").read_text()
    assert re.findall(r"<script|(?:src|href)=[\"'](?!#)[^\"']*", page) == [], "a browser would load it"
    assert "question &lt;10&gt;" in page, "a question that was won, escaped"
    assert "75.0 (59.8 to 85.8)" in page, "Wilson's interval of 30 in 40"


def shown_everywhere(name):
    """What list, watch, report, comparison, card and the end of a run say of a run, without figures and notes."""
    folder = runs.find(name)
    texts = [
        cli("watch", name, "--once")[1],
        cli("compare", name, "other")[1],
        *map(str, results(runs.read(folder))),
    ]
    assert cli("report", name)[0] == 0
    page = re.sub(r'<svg.*?</svg>|<p class="note">.*?</p>', "", (folder / "report.html").read_text(), flags=re.DOTALL)
    return "\n".join([*texts, page, card(runs.read(folder).recipe, 12)])


@pytest.mark.parametrize(
    ("change", "validated", "first"),
    [
        (("worker.actor.optim.lr", 1e-4, 3e-5), False, 0),
        (("reward", {"a.py": "1" * 64}, {"a.py": "2" * 64}), False, 12),
        (("worker.reward.reward_weights", [1.0], [2.0]), True, 6),
        (("validation rows", "1" * 64, "2" * 64), True, 6),
    ],
)
def test_a_changed_reward_breaks_the_series_everywhere(make_run, change, validated, first):
    folder = make_run("changed", right=(3, 14, 30))
    make_run("other", right=(30, 30, 30))
    runs.add_changes(folder, 6, [runs.Change(*change, "from the next step on", True)], validated)
    with (folder / runs.CHANGES).open("ab") as file:  # the launcher was killed as it wrote
        file.write(b'{"after_step": null, "changes": []}\n\xff\n{"after_step": 9, "chan')
    shown = shown_everywhere("changed")
    assert f"{runs.Change(*change, '', True).described}".replace(">", "&gt;") in shown
    shares = {0: ("0.075", "7.5 ("), 6: ("0.350", "35.0 ("), 12: ("0.750", "75.0 (")}
    for step, texts in shares.items():
        for text in texts:
            assert (text in shown) == (step in (first, 12) or (first < step and "(" in text)), (step, text)


def test_two_runs_with_intervals_the_paired_difference_and_their_settings(make_run):
    make_run("one")
    other = make_run("two", right=(10, 12, 12), arguments=("worker.actor.optim.lr=3e-5",))
    code, text = cli("compare", "one", "two")
    assert code == 0
    assert "75.0 (59.8 to 85.8)" in text
    assert "step 12, 40 questions: two - one = -45.0 points" in text
    assert re.search(r"worker\.actor\.optim\.lr +0\.0001 +3e-05", text)
    for folder in (other, other.parent / "one"):
        dump = folder / "validation" / "12.jsonl"
        dump.write_text(re.sub(r"question <(\d+)\d>", r"question <\1>", dump.read_text()))
    assert "step 12, 40 questions, 10 of them different: two" in cli("compare", "one", "two")[1]


def test_a_page_of_runs_with_chinese_names_warns_of_no_font(make_run, recwarn):
    make_run("甲_one")
    make_run("乙")
    assert cli("compare", "甲_one", "乙")[0] == 0
    assert not [each for each in recwarn if "Glyph" in str(each.message)]


def test_validations_without_responses_are_named_as_such(make_run):
    shutil.rmtree(make_run("one") / "validation")
    assert "no responses are there of each validation" in cli("watch", "one", "--once")[1]


def test_any_number_of_runs_on_one_page_named_by_what_differs(make_run):
    folder = make_run("one")
    for name, rate in (("two", "3e-5"), ("three", "1e-5")):
        make_run(name, right=(10, 12, 12), arguments=(f"worker.actor.optim.lr={rate}",))
    code, text = cli("compare", "one", "two", "three")
    assert code == 0, text
    assert re.search(r"worker\.actor\.optim\.lr +0\.0001 +3e-05 +1e-05", text)
    assert len(re.findall(r"(two|three) - one = -45\.0 points", text)) == 2
    page = (folder / "compare.html").read_text()
    assert len(re.findall("lr (?:0.0001|3e-05|1e-05): held-out accuracy", page)) == 3
    assert "itself" in cli("compare", "one", "one")[1]
    (folder.parent / "three" / "config.yaml").write_text("of_another_version: 1\n")
    assert cli("compare", "one", "three")[0] == 0
    assert len(re.findall("(?:one|three): held-out accuracy", (folder / "compare.html").read_text())) == 2
    runs_of = [folder, folder.parent / "two"]
    assert "worker.actor.optim.lr 0.0001 | 3e-05" in mistake(lambda: learning(runs_of)).what
    assert learning(runs_of, may=("worker.actor.optim.lr",)).mean.keys() == {0, 6, 12}


def test_a_reward_that_states_no_accuracy_has_a_score_everywhere(make_run):
    """Ten for right and none otherwise: 3.75 of 10 is no accuracy of 37.5%."""
    folder = make_run("scored", right=(10, 12, 15), stated=False)
    make_run("better", right=(10, 12, 30), stated=False)
    make_run("stated")
    shown = {name: cli(*name.split())[1] for name in ("list", "watch scored --once", "compare scored better")}
    assert "score 3.750" in shown["list"]
    assert "held-out score" in shown["watch scored --once"]
    assert re.search(r"12 +3\.750 \(\d\.\d+ to \d\.\d+\) +7\.500 ", shown["compare scored better"])
    assert "better - scored = +3.750 (95% interval" in shown["compare scored better"]
    assert not [name for name, text in shown.items() if "accuracy" in text.replace("stated", "") and name != "list"]
    mixed = cli("compare", "scored", "stated")[1]
    assert "is not paired" in mixed
    assert re.search(r"12 +score 3\.750 \(.*?\) +accuracy 75\.0 \(59\.8 to 85\.8\)", mixed)
    assert cli("report", "scored")[0] == 0
    page = (folder / "report.html").read_text()
    assert "held-out score" in page
    assert "held-out accuracy" not in page
    assert len(re.findall(r'<span class="dot (good|bad)?"></span>step \d+: score', page)) == 3
    assert not re.findall(r'<span class="dot \w+"></span>step \d+: score', page), "no score is right or wrong"


def test_held_out_accuracy_is_the_mean_over_the_questions_of_all_sources_everywhere(make_run, tmp_path):
    """verl's mean over two sources is 0.5 where 30 of all 40 questions are right: one source is larger."""
    folder = make_run("sources")
    make_run("other")
    metrics = folder / "metrics.jsonl"
    two = '"val-core/large/acc/mean@1": 1.0, "val-core/small/acc/mean@1": 0.0'
    metrics.write_text(re.sub(r'"val-core/countdown/acc/mean@1": 0\.75', two, metrics.read_text()))
    run, lines = runs.read(folder), []
    assert re.search(r"sources +finished +12/12 +accuracy 0\.750", cli("list")[1])
    shown = shown_everywhere("sources")
    assert "0.500" not in shown
    assert "0.250 (step 0) -> 0.750 (step 12)" in shown
    save(tmp_path / "checkpoints" / "sources", 12)
    BestCheckpoint(run.recipe, lines.append).add_step(run.history[-1])
    assert "validation accuracy 0.750" in lines[0]
    line = validation_line(run.history[-1], run.validated)
    assert line == "validation at step 12: accuracy 0.750 (large 1.000, small 0.000)"


def test_a_copied_run_reads_its_own_validations(make_run, tmp_path):
    folder = make_run("original")
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "copied")
    (folder / "validation" / "12.jsonl").unlink()
    assert runs.read(copy).validated.questions == 40


def test_runs_are_found_whole_where_the_folder_of_artifacts_was_moved_to(make_run, tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "then"))
    rows = tmp_path / "then" / "data" / "mine.parquet"
    rows.parent.mkdir(parents=True)
    rows.touch()
    for name in ("one", "two"):
        make_run(name, arguments=(f"data.train_files={rows}",), artifacts=tmp_path / "then")
        save(tmp_path / "then" / "checkpoints" / name, 12)
    (tmp_path / "then").rename(tmp_path / "now")
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "now"))
    code, text = cli("compare", "artifacts/runs/one", "two")
    assert (code, "no setting differs" in text) == (0, True), text
    run = runs.read(runs.find("one"))
    assert (run.checkpoint.step, run.recipe.data.train_files) == (12, str(tmp_path / "now" / "data" / "mine.parquet"))
    assert "did you mean one?" in cli("watch", str(tmp_path / "then" / "runs" / "one"))[1]


def test_what_an_attempt_makes_anew_is_set_aside(make_run, tmp_path):
    folder, saved = make_run("again"), tmp_path / "checkpoints" / "again"
    recipe = runs.read(folder).recipe
    for step in (3, 6, 9):
        save(saved, step)
    keep_best(checkpoint_at(saved, 9), {"value": 0.5, "metric": "accuracy", "reward": "", "validation": ""})
    for after in (3, 6, 9):
        runs.add_changes(folder, after, [runs.Change("reward", {}, {}, "takes effect", True)])
    assert "after step 6 is set aside in" in runs.set_aside(recipe, 6)
    assert runs.set_aside(recipe, 6) == ""
    run = runs.read(folder)
    assert [step.step for step in run.history] == [0, *range(1, 7)]
    assert [each.after_step for each in runs.read_changes(folder)] == [3]
    assert (saved_steps(saved), run.best) == ([3, 6], None)
    aside = folder / "set_aside" / "1"
    assert len((aside / "metrics.jsonl").read_text().splitlines()) == 6
    assert (aside / "validation" / "12.jsonl").is_file()
    assert {path.name for path in (saved / "set_aside" / "1").iterdir()} == {"global_step_9", "best"}
    runs.set_aside(recipe, -1)
    assert (runs.read(folder).history, saved_steps(saved)) == ([], [])


def test_a_report_keeps_to_the_measure_of_the_last_reward(make_run):
    """Step 0 was validated with a reward for which 2.5 is no accuracy of 250%."""
    folder = make_run("changed_reward")
    other = make_run("before", stated=False)
    (folder / "validation" / "0.jsonl").write_text((other / "validation" / "0.jsonl").read_text())
    assert cli("report", "changed_reward")[0] == 0
    page = (folder / "report.html").read_text()
    assert "validations of steps 0 left out" in page
    assert "37.5 (24.2 to 53.0) → 75.0 (59.8 to 85.8) %" in page
    assert "250" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


OTHER_VERSION = '{"step": 1, "data": {"loss": 0.5}}\n'


@pytest.mark.parametrize(
    ("tail", "note"),
    [
        ('{"step": 13, "data": {"critic/sc', "step 12 of 12"),
        ('{"step": 13, "data": {"actor/grad_norm": NaN, "critic/score/mean": -Infinity}}\n', "not a number"),
        ('[]\n{"step": Infinity, "data": {}}\n{"step": 1, "data": 7}\n\xff\n', "step 12 of 12"),
        (OTHER_VERSION, "another version may have written it: "),
    ],
)
def test_broken_lines_are_passed_over_broken_files_noted_and_the_rest_is_shown(make_run, tail, note):
    folder = make_run("broken", tail=tail)
    if tail == OTHER_VERSION:
        with (folder / "config.yaml").open("a") as file:
            file.write("\nof_another_version: 1\n")
        (folder / "metrics.jsonl").write_text(tail)
        (folder / "validation" / "6.jsonl").write_text('{"input"')
    code, text = cli("watch", "broken", "--once")
    assert code == 0
    assert note in text
    assert (cli("list")[0], cli("report", "broken")[0]) == (0, 0)
    page = (folder / "report.html").read_text()
    assert ("validation of step 6 left out" in page) == (tail == OTHER_VERSION)


def test_a_run_that_is_not_there(make_run):
    assert cli("list") == (0, "no runs yet\n")
    assert "there is no run yet" in cli("watch", "--once")[1]
    make_run("countdown")
    code, text = cli("watch", "cuontdown", "--once")
    assert code == 2
    assert "did you mean countdown?" in text


def test_a_living_run_is_followed_to_its_end_and_can_be_asked_to_stop(make_run):
    folder = make_run("alive")
    seen, lines = [], (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:6]))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        (folder / ".lock").write_text(str(launcher.pid))
        run = runs.read(folder)
        assert (run.state, run.step, run.left_s) == ("running", 5, pytest.approx(28.0))
        code, text = cli("stop", "alive")
        assert code == 0, text
        assert (folder.parent.parent / "checkpoints" / "alive" / STOP_REQUEST).exists()

        def sleep(_):
            seen.append(runs.read(folder).step)
            (folder / "metrics.jsonl").write_text("".join(lines[: 6 + 2 * len(seen)]))
            if len(seen) == 3:
                launcher.communicate(b"\n")

        watch(folder, Console(force_terminal=True, width=120, file=io.StringIO()), once=False, sleep=sleep)
    assert seen == [5, 7, 9]
    assert cli("stop", "alive")[0] == 2
