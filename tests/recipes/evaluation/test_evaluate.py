"""Whole evaluations with a scripted model: what is asked, what is cached, what is written."""

import json
import re
import tracemalloc
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from recipes.config import load, to_yaml
from recipes.data.rows import find_manifest, write_split
from recipes.evaluation import plan
from recipes.evaluation.questions import load_questions
from recipes.evaluation.report import table
from recipes.evaluation.scoring import Reward
from recipes.responses.measures import Sampling
from recipes.runs.cli import app as monitor
from tests.mistakes import mistake

GREEDY = Sampling(1, 0.0, 1.0, 32, 0)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_probe_writes_everything(world):
    result, folder = world.run(world.plan())
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report == json.loads(json.dumps(asdict(result)))
    summary = result.models["model"].passes["sampled"]
    questions = lines(folder / "questions.jsonl")
    assert [question["row"] for question in questions] == list(range(30))
    stats = [question["passes"]["model_sampled"] for question in questions]
    for name in ("accuracy", "mean_score", "score_variance", "group_entropy_bits", "token_entropy_nats", "truncated"):
        assert summary.figures[name].value == pytest.approx(sum(one[name] for one in stats) / 30), name
    assert sum(summary.reasons.values()) == summary.responses == 240
    assert result.probe.kept == pytest.approx(32 * (1 - summary.flat_share))
    responses = lines(folder / "completions" / "model_sampled.jsonl")
    assert len(responses) == 240
    assert sum(line["accuracy"] for line in responses) / 240 == pytest.approx(summary.figures["accuracy"].value)


