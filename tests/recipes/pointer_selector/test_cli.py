"""The commands end to end: what a run leaves, presets on own data, evaluation, the study; a user's mistakes."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from recipes.paths import data_dir
from recipes.pointer_selector import cli, workload
from recipes.pointer_selector.config import presets, resolve
from recipes.pointer_selector.evaluation import baseline_results, logged_log_probs, measure
from recipes.pointer_selector.selector import PointerSelector, load
from recipes.runs import folder
from recipes.runs.metrics import read_history
from tests.mistakes import mistake
from tools import pointer_study

SMALL = ["policy.hidden=16", "rce.epochs=1", "grpo.epochs=1", "trainer.device=cpu"]


def invoke(command, *arguments):
    app = Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


def test_a_run_leaves_what_the_documentation_says(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    run, text = tmp_path / "runs" / "pointer_selector", StringIO()
    cli.train(resolve(SMALL), Console(file=text, width=200))
    names = {"config.yaml", "about.json", "data.json", "metrics.jsonl", "summary.json", "tensorboard", ".lock"}
    assert {path.name for path in run.iterdir()} == names
    assert list((run / "tensorboard").glob("events.*"))
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["accuracy"]) == {"random", "no examples", "nearest", "selector", "warm-up"}
    seen = folder.read(run)
    assert (seen.state, seen.task, seen.notes) == ("finished", "pointer_selector", ())
    assert seen.total == seen.step
    assert seen.validated.value <= seen.best.value == summary["best"]["value"]
    shown = text.getvalue()
    assert all(line in shown for line in ("rce 1/1", "grpo 1/1", "eval_pointer_selector.py"))
    checkpoints = tmp_path / "checkpoints" / "pointer_selector"
    assert PointerSelector.from_pretrained(checkpoints, device="cpu").shot_num == 4
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != "summary.json"}
    cli.train(resolve(SMALL), Console(file=text, width=200))
    assert text.getvalue().count("rce 1/1") == shown.count("rce 1/1")  # finished: nothing is trained twice
    mistake(lambda: cli.train(resolve([*SMALL, "grpo.lr=1e-5"]), Console(file=StringIO())))
    assert {path: path.read_bytes() for path in before} == before
    out = tmp_path / "evaluation.json"
    done = invoke(cli.evaluate_command, *SMALL, "--out", str(out))
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["accuracy"] == summary["accuracy"]


KILLED = """
import os, signal, sys
from recipes.pointer_selector import cli, training

write, count = training.RunLog.write, 0

def write_and_die(self, step, metrics):
    global count
    write(self, step, metrics)
    count += 1
    if count == 14:  # in GRPO
        os.kill(os.getpid(), signal.SIGKILL)

training.RunLog.write = write_and_die
cli.train_command(sys.argv[1:])
"""


def test_a_run_killed_by_sigkill_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    settings = [*SMALL, "data.batch_size=4"]
    folders, histories = [], []
    for name in ("whole", "killed"):
        monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / name))
        workload.prepare(data_dir("pointer_selector"))  # the small one, for the other process too
        histories.append(tmp_path / name / "runs" / "pointer_selector" / "metrics.jsonl")
        folders.append(tmp_path / name / "checkpoints" / "pointer_selector")
        if name == "killed":
            done = subprocess.run([sys.executable, "-c", KILLED, *settings], stdout=subprocess.DEVNULL)
            assert done.returncode == -signal.SIGKILL
            assert 0 < lines(histories[1]) < lines(histories[0])
        cli.train(resolve(settings), Console(file=StringIO()))
    for part in ("warm_up", "best"):
        whole, killed = (load(each / part)[0].state_dict() for each in folders)
        assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert read_history(histories[0]) == read_history(histories[1])


def lines(path):
    return path.read_bytes().count(b"\n") if path.is_file() else 0


@pytest.mark.parametrize("preset", presets())
def test_a_preset_trains_on_own_data(tmp_path, monkeypatch, write_data, preset):
    """Candidates have the numbers that the presets' reward reads, beam_score and vqa_correct, and no others."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    path, table = write_data(tmp_path / "mine")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kept = ("pointer", "beam_score", "vqa_correct")
    for record in records:
        query = record["query_id"]
        record |= {"query_id": f"q[{query}]", "embedding_id": query}
        record["pointer_candidates"] = [{name: each[name] for name in kept} for each in record["pointer_candidates"]]
    for each in records[0]["pointer_candidates"]:
        each |= {"beam_score": 0.5, "vqa_correct": 1, "gen_method": "[red]"}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    own = [f"data.candidates={path}", f"data.query_embeddings={table}", "SHOT_NUM=2"]
    read = invoke(cli.data_command, *own)
    assert read.exit_code == 0
    assert "'[red]': 8" in read.output, "names of the user's are no markup"
    recipe, text = resolve([*own, "RCE_EPOCHS=2", "GRPO_EPOCHS=1", "policy.hidden=16"], preset=preset), StringIO()
    cli.train(recipe, Console(file=text, width=10_000))
    assert "'q[0]'" in text.getvalue(), "the first query whose rewards are equal"
    command = next(line for line in text.getvalue().splitlines() if line.startswith("next: "))
    done = invoke(cli.evaluate_command, *command.split()[3:])  # as it is printed, candidates included
    assert done.exit_code == 0, done.output
    assert "selector - beam_score" in done.output
    name = f"trainer.experiment_name={recipe.trainer.experiment_name}"
    assert "(64, 64)" in invoke(cli.evaluate_command, name).stderr, "the digits, where the own data were forgotten"


