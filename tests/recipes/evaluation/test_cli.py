"""The command line as users type it, against the scripted server."""

from __future__ import annotations

import json
from pathlib import Path

import openai._base_client
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from recipes.config import load, to_yaml
from recipes.errors import RecipeError
from recipes.evaluation import evaluate
from recipes.evaluation.cli import make_app
from recipes.evaluation.plan import _recipes_data


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(evaluate, "draw_all", lambda result: [])


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
def eval_sums(recipe, api_base):
    """Run the command with the recipe; returns the outcome."""

    def run(*arguments, server=True, task=(recipe,)):
        extra = ["--api_base", api_base, "--retries", "1"] if server else []
        return CliRunner().invoke(make_app(), [*map(str, (*task, *arguments)), *extra])

    return run


def report_of(outcome):
    assert outcome.exit_code == 0, outcome.output
    line = next(line for line in outcome.stdout.splitlines() if line.startswith("report: "))
    return json.loads((Path(line.removeprefix("report: ")).parent / "report.json").read_text())


def test_analyse_with_its_options_behind_it(eval_sums, script):
    report = report_of(
        eval_sums("--model_path", "tiny", "analyse", "--rollout_n", 16, "--temperature", 1.0, "--limit", 5)
    )
    assert report["kind"] == "analyse"
    assert report["identity"]["data"]["questions"] == 5
    assert report["identity"]["data"]["path"].endswith("train.parquet"), "the set that training would use"
    assert report["identity"]["sampled"]["n"] == 16
    assert {request["n"] for request in script.requests} == {16}
    assert report["task"] == "sums"


def test_options_may_stand_before_the_word(eval_sums):
    report = report_of(eval_sums("--model_path", "tiny", "--limit", 3, "reward"))
    assert report["kind"] == "evaluation"
    assert report["identity"]["data"]["questions"] == 3
    assert report["identity"]["data"]["path"].endswith("test.parquet")
    assert report["identity"]["greedy"]["temperature"] == 0.0


def test_base_against_trained_without_a_word(eval_sums, script):
    script.models = [{"id": "tiny", "owned_by": "vllm"}, {"id": "base", "owned_by": "vllm"}]
    outcome = eval_sums("--model_path", "tiny", "--base_model_path", "base", "--limit", 4)
    report = report_of(outcome)
    assert report["kind"] == "comparison"
    assert {request["model"] for request in script.requests} == {"tiny", "base"}
    prompts = {name: [r["messages"] for r in script.requests if r["model"] == name] for name in ("tiny", "base")}
    seeds = {name: sorted(r["seed"] for r in script.requests if r["model"] == name) for name in ("tiny", "base")}
    assert sorted(map(str, prompts["tiny"])) == sorted(map(str, prompts["base"]))
    assert seeds["tiny"] == seeds["base"]
    assert "trained - base" in outcome.stdout
    assert "No difference is shown" in outcome.stdout, "the same answers from both"


def test_a_server_that_dies_half_way_and_comes_back(eval_sums, script):
    script.die_after = 5
    first = eval_sums("--model_path", "tiny", "analyse", "--concurrency", 1)
    assert first.exit_code == 2
    assert "5 of 12 questions are kept" in first.stderr
    assert "Traceback" not in first.stderr
    script.die_after, script.served = None, 0
    script.requests.clear()
    report = report_of(eval_sums("--model_path", "tiny", "analyse"))
    assert len(script.requests) == 7
    assert report["generated"] == {"model_sampled": 7}


