"""The command line as users type it, against the scripted server."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recipes.config import load, to_yaml
from recipes.engines.checkpoints import checkpoint_at, keep_best
from recipes.errors import RecipeError
from recipes.evaluation import evaluate
from recipes.evaluation.cli import app
from recipes.evaluation.options import Options
from recipes.evaluation.plan import plan_of
from recipes.preflight import resume
from tests.mistakes import mistake


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
        return CliRunner().invoke(app, [*map(str, (*task, *arguments)), *extra])

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
    assert len(server.requests) == 5 * 16
    outcome = eval_sums("--model_path", "tiny", "--limit", 3, "reward", "top_k=5", "--rollout_n", 4, "rollout_n=4")
    report = report_of(outcome)
    assert report["identity"]["sampled"]["top_k"] == 5, "a key of the recipe, as the launcher takes it"
    assert "test.parquet, 9 rows" in outcome.stdout
    assert (report["kind"], report["identity"]["data"]["questions"]) == ("evaluation", 3)
    assert report["identity"]["data"]["path"].endswith("test.parquet")
    assert report["identity"]["greedy"]["temperature"] == 0.0
    sampled = report["identity"]["sampled"]
    assert (sampled["n"], sampled["max_tokens"]) == (4, 32), "the recipe's where nothing is asked for"


def test_a_server_is_asked_for_the_name_that_it_gives_its_model(eval_sums, server, make_model):
    """vLLM names a model after the path that it was started with; the same weights lie in moved artifacts here."""
    name = "artifacts/models/mine"
    make_model(name)
    server.models = [{"id": name, "owned_by": "vllm"}]
    outcome = eval_sums("--model_path", name, "--limit", 1)
    assert report_of(outcome)
    assert "known by its name on the server only" not in outcome.output
    assert {request["model"] for request in server.requests} == {name}


def test_what_stops_half_way_resumes(eval_sums, server, artifacts):
    server.die_after = 5 * 4
    outcome = eval_sums("--model_path", "tiny", "analyse", "--concurrency", 1)
    assert (outcome.exit_code, reports_in(artifacts)) == (2, [])
    assert "5 of 12 questions" in outcome.stderr
    server.die_after = None
    report_of(eval_sums("--model_path", "tiny", "analyse"))
    assert len(server.requests) == 12 * 4, "nothing was asked twice"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model_path", "tiny", "analyse", "--rollout_n", "1"], "--rollout_n"),
        (["--model_path", "tiny", "--reward_func", "none.py"], "none.py"),
        (["--model_path", "tiny", "data.override_chat_template=none.jinja"], "cannot read the chat template"),
        (["--model_path", "other"], "other"),
        (["--model_path", "tiny", "--data", "bare.parquet"], "no column prompt"),
        (["--model_path", "tiny", "gsm8k"], "gsm8k"),
        (["--model_path", "tiny", "actor_rollout_ref.rollout.multi_turn.enable=true"], "multi_turn"),
        (["--model_path", "tiny", "--temperature", "nan"], "--temperature is nan"),
        (["--model_path", "tiny", "--top_p", "0"], "--top_p is 0"),
        (["--model_path", "tiny", "--rollout_n", "2", "worker.rollout.n=3"], "n is 2 as --rollout_n, but 3 by"),
        (["--model_path", "tiny", "--temperature", "0.9", "temperature=0.3"], "is 0.9 as --temperature, but 0.3 by"),
        (["--model_path", "tiny", "--max_tokens", "30", "max_response_length=20"], "is 30 as --max_tokens, but 20 by"),
        (["--model_path", "tiny", "--seed", "6", "seed=5"], "is 6 as --seed, but 5 by"),
        ([], "--model_path"),
    ],
)
def test_mistakes_are_named_in_one_message(eval_sums, make_data, tmp_path, monkeypatch, artifacts, arguments, named):
    monkeypatch.chdir(tmp_path)
    make_data(name="bare", rows=[{"ask": "1 + 1?", "ground_truth": "2", "data_source": "sums"}])
    outcome = eval_sums(*arguments)
    assert (outcome.exit_code, outcome.stderr.count("error:"), reports_in(artifacts)) == (2, 1, [])
    assert named in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_run_gives_data_reward_and_both_models(eval_sums, recipe, server, make_model, artifacts):
    server.models = [{"id": name, "owned_by": "vllm"} for name in ("last", "base")]
    base = make_model("base_model", b"base")
    for step in (5, 40):
        make_model(f"artifacts/checkpoints/sums/global_step_{step}/actor/huggingface", f"weights {step}".encode())
    folder = artifacts / "runs" / "sums"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(load(str(recipe), arguments=[f"worker.actor.model.model_path={base}"])))
    found = plan_of(Options(run=Path("artifacts/runs/sums"), limit=3), print)
    assert [subject.label for subject in found.subjects] == ["base", "trained"]
    assert (found.subjects[1].name, found.task, found.kind) == ("sums global_step_40", "sums", "comparison")
    names = ("--model_path", "last", "--base_model_path", "base")
    report = report_of(eval_sums("--run", folder, "--limit", 3, *names, task=()))
    assert (report["kind"], report["task"]) == ("comparison", "sums")
    other = recipe.with_name("other.jsonl")  # the run's reward is the user's own, so that rows need no data source
    other.write_text('{"prompt": "What is 1 + 1?", "ground_truth": "2"}\n')
    report_of(eval_sums("--run", folder, "--data", other, *names, task=()))
    assert "artifacts/runs/sums" in mistake(lambda: plan_of(Options(run=Path("artifacts/runs/sum")), print)).fix
    assert [report["models"][label]["name"] for label in ("trained", "base")] == ["last", "base"]


def test_a_run_that_was_moved_with_its_artifacts_is_found_where_it_lies(recipe, make_model, artifacts, tmp_path):
    make_model("artifacts/checkpoints/sums/global_step_5/actor/huggingface", b"trained")
    base = make_model("artifacts/models/base", b"base")
    data, reward = artifacts / "data", artifacts / "reward.py"
    data.mkdir()
    words = [f"worker.actor.model.model_path={base}", f"worker.reward.reward_function={reward}:compute_score"]
    resolved = load(str(recipe))
    reward.write_bytes(Path(resolved.worker.reward.reward_function).read_bytes())
    for key in ("train_files", "val_files"):
        file = Path(resolved.value(f"data.{key}"))
        (data / file.name).write_bytes(file.read_bytes())
        words.append(f"data.{key}={data / file.name}")
    folder = artifacts / "runs" / "sums"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(load(str(recipe), arguments=words)))
    moved = artifacts.rename(tmp_path / "elsewhere")
    found = plan_of(Options(run=moved / "runs" / "sums"), print)
    assert [subject.source for subject in found.subjects] == [
        moved / "models" / "base",
        moved / "checkpoints" / "sums" / "global_step_5" / "actor" / "huggingface",
    ]
    assert (found.data, found.reward.path) == (moved / "data" / "test.parquet", moved / "reward.py")
    (moved / "checkpoints").rename(tmp_path / "lost")
    error = mistake(lambda: plan_of(Options(run=moved / "runs" / "sums"), print), "checkpoints are not in")
    assert str(moved / "checkpoints" / "sums") in error.fix
    on_a_server = Options(run=moved / "runs" / "sums", api_base="http://scripted/v1", gpu_memory_utilization=1)
    assert len(plan_of(on_a_server, print).subjects) == 2, "whose files may lie elsewhere"


def test_what_differs_from_the_run_that_trained_the_model_is_said(recipe, make_model, artifacts, monkeypatch):
    model = make_model("artifacts/checkpoints/sums/global_step_5/actor/huggingface", b"trained")
    (artifacts / "runs" / "sums").mkdir(parents=True)
    words = ["temperature=0.7", "data.enable_thinking=false", "worker.rollout.engine_kwargs.quantization=fp8"]
    (artifacts / "runs" / "sums" / "config.yaml").write_text(to_yaml(load(str(recipe), arguments=words, environ={})))
    monkeypatch.setenv("TOP_K", "5")
    notes = []
    plan_of(Options(arguments=[str(recipe), "LR=1e-5"], model_path=str(model)), notes.append)
    assert any("LR=1e-5" in note and "TOP_K" not in note for note in notes)
    (unlike,) = [note for note in notes if "unlike in the run" in note]
    for key in (
        "worker.rollout.temperature is 1.0, not 0.7",
        "top_k is 5, not -1",
        "enable_thinking is null, not false",
    ):
        assert key in unlike
    plan_of(Options(arguments=[str(recipe)], model_path=str(model), temperature=0.5), notes.append)
    assert "enable_thinking" in notes[-1]
    assert "temperature" not in notes[-1], "the option says it"
    with pytest.raises(RecipeError, match="spread over 64 GPUs"):
        plan_of(Options(arguments=[str(recipe)], model_path=str(model), tensor_parallel_size=64), notes.append)
    run = Options(arguments=["analyse", "temperature=0.5"], run=artifacts / "runs" / "sums")
    plan_of(run, notes.append)
    assert "temperature is 0.5, not 0.7" in notes[-1]
    assert "variable TOP_K=5, worker.rollout.engine_kwargs.quantization=fp8" in notes[-2]
    (artifacts / "runs" / "sums" / "config.yaml").write_text("name: of another version\nkey: 1\n")
    plan_of(Options(arguments=[str(recipe)], model_path=str(model)), notes.append)


@pytest.mark.parametrize("words", [[], ["analyse"]])
def test_files_changed_since_the_run_are_said(recipe, reward_path, make_data, make_model, artifacts, tmp_path, words):
    tools, template = tmp_path / "tools.py", tmp_path / "template.jinja"
    tools.write_text("from helper import f\n")
    template.write_text("{{ messages }}")
    (tmp_path / "helper.py").write_text("def f() -> str: 'F.'")
    keys = [f"worker.rollout.tools={tools}", f"data.override_chat_template={template}"]
    trained = load(str(recipe), arguments=keys, environ={})
    (artifacts / "runs" / "sums").mkdir(parents=True)
    (artifacts / "runs" / "sums" / "config.yaml").write_text(to_yaml(trained))
    base = make_model("base_model", b"base")
    resume.record(trained, resume.Start(None, now=resume.fingerprint(trained)))
    make_model("artifacts/checkpoints/sums/global_step_5/actor/huggingface", b"trained")
    run, notes = Options(arguments=words, run=artifacts / "runs" / "sums", base_model_path=str(base) * (not words)), []
    plan_of(run, notes.append)
    assert not [note for note in notes if "unlike" in note]
    for file in (tmp_path / "helper.py", template, reward_path):
        file.write_text(f"{file.read_text()} # changed")
    make_data(11, "train")
    make_data(8, "test")
    plan_of(run, notes.append)
    (said,) = [note for note in notes if "unlike" in note]
    for name in ("reward: another", "worker.rollout.tools: ", "data.override_chat_template: "):
        assert name in said
    assert ("validation rows: " in said, "training rows: " in said) == (not words, bool(words))
    keep_best(
        checkpoint_at(artifacts / "checkpoints" / "sums", 5),
        {"metric": "accuracy", "reward": "", "validation": "", "value": 1.0},
    )
    plan_of(replace(run, model_path=str(artifacts / "checkpoints" / "sums" / "best")), notes.append)
    assert notes[-1] == said
    data = "data.train_files" if words else "data.val_files"
    chosen = [f"{data}={trained.value(data)}", f"worker.reward.reward_function={reward_path}", *keys]
    plan_of(replace(run, arguments=[*words, *chosen]), notes.append)
    assert len([note for note in notes if "unlike" in note]) == 2, "nothing is said of what is typed here"


def test_what_means_nothing_without_tools_is_said(recipe, server):
    notes = []
    plan_of(
        Options(
            arguments=[str(recipe), "worker.rollout.tool_format=gsm8k"], model_path="tiny", api_base=server.api_base
        ),
        notes.append,
    )
    assert any("worker.rollout.tool_format gsm8k has no effect" in note for note in notes)


def test_a_users_own_file_and_reward(eval_sums, tmp_path):
    data, reward = tmp_path / "mine.jsonl", tmp_path / "my_reward.py"
    records = [{"ask": f"What is {i} + {i}?", "gold": 2 * i} for i in range(5)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    head = "def mine(data_source, solution_str, ground_truth, extra_info=None):\n"
    reward.write_text(f"{head}    return 8.0 * (ground_truth in solution_str) + 2.0\n")
    columns = ("--prompt_key", "ask", "--answer_key", "gold")
    arguments = ("--data", data, "--reward_func", f"{reward}:mine", "--model_path", "tiny", *columns)
    report = report_of(eval_sums(*arguments, task=("custom",)))
    assert (report["task"], report["identity"]["data"]["questions"]) == ("custom", 5)
    assert report["identity"]["reward"]["path"] == str(reward)
    assert report["models"]["model"]["passes"]["sampled"]["measure"] == "score"
    data.write_text(data.read_text() + "{broken\n")
    outcome = eval_sums(*arguments, task=("custom",))
    assert outcome.exit_code == 2
    assert "line 6" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "where"), [(["reward_weights=1,2"], "reward_weights=1,2"), (["analyse", "reward"], "the arguments")]
)
def test_weights_without_functions_and_two_modes_are_refused(recipe, make_model, words, where):
    options = Options(arguments=[str(recipe), *words], model_path=str(make_model("model", b"x")))
    assert where in mistake(lambda: plan_of(options, print)).where


@pytest.mark.parametrize(
    ("options", "is_read"),
    [
        ({"base_api_base": "http://localhost:1/v1"}, False),
        ({"overwrite": True}, False),
        ({"overwrite": True, "output_dir": Path("there")}, True),
        ({"gpu_memory_utilization": 0.5}, False),
    ],
)
def test_an_option_that_another_word_decides_is_named(recipe, make_model, monkeypatch, options, is_read):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    notes: list[str] = []
    plan_of(Options(arguments=[str(recipe)], model_path=str(make_model("model", b"x")), **options), notes.append)
    assert any(f"does not read --{next(iter(options))}" in note for note in notes) != is_read


def test_an_exported_number_of_gpus_is_that_of_a_training_where_there_are_none(recipe, make_model, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("TENSOR_PARALLEL_SIZE", "2")
    options = Options(arguments=[str(recipe)], model_path=str(make_model("model", b"x")))
    assert plan_of(options, print).engine.tensor_parallel_size == 1