def test_base_against_trained_scores_every_response_once(world):
    plan = world.two()
    scored = []
    ask = plan.reward.function.score_all
    plan.reward.function.score_all = lambda calls: scored.extend(calls) or ask(calls)
    result, _ = world.run(plan)
    assert len(scored) == 2 * 30 * (8 + 1)
    assert world.started == ["old", "new"]
    assert world.samplers["old"].closed
    models, comparison = result.models, result.comparison
    for name in ("accuracy", "mean_tokens", "token_entropy_nats", "pass@8"):
        base, trained = (models[label].passes["sampled"].figures[name].value for label in ("base", "trained"))
        assert comparison.differences["sampled"][name].value == pytest.approx(trained - base), name
    assert result.headline.level == "good"
    greedy = models["base"].passes["greedy"]
    assert "token_entropy_nats" not in greedy.figures, "the likelihood of greedy answers is no entropy"


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_runs_validation_and_an_evaluation_are_compared(world, make_data, make_row, artifacts, temperature):
    """The run's dump has the same ids, and prompts by a chat template; none of its answers is right."""
    data = make_data(rows=[make_row(index, id=f"r{index}") for index in range(30)])
    _, folder = world.run(world.plan(data=data, greedy=GREEDY, batch=None))
    passed = "sampled" if temperature else "greedy"
    answers = lines(folder / "completions" / f"model_{passed}.jsonl")
    run = artifacts / "runs" / "sums"
    (run / "validation").mkdir(parents=True)
    keys = ["trainer.experiment_name=sums", f"worker.rollout.val_override_config.temperature={temperature}"]
    (run / "config.yaml").write_text(to_yaml(load("countdown", arguments=keys, environ={}, hardware="cpu")))
    (run / "metrics.jsonl").write_text('{"step": 3, "data": {"val-core/sums/acc/mean@1": 0.0}}\n')
    truths = {each["row_id"]: (each["prompt"], each["ground_truth"]) for each in answers}
    dump = [
        {"input": f"user\n{prompt}\nassistant\n", "output": "", "gts": truth, "score": 0.0, "acc": 0.0, "row_id": row}
        for row, (prompt, truth) in truths.items()
    ]
    (run / "validation" / "3.jsonl").write_text("".join(json.dumps(each) + "\n" for each in dump))

    def compared(*names):
        done = CliRunner().invoke(monitor, ["compare", *map(str, names)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    points = f"{100 * sum(each['accuracy'] for each in answers) / len(answers):.1f}"
    text = compared(run, folder)
    assert f"step 3 and {passed}, 30 questions: {folder.name} - sums = +{points} points" in text
    assert re.search(rf"{passed} +- +{points} \(", text)
    assert "Held-out accuracy" in (run / "compare.html").read_text()
    assert f"sums - {folder.name} = -{points} points" in compared(folder, "sums")
    _, other = world.run(world.plan(data=data, subjects=(world.subject("model", "new"),), greedy=GREEDY, batch=None))
    assert f"greedy, 30 questions: {other.name} - {folder.name} = +" in compared(folder, other)
    assert "Curves" not in (folder / "compare.html").read_text()


def test_only_what_the_cache_lacks_is_generated(world, reward_path):
    asked = world.samplers["model"].asked
    first, folder = world.run(world.plan(limit=10))
    again, same = world.run(world.plan(limit=10))
    assert (len(asked), world.started, same) == (10, ["model"], folder), "a model that is not needed is not loaded"
    assert again.models == first.models
    assert not any("not asked" in note for note in first.notes), "the limit leaves out no long prompts"
    world.run(world.plan())
    assert asked == list(range(30)), "a larger limit asks only what is new"
    world.run(world.plan(limit=5, fresh=True))
    assert asked[30:] == list(range(5))
    world.run(world.plan(subjects=(world.subject("model", "old"),), greedy=GREEDY, batch=None))
    asked_old = len(world.samplers["old"].asked)
    world.run(world.two())
    assert len(world.samplers["old"].asked) == asked_old, "a comparison takes the base's answers from before"
    reward_path.write_text(reward_path.read_text().replace("0.1 * tagged", "0.3 * tagged"))
    other, elsewhere = world.run(world.plan(limit=5, reward=Reward(str(reward_path))))
    assert (len(asked), elsewhere != folder) == (35, True), "another reward scores the same answers"
    means = [each.models["model"].passes["sampled"].figures["mean_score"].value for each in (first, other)]
    assert means[0] < means[1]


def test_samples_that_are_greedy_too_are_generated_once(world):
    result, _ = world.run(world.plan(sampled=GREEDY, greedy=GREEDY, batch=None))
    assert world.samplers["model"].asked == list(range(30))
    passes = result.models["model"].passes
    assert passes["sampled"].figures["pass@1"] == passes["greedy"].figures["pass@1"]


def test_a_folder_that_exists_is_not_overwritten(world, tmp_path):
    assert mistake(lambda: world.run(world.plan(output_dir=tmp_path))).where == "--output_dir"
    assert world.samplers["model"].asked == [], "seen before the work"
    (tmp_path / "out").mkdir()
    world.run(world.plan(output_dir=tmp_path / "out", overwrite=True))
    (tmp_path / "run").mkdir()
    world.run(world.plan(output_dir=tmp_path / "run", overwrite=True))
    (tmp_path / "run" / "report.json").rename(tmp_path / "run" / "config.yaml")
    mistake(lambda: world.run(world.plan(output_dir=tmp_path / "run", overwrite=True)), "exists, and is no report")
    assert (tmp_path / "run" / "config.yaml").is_file()


@pytest.fixture
def split(tmp_path, make_row):
    """A split of 40 rows as the data scripts write it, with a manifest."""
    path = tmp_path / "data" / "train.parquet"
    write_split(path, map(make_row, range(40)), {"source": "test"})
    return path


def test_filtering_drops_what_gives_no_signal(world, split, tmp_path):
    table = pq.read_table(split)  # and a column of the user's own
    pq.write_table(table.append_column("level", pa.array(range(40))), split)
    sampled = replace(world.plan().sampled, n=2)
    named = {"data": split, "sampled": sampled, "filter_out": tmp_path / "kept.jsonl"}
    mistake(lambda: world.plan(**named), "named otherwise")
    result, folder = world.run(world.plan(data=split, sampled=sampled, filter_out=tmp_path / "kept.parquet", limit=30))
    kept = pq.read_table(tmp_path / "kept.parquet")
    stats = {each["row"]: each["passes"]["model_sampled"] for each in lines(folder / "questions.jsonl")}
    dropped = {row: each for row, each in stats.items() if each["score_variance"] < 1e-12}
    assert dropped, "the test needs some"
    rows = [info["index"] for info in kept.column("extra_info").to_pylist()]
    assert kept.column("level").to_pylist() == rows
    assert rows == [index for index in range(40) if index not in dropped]
    manifest = find_manifest(tmp_path / "kept.parquet")
    reasons = {
        row: "all right" if each["accuracy"] == 1 else "all wrong" if each["mean_score"] == 0 else "same score"
        for row, each in dropped.items()
    }
    assert {int(row): why for row, why in manifest.settings["filter"]["rows"].items()} == reasons
    assert manifest.settings["filter"]["not_probed"] == 10
    assert manifest.rows == len(rows) == result.filtered.kept
    assert manifest.settings["probe"]["models"] == {"model": "hash of model"}
    assert manifest.source == str(split)
    assert kept.schema.equals(pq.read_schema(split)), "the trainer reads both files alike"


def test_filtering_does_no_harm(world, split, tmp_path, artifacts):
    new, there = tmp_path / "new.parquet", tmp_path / "there.parquet"
    there.write_text("mine")
    world.samplers["model"].skill = 1.0  # so that nothing would be left
    for path in (split, there, new):
        error = mistake(lambda path=path: world.run(world.plan(data=split, filter_out=path)))
        assert error.where == "--filter_out"
    assert not new.exists()
    assert list((artifacts / "evaluations" / "sums").iterdir()) == []


def test_more_responses_take_nearly_the_same_memory(world):
    """Texts stay on disk: as records, 360 more responses of 10,000 characters would be 3.6 MB."""
    peaks = []
    world.samplers["model"].ending = "x" * 10_000
    for n in (4, 16):
        plan = world.plan(sampled=replace(world.plan().sampled, n=n), samples=5)
        world.run(plan)  # generates, and imports what it needs
        tracemalloc.start()
        world.run(plan)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1e6


SCORED = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if ground_truth == "8":
        return None
    return 8.0 * (f"<answer>{ground_truth}<" in solution_str) + 2.0 * ("<answer>" in solution_str)
"""


@pytest.mark.parametrize("kind", ["analyse", "evaluation", "comparison"])
def test_a_reward_without_an_accuracy_and_with_a_fault_is_evaluated_to_the_end(world, tmp_path, kind):
    path = tmp_path / "scored.py"
    path.write_text(SCORED)
    reward = Reward(str(path))
    one = world.plan(reward=reward) if kind == "analyse" else world.plan(reward=reward, greedy=GREEDY, batch=None)
    result, folder = world.run(world.two(reward=reward) if kind == "comparison" else one)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert {summary.measure for model in result.models.values() for summary in model.passes.values()} == {"score"}
    sampled = next(iter(result.models.values())).passes["sampled"]
    assert sampled.failures == 8
    assert "scored.py:2" in sampled.first_failure
    assert sampled.first_failure.partition(" (")[0] in page
    assert "pass@" not in page
    assert "ccuracy" not in page.partition("<main>")[2].replace("states no accuracy", "")


@pytest.mark.parametrize("failing", ["", "<answer>"])
def test_a_reward_that_judges_no_response_of_a_pass_ends_the_evaluation(world, tmp_path, failing):
    """The other model has figures, and this one would have a score of 0."""
    path = tmp_path / "none.py"
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return "
    path.write_text(f"{head}None if {failing!r} in solution_str else 2.0")
    world.samplers["old"].skill, world.samplers["new"].skill = -1.0, 1.0  # only the trained model answers
    world.samplers["old"].first = dict.fromkeys(range(30), "I do not know.")
    error = mistake(lambda: world.run(world.two(reward=Reward(str(path)))))
    assert all(part in error.what for part in ("none.py:1", "trained_greedy" if failing else "base_greedy"))


GRADED = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return dict.fromkeys(("score", "acc"), 0.9 if f"<answer>{ground_truth}<" in solution_str else 0.4)
"""


@pytest.mark.parametrize("kind", ["evaluation", "comparison"])
def test_accuracies_between_0_and_1_are_the_first_figure(world, tmp_path, kind):
    """None is 1: the headline said pass@1 0.0%, and no row changed sides."""
    path = tmp_path / "graded.py"
    path.write_text(GRADED)
    reward = Reward(str(path))
    for sampler in world.samplers.values():
        sampler.skill = -1.0 if sampler is world.samplers["old"] else 1.0
    plan = world.two(reward=reward) if kind == "comparison" else world.plan(reward=reward, greedy=GREEDY, batch=None)
    result, folder = world.run(plan)
    page = (folder / "report.html").read_text(encoding="utf-8")
    first = table(result)[0]
    assert first.label == "Mean accuracy, greedy"
    if kind == "comparison":
        assert first.cells[-1].value == "+50.0 points"
        assert result.comparison.won == list(range(30))
        assert "30: the accuracy rose" in page
        assert page.count('data-outcome="won"') == page.count("data-outcome=")
    else:
        assert result.headline.text.startswith("Greedy accuracy 90.0% (95% interval")


def test_a_failed_response_has_the_lowest_score_where_scores_are_negative(world, tmp_path):
    """-1 for right and -11 for wrong: a failed response had 0, the best score of all."""
    path = tmp_path / "negative.py"
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return "
    path.write_text(
        f"{head}None if '<answer>' not in solution_str else -1.0 - 10.0 * (ground_truth not in solution_str)"
    )
    world.samplers["new"].skill = 1.0  # so that only the base has an answer with -11
    world.samplers["new"].first = {4: "I do not know."}
    result, folder = world.run(world.two(reward=Reward(str(path))))
    scores = [line["score"] for line in lines(folder / "completions" / "trained_greedy.jsonl")]
    assert scores == [-1.0] * 4 + [-11.0] + [-1.0] * 25
    greedy = result.models["trained"].passes["greedy"]
    assert (greedy.failures, greedy.figures["mean_score"].value) == (1, pytest.approx(-40 / 30))


def test_a_question_is_what_the_engine_asks_in_training(world, make_data, make_row, tmp_path):
    """EasyR1 has no system message: one text asks all, in its format; its truth is in a column of its own."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}]
    row = make_row(1, prompt=chat, problem="Be brief.\n\nWhat?", gold="101", chat=[chat[1]])
    data, text = make_data(rows=[row]), tmp_path / "format.jinja"
    text.write_text("{{ content }} Think.\n")

    def asked(*keys):
        made = world.plan(data=data, read=plan._read(load("custom", arguments=keys, environ={}, hardware="cpu")))
        (question,) = load_questions(data, read=made.read)
        return question.prompt, question.gold, made.prompts_hash

    of_verl, column = asked(), asked("data.prompt_key=chat")
    of_easyr1 = asked("engine=easyr1", "data.answer_key=gold")
    formatted = asked("engine=easyr1", f"data.format_prompt={text}")
    assert of_verl[:2] == (chat, "2")
    assert column[0] == [chat[1]]
    assert of_easyr1[:2] == ([{"role": "user", "content": "Be brief.\n\nWhat?"}], "101")
    assert formatted[0] == [{"role": "user", "content": "Be brief.\n\nWhat? Think."}]
    assert len({each[2] for each in (of_verl, column, of_easyr1, formatted)}) == 4, "answers are cached by the prompt"