def test_a_local_folder_behind_a_server_is_known_by_its_weights(eval_sums, script, make_model):
    folder = make_model()
    script.models = [{"id": "tiny", "owned_by": "vllm"}]
    report_of(eval_sums("--model_path", folder, "--served_model", "tiny", "analyse", "--limit", 4))
    script.requests.clear()
    (folder / "model.safetensors").write_bytes(b"other weights")
    report_of(eval_sums("--model_path", folder, "--served_model", "tiny", "analyse", "--limit", 4))
    assert len(script.requests) == 4, "other weights, other cache"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model_path", "tiny", "analyse", "--rollout_n", "1"], "groups of one"),
        (["--model_path", "tiny", "analyse", "--base_model_path", "x"], "looks at one model"),
        (["--model_path", "tiny", "--base_model_path", "tiny"], "same model"),
        (["--model_path", "tiny", "--limit", "0"], "--limit 0"),
        (["--model_path", "tiny", "--data_path", "none.parquet"], "no data file"),
        (["--model_path", "tiny", "--reward_path", "none.py"], "no reward file"),
        (["--model_path", "other"], "has no model other"),
        (["--model_path", "tiny", "--temperature", "0", "--rollout_n", "4"], "same answer 4 times"),
        (["--model_path", "tiny", "--filter_out", "kept.parquet"], "needs the signal probe"),
    ],
)
def test_mistakes_are_named_in_one_message(eval_sums, arguments, words):
    outcome = eval_sums(*arguments)
    assert outcome.exit_code == 2
    assert words in outcome.stderr
    assert outcome.stderr.count("error:") == 1
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(("asked", "words"), [("nowhere/at/all", "there is no model"), ("folder", "not a model")])
def test_models_that_are_none(eval_sums, tmp_path, monkeypatch, asked, words):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    outcome = eval_sums("--model_path", asked, server=False)
    assert outcome.exit_code == 2
    assert words in outcome.stderr


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "empty"),
        ([{"prompt": [{"role": "user", "content": "What is 1 + 1?"}], "data_source": "sums"}], "no field ground_truth"),
    ],
)
def test_data_that_cannot_be_evaluated(eval_sums, make_data, make_row, artifacts, rows, words):
    path = make_data(name="bad", rows=rows) if rows else make_data(1, name="bad")
    if not rows:
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    outcome = eval_sums("--model_path", "tiny", "--data_path", path)
    assert outcome.exit_code == 2
    assert words in outcome.stderr
    assert written(artifacts) == []


def test_nan_ends_it_and_the_same_command_resumes(eval_sums, script, artifacts):
    script.nan_from = 5
    outcome = eval_sums("--model_path", "tiny", "analyse", "--concurrency", 1)
    assert outcome.exit_code == 2
    assert "is nan" in outcome.stderr
    assert "4 of 12 questions are kept" in outcome.stderr
    assert written(artifacts) == []
    script.nan_from = None
    script.requests.clear()
    assert report_of(eval_sums("--model_path", "tiny", "analyse"))["generated"] == {"model_sampled": 8}


def written(artifacts):
    """Reports, whole or half."""
    folder = artifacts / "evaluations" / "sums"
    return list(folder.iterdir()) if folder.is_dir() else []


def test_the_only_model_of_a_checkpoints_root_is_taken_and_named(eval_sums, make_model, tmp_path):
    only = make_model("run/global_step_5/actor/huggingface")
    arguments = ("--model_path", tmp_path / "run", "--served_model", "tiny", "analyse", "--limit", 3)
    outcome = eval_sums(*arguments)
    report = report_of(outcome)
    assert f"evaluating {only}, its only model" in outcome.stderr.replace("\n", "")
    assert report["models"]["model"]["name"] == "run global_step_5"
    other = make_model("run/global_step_10/actor/huggingface")
    outcome = eval_sums(*arguments)
    assert outcome.exit_code == 2
    assert "holds 2 models" in outcome.stderr
    assert str(other) in outcome.stderr


def test_ctrl_c_says_that_nothing_is_lost(eval_sums, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "run", interrupted)
    outcome = eval_sums("--model_path", "tiny", "analyse")
    assert outcome.exit_code == 130
    assert "the same command goes on" in outcome.stderr


def test_a_reward_without_a_finite_score_is_named(eval_sums, tmp_path):
    for body in ("{'score': float('nan')}", "{'accuracy': 1.0}", "None"):
        broken = tmp_path / "broken.py"
        broken.write_text(f"def compute_score(*a, **k):\n    return {body}\n")
        outcome = eval_sums("--model_path", "tiny", "analyse", "--reward_path", broken)
        assert outcome.exit_code == 2
        assert "no finite score" in outcome.stderr


def test_a_reward_may_return_a_plain_number(eval_sums, tmp_path):
    plain = tmp_path / "plain.py"
    plain.write_text("def mine(source, text, gold, extra_info=None):\n    return float('answer' in text)\n")
    report = report_of(eval_sums("--model_path", "tiny", "analyse", "--reward_path", f"{plain}:mine"))
    assert set(report["models"]["model"]["passes"]["sampled"]["reasons"]) == {"right", "wrong"}


