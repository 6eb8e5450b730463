"""The command line as users type it, against the scripted server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recipes.config import load, to_yaml
from recipes.evaluation import evaluate
from recipes.evaluation.cli import make_app


@pytest.fixture
def recipe(tmp_path, make_data, reward_path):
    """A recipe of a task of its own."""
    path = tmp_path / "sums.yaml"
    path.write_text(
        f"""
data: {{train_files: "{make_data(12, "train")}", val_files: "{make_data(9, "test")}", max_response_length: 32}}
worker:
  actor: {{model: {{model_path: base}}}}
  rollout: {{n: 4, temperature: 1.0, top_p: 1.0}}
  reward: {{reward_function: "{reward_path}"}}
trainer: {{experiment_name: sums}}
"""
    )
    return path


@pytest.fixture
def eval_sums(recipe, server, monkeypatch):
    """Run the command with the recipe; returns the outcome."""
    monkeypatch.setattr(evaluate, "draw_all", lambda result: [])

    def run(*arguments, task=(recipe,)):
        extra = ["--api_base", server.api_base]
        return CliRunner().invoke(make_app(), [*map(str, (*task, *arguments)), *extra])

    return run


def report_of(outcome):
    assert outcome.exit_code == 0, outcome.output
    line = next(line for line in outcome.stdout.splitlines() if line.startswith("report: "))
    return json.loads((Path(line.removeprefix("report: ")).parent / "report.json").read_text())


def reports_in(artifacts):
    """Reports, whole or half."""
    return list((artifacts / "evaluations").glob("sums/*"))


def test_options_may_stand_before_or_after_the_word(eval_sums, server):
    report = report_of(eval_sums("--model_path", "tiny", "analyse", "--rollout_n", 16, "--limit", 5))
    assert (report["kind"], report["task"], report["identity"]["data"]["questions"]) == ("analyse", "sums", 5)
    assert report["identity"]["data"]["path"].endswith("train.parquet"), "the set that training would use"
    assert {request["n"] for request in server.requests} == {16}
    report = report_of(eval_sums("--model_path", "tiny", "--limit", 3, "reward"))
    assert (report["kind"], report["identity"]["data"]["questions"]) == ("evaluation", 3)
    assert report["identity"]["data"]["path"].endswith("test.parquet")
    assert report["identity"]["greedy"]["temperature"] == 0.0
    sampled = report["identity"]["sampled"]
    assert (sampled["n"], sampled["max_tokens"]) == (4, 32), "the recipe's where nothing is asked for"


def test_what_stops_half_way_resumes(eval_sums, server, artifacts):
    server.die_after = 5
    outcome = eval_sums("--model_path", "tiny", "analyse", "--concurrency", 1)
    assert (outcome.exit_code, reports_in(artifacts)) == (2, [])
    assert "5 of 12 questions are kept" in outcome.stderr
    server.die_after, server.nan_from = None, 3 + len(server.requests)
    outcome = eval_sums("--model_path", "tiny", "analyse", "--concurrency", 1)
    assert (outcome.exit_code, reports_in(artifacts)) == (2, [])
    assert "is nan" in outcome.stderr
    assert "7 of 12 questions are kept" in outcome.stderr
    server.nan_from = None
    assert report_of(eval_sums("--model_path", "tiny", "analyse"))["generated"] == {"model_sampled": 5}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model_path", "tiny", "analyse", "--rollout_n", "1"], "--rollout_n"),
        (["--model_path", "tiny", "--reward_path", "none.py"], "none.py"),
        (["--model_path", "other"], "other"),
        (["--model_path", "tiny", "--seed", "-1"], "seed"),
        (["--model_path", "tiny", "--data_path", "bare.parquet"], "ground_truth"),
        (["--model_path", "tiny", "gsm8k"], "gsm8k"),
        ([], "--model_path"),
    ],
)
def test_mistakes_are_named_in_one_message(eval_sums, make_data, tmp_path, monkeypatch, artifacts, arguments, named):
    monkeypatch.chdir(tmp_path)
    make_data(name="bare", rows=[{"prompt": [{"role": "user", "content": "1 + 1?"}], "data_source": "sums"}])
    outcome = eval_sums(*arguments)
    assert (outcome.exit_code, outcome.stderr.count("error:"), reports_in(artifacts)) == (2, 1, [])
    assert named in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_run_gives_data_reward_and_both_models(eval_sums, recipe, server, make_model, artifacts):
    server.models = [{"id": name, "owned_by": "vllm"} for name in ("last", "base")]
    for step in (5, 40):
        make_model(f"artifacts/checkpoints/sums/global_step_{step}/actor/huggingface", f"weights {step}".encode())
    folder = artifacts / "runs" / "sums"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        to_yaml(load(str(recipe), arguments=["worker.actor.model.model_path=some/base"]))
    )
    served = ("--served_model", "last", "--base_served_model", "base")
    report = report_of(eval_sums("--run", folder, "--limit", 3, *served, task=()))
    assert (report["kind"], report["task"]) == ("comparison", "sums")
    assert report["models"]["trained"]["name"] == "sums global_step_40"
    assert report["models"]["base"]["asked"] == "some/base"


def test_a_users_own_file_and_reward(eval_sums, tmp_path):
    data, reward = tmp_path / "mine.jsonl", tmp_path / "my_reward.py"
    records = [{"prompt": f"What is {i} + {i}?", "ground_truth": 2 * i, "data_source": "sums"} for i in range(5)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    head = "def mine(data_source, solution_str, ground_truth, extra_info=None):\n"
    reward.write_text(f"{head}    return 8.0 * (ground_truth in solution_str) + 2.0\n")
    arguments = ("--data", data, "--reward_func", f"{reward}:mine", "--model_path", "tiny")
    report = report_of(eval_sums(*arguments, task=("custom",)))
    assert (report["task"], report["identity"]["data"]["questions"]) == ("custom", 5)
    assert report["identity"]["reward"]["path"] == str(reward)
    assert report["models"]["model"]["passes"]["sampled"]["measure"] == "score"
    data.write_text(data.read_text() + "{broken\n")
    outcome = eval_sums(*arguments, task=("custom",))
    assert outcome.exit_code == 2
    assert "line 6" in outcome.stderr


def test_columns_and_sources_are_options(eval_sums, tmp_path):
    """Its own errors advise them."""
    data = tmp_path / "mine.jsonl"
    records = [{"ask": f"What is {i} + {i}?", "gold": str(2 * i)} for i in range(5)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = ("--data", data, "--model_path", "tiny", "--prompt_key", "ask", "--answer_key", "gold")
    report = report_of(eval_sums(*arguments, "--data_source", "gsm8k", task=("custom",)))
    assert report["identity"]["data"]["questions"] == 5