def test_data_with_beam_scores_alone_is_trained_and_measured_by_them(tmp_path, monkeypatch, write_data):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    path, table = write_data(tmp_path, queries=40)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        kept = ("pointer", "beam_score")
        record["pointer_candidates"] = [{name: c[name] for name in kept} for c in record["pointer_candidates"]]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    own = [*SMALL, f"CANDIDATES={path}", f"QUERY_EMBEDDINGS={table}"]
    error = mistake(lambda: cli.train(resolve(own), Console(file=StringIO())), "reward.mode=probability")
    assert "REWARD_MODE to quality" in error.fix
    text = StringIO()
    cli.train(resolve([*own, "REWARD_MODE=quality"]), Console(file=text, width=200))
    assert all(part in text.getvalue() for part in ("SHOT_NUM is 2", "beam_score of the picks", "grpo 1/1"))
    assert folder.read(tmp_path / "runs" / "pointer_selector").measure == "score"


def test_without_a_model_the_most_likely_logged_candidate_counts(data, make_policy):
    policy = make_policy().float()
    baselines = baseline_results(data, None, [1, 2, 3])
    results = measure(policy, data, None, [2, 3])
    assert list(results) == [2]  # nothing is logged for 3
    total = logged_log_probs(policy, data, batch_size=3).sum(-1).numpy()
    for query, correct in zip(results[2].queries, results[2].correct, strict=True):
        rows = np.flatnonzero((data.candidate_query == query) & (data.lengths == 2))
        outcomes = data.scores["vqa_correct"][rows]
        assert correct == outcomes[total[rows].argmax()]
        assert baselines["random"][2].correct[query] == pytest.approx(outcomes.mean())
        best = data.scores["beam_score"][rows].argmax()
        assert baselines["beam_score"][2].correct[query] == outcomes[best]


def test_a_study_trains_starts_first_and_compares_with_the_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    # In this process, which has imported torch.
    monkeypatch.setattr(pointer_study, "ProcessPoolExecutor", lambda jobs, context: ThreadPoolExecutor(1))
    arms = ("main/recipe", "supervised/alone", "from supervised/GRPO", "ratio/step")
    pointer_study.main(SMALL, "|".join(arms), seeds=1, against=arms[0], jobs=2, out=tmp_path / "out")
    assert len(list((tmp_path / "runs").glob("study_*"))) == 3, "an arm that comes to the recipe shares its runs"
    found = {row["arm"]: row for row in json.loads((tmp_path / "out" / "sweep.json").read_text())["arms"]}
    assert {found[arm]["seeds"] for arm in arms} == {1}
    assert found["ratio/step"]["difference"][0] == 0
    means = [np.mean([value for value, _ in found[arm]["test"].values()]) for arm in (arms[0], arms[2])]
    assert found[arms[2]]["difference"][0] == pytest.approx(means[1] - means[0])
    assert (tmp_path / "out" / "sweep.svg").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("argument", "environ", "named"),
    [
        ("rce.epoch=1", {}, "rce.epochs"),
        ("grpo.epochs=1", {"NUM_LAYERS": "4"}, "policy.layers"),
        ("grpo.epochs=1", {"RCE_EPOCHS": "3-5"}, "RCE_EPOCHS"),
        ("data.candidates=/none.json", {}, "data.query_embeddings"),
        ("data.train_queries=31", {}, "data.train_queries"),
    ],
)
def test_mistakes_end_with_one_message_and_code_2(tmp_path, monkeypatch, argument, environ, named):
    for name, value in ({"ARTIFACTS_DIR": str(tmp_path)} | environ).items():
        monkeypatch.setenv(name, value)
    done = invoke(cli.train_command, argument)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.output
    assert named in done.stderr