def test_the_recipe_decides_what_is_not_asked_for(eval_sums, recipe):
    identity = report_of(eval_sums("--model_path", "tiny", "analyse"))["identity"]
    assert (identity["sampled"]["n"], identity["sampled"]["max_tokens"]) == (4, 32)
    assert (
        identity["batch"] == load("countdown", environ={"EMBEDDED": "0"}).data.rollout_batch_size or identity["batch"]
    )
    assert identity["data"]["questions"] == 12


def test_data_that_the_recipe_can_make_are_made(recipe, tmp_path, monkeypatch, make_data):
    (tmp_path / "test.parquet").rename(tmp_path / "kept.parquet")
    script = tmp_path / "make.py"
    script.write_text(
        f"import shutil; shutil.copy({str(tmp_path / 'kept.parquet')!r}, {str(tmp_path / 'test.parquet')!r})"
    )
    made = []
    recipe.write_text(recipe.read_text() + f"prepare: [{script}]\n")
    assert _recipes_data(load(str(recipe)), made.append, train=False) == tmp_path / "test.parquet"
    assert made == [f"making the data: python {script}"]
    assert _recipes_data(load(str(recipe)), pytest.fail, train=False) == tmp_path / "test.parquet"


def test_one_of_several_data_files_has_to_be_chosen(recipe, make_data):
    both = [str(make_data(3, name)) for name in ("easy", "hard")]
    with pytest.raises(RecipeError, match="names 2 data files") as error:
        _recipes_data(load(str(recipe), arguments=[f"data.val_files={both}"]), print, train=False)
    assert "hard.parquet" in error.value.fix


def test_a_run_gives_data_reward_and_both_models(eval_sums, recipe, script, make_model, artifacts):
    script.models = [{"id": name, "owned_by": "vllm"} for name in ("last", "base")]
    for step in (5, 40):
        make_model(f"artifacts/checkpoints/sums/global_step_{step}/actor/huggingface", f"weights {step}".encode())
    folder = artifacts / "runs" / "sums"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        to_yaml(load(str(recipe), arguments=["worker.actor.model.model_path=some/base"]))
    )
    served = ("--served_model", "last", "--base_served_model", "base")
    outcome = eval_sums("--run", folder, "--limit", 3, *served, task=())
    report = report_of(outcome)
    assert report["kind"] == "comparison"
    assert report["models"]["trained"]["name"] == "sums global_step_40"
    assert report["models"]["base"]["asked"] == "some/base"
    assert report["task"] == "sums"
    wrong = eval_sums(
        "--run", folder, "--model_path", artifacts / "checkpoints/sums/global_step_7", server=False, task=()
    )
    assert wrong.exit_code == 2
    assert "global_step_5/actor/huggingface, global_step_40/actor/huggingface" in wrong.stderr
    missing = eval_sums("--run", folder / "none", task=())
    assert "is not a run" in missing.stderr


def test_the_names_people_know_have_their_task(api_base, monkeypatch, recipe):
    outcome = CliRunner().invoke(make_app("countdown"), ["--model_path", "tiny", "gsm8k"])
    assert outcome.exit_code == 2
    assert "gsm8k is neither" in outcome.stderr
    outcome = CliRunner().invoke(make_app(), ["--model_path", "tiny"])
    assert "no task is named" in outcome.stderr


def test_a_users_own_file_and_reward(eval_sums, tmp_path):
    data = tmp_path / "mine.jsonl"
    records = [{"prompt": f"What is {i} + {i}?", "ground_truth": 2 * i, "data_source": "sums"} for i in range(5)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    reward = tmp_path / "my_reward.py"
    reward.write_text("def compute_score(source, text, gold, extra_info=None):\n    return float(gold in text)\n")
    arguments = ("--data", data, "--reward_func", reward, "--model_path", "tiny")
    report = report_of(eval_sums(*arguments, task=("custom",)))
    assert report["task"] == "custom"
    assert report["identity"]["data"]["questions"] == 5
    assert report["identity"]["reward"]["path"] == str(reward)
    data.write_text(data.read_text() + "{broken\n")
    outcome = eval_sums(*arguments, task=("custom",))
    assert outcome.exit_code == 2
    assert "line 6" in outcome.stderr
