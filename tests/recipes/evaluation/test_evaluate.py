"""Whole evaluations with a scripted model: what is asked, what is cached, what is written."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from functools import partial

import pyarrow.parquet as pq
import pytest

from recipes.benchmarks.evaluation import measure
from recipes.data.rows import make_row, read_manifest, write_split
from recipes.errors import RecipeError
from recipes.evaluation import evaluate
from recipes.evaluation.evaluate import run
from recipes.evaluation.models import Subject
from recipes.evaluation.plan import EvaluationPlan
from recipes.evaluation.sampling import Sampling
from recipes.evaluation.scoring import Reward

SAMPLED = Sampling(n=8, temperature=1.0, top_p=1.0, max_tokens=32, seed=0)
GREEDY = Sampling(n=1, temperature=0.0, top_p=1.0, max_tokens=32, seed=0)


@contextlib.contextmanager
def silent(words, total):
    yield lambda count: None


@pytest.fixture
def world(monkeypatch, make_data, reward_path, scripted):
    """Samplers by model name, and a plan to vary."""

    class World:
        def __init__(self):
            self.samplers = {"model": scripted(0.5), "old": scripted(0.3), "new": scripted(0.7)}
            self.started = []

        def subject(self, label, name):
            return Subject(label, name, name, f"hash of {name}", reward_path.parent)

        def plan(self, **changes):
            base = {
                "task": "sums",
                "subjects": (self.subject("model", "model"),),
                "data": make_data(30),
                "reward": Reward(str(reward_path)),
                "sampled": SAMPLED,
                "greedy": None,
                "batch": 32,
            }
            return EvaluationPlan(**(base | changes))

        def two(self, **changes):
            both = (self.subject("base", "old"), self.subject("trained", "new"))
            return self.plan(subjects=both, greedy=GREEDY, batch=None, **changes)

    world = World()
    # A second for every report; test_report.py draws them.
    monkeypatch.setattr(evaluate, "draw_all", lambda result: [])

    def start(self, *args):
        world.started.append(self.name)
        return world.samplers[self.name]

    monkeypatch.setattr(Subject, "start", start)
    return world


def on_disk(folder):
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_probe_writes_everything(world):
    result, folder = run(world.plan(), silent)
    report = on_disk(folder)
    assert report == json.loads(json.dumps(asdict(result)))
    assert report["kind"] == "analyse"
    summary = result.models["model"].passes["sampled"]
    questions = lines(folder / "questions.jsonl")
    assert [question["row"] for question in questions] == list(range(30))
    stats = [question["passes"]["model_sampled"] for question in questions]
    for name in ("accuracy", "mean_score", "score_variance", "group_entropy_bits", "token_entropy_nats", "truncated"):
        assert summary.figures[name].value == pytest.approx(sum(one[name] for one in stats) / 30), name
    assert sum(summary.reasons.values()) == summary.responses == 240
    assert sum(summary.histograms["mean_score"]["counts"]) == 30
    tokens = summary.histograms["tokens"]
    assert sum(tokens["right"]) + sum(tokens["wrong"]) == 240
    assert result.probe.kept == pytest.approx(32 * (1 - summary.groups.zero_variance.share))
    good = lines(folder / "completions" / "model_sampled_success.jsonl")
    bad = lines(folder / "completions" / "model_sampled_fail.jsonl")
    assert len(good) + len(bad) == 240
    assert len(good) / 240 == pytest.approx(summary.figures["pass@1"].value)
    assert {line["accuracy"] for line in good} == {1.0}
    names = {"report.json", "report.html", "report.md", "questions.jsonl", "completions"}
    assert {path.name for path in folder.iterdir()} == names


def test_every_response_is_scored_once(world):
    plan = world.two()
    scored = []
    plan.reward._score = partial(lambda score, *a, **k: scored.append(a[:2]) or score(*a, **k), plan.reward._score)
    run(plan, silent)
    assert len(scored) == 2 * 30 * (8 + 1)


def test_the_same_again_generates_nothing(world):
    _, folder = run(world.plan(), silent)
    before = on_disk(folder)
    world.samplers["model"].asked.clear()
    _, again = run(world.plan(), silent)
    assert world.samplers["model"].asked == []
    assert world.started == ["model"], "a model that is not needed is not loaded"
    assert again == folder
    after = on_disk(again)
    assert after["models"] == before["models"]
    assert after["generated"] == {"model_sampled": 0}


def test_a_larger_limit_asks_only_what_is_new(world):
    run(world.plan(limit=10), silent)
    world.samplers["model"].asked.clear()
    run(world.plan(limit=25), silent)
    assert world.samplers["model"].asked == list(range(10, 25))


def test_fresh_asks_again(world):
    run(world.plan(limit=5), silent)
    world.samplers["model"].asked.clear()
    run(world.plan(limit=5, fresh=True), silent)
    assert world.samplers["model"].asked == list(range(5))


def test_another_reward_scores_the_same_responses(world, reward_path):
    first, folder = run(world.plan(), silent)
    world.samplers["model"].asked.clear()
    reward_path.write_text(reward_path.read_text().replace("0.1 * tagged", "0.3 * tagged"))
    second, other = run(world.plan(reward=Reward(str(reward_path))), silent)
    assert world.samplers["model"].asked == []
    assert other != folder
    means = [each.models["model"].passes["sampled"].figures["mean_score"].value for each in (first, second)]
    assert means[0] < means[1]


def test_an_interrupted_run_resumes(world):
    world.samplers["model"].die_after = 12
    with pytest.raises(KeyboardInterrupt):
        run(world.plan(), silent)
    assert world.samplers["model"].closed
    world.samplers["model"].die_after = None
    world.samplers["model"].asked.clear()
    resumed, _ = run(world.plan(), silent)
    assert world.samplers["model"].asked == list(range(12, 30))
    again, _ = run(replace(world.plan(), fresh=True), silent)
    assert again.models == resumed.models


def test_nothing_is_written_before_it_is_whole(world, artifacts, monkeypatch):
    class Broken(evaluate.CompletionLog):
        def add_group(self, *args):
            raise RuntimeError("bug")

    monkeypatch.setattr(evaluate, "CompletionLog", Broken)
    with pytest.raises(RuntimeError, match="bug"):
        run(world.plan(), silent)
    assert list((artifacts / "evaluations" / "sums").iterdir()) == []


def test_nan_stops_it_and_keeps_what_was_good(world, artifacts):
    sampler = world.samplers["model"]
    run(world.plan(limit=4), silent)
    sampler.logprob = float("nan")
    with pytest.raises(RecipeError, match="log-probability of response 0 to row 4 is nan") as found:
        run(world.plan(limit=8), silent)
    assert "4 of 8 questions are kept" in found.value.fix
    assert "NaN in the weights" in found.value.fix


def test_one_model_is_measured_greedy_and_sampled(world):
    result, _ = run(world.plan(greedy=GREEDY, batch=None), silent)
    assert result.kind == "evaluation"
    both = result.models["model"].passes
    assert both["greedy"].responses == 30
    assert both["greedy"].groups is None
    assert "score_variance" not in both["greedy"].figures
    assert both["greedy"].figures["token_entropy_nats"] is None, "the likelihood of greedy answers is no entropy"
    assert both["sampled"].figures["token_entropy_nats"].value == pytest.approx(0.25)


def test_answers_that_are_cut_off_are_named_in_the_headline(world):
    assert "cut off" not in run(world.two(), silent)[0].headline.text
    for sampler in world.samplers.values():
        sampler.finish = "length"
    for plan in (world.plan(greedy=GREEDY, batch=None, fresh=True), world.two(fresh=True)):
        assert "cut off 100.0% of the sampled answers" in run(plan, silent)[0].headline.text


def test_base_against_trained(world):
    result, _ = run(world.two(), silent)
    assert world.started == ["old", "new"]
    assert world.samplers["old"].closed
    models, comparison = result.models, result.comparison
    for name in ("accuracy", "mean_tokens", "token_entropy_nats", "pass@8"):
        base, trained = (models[label].passes["sampled"].figures[name].value for label in ("base", "trained"))
        assert comparison.differences["sampled"][name].value == pytest.approx(trained - base), name
    primary = comparison.primary
    assert len(primary.won) + len(primary.lost) + primary.both_right + primary.both_wrong == 30
    assert primary.difference.value == pytest.approx((len(primary.won) - len(primary.lost)) / 30)
    assert result.headline.level == "good"


def test_a_second_comparison_reuses_the_first_ones_base(world):
    run(world.plan(subjects=(world.subject("model", "old"),), greedy=GREEDY, batch=None), silent)
    world.samplers["old"].asked.clear()
    run(world.two(), silent)
    assert world.samplers["old"].asked == []


def test_a_folder_of_something_else_is_not_overwritten(world, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious.txt").write_text("mine")
    with pytest.raises(RecipeError, match="holds something else"):
        run(world.plan(output=target), silent)
    assert world.samplers["model"].asked == [], "found out before the work"
    run(world.plan(output=target, overwrite=True), silent)
    run(world.plan(output=target), silent)
    with pytest.raises(RecipeError, match="holds something else"):
        run(world.plan(output=target, limit=3), silent)


def test_n_1_cannot_be_analysed(world):
    with pytest.raises(RecipeError, match="groups of one"):
        world.plan(sampled=replace(SAMPLED, n=1))


@pytest.fixture
def split(tmp_path):
    """A split as the data scripts write it, with a manifest."""
    path = tmp_path / "data" / "train.parquet"
    rows = (
        make_row(
            data_source="sums",
            prompt=f"What is {index} + {index}?",
            ground_truth=str(2 * index),
            ability="math",
            extra_info={"split": "train", "index": index},
        )
        for index in range(40)
    )
    write_split(path, rows, manifest={"source": "test"})
    return path


def test_filtering_drops_what_gives_no_signal(world, split, tmp_path):
    plan = world.plan(data=split, sampled=replace(SAMPLED, n=2), filter_out=tmp_path / "kept.parquet", limit=30)
    result, folder = run(plan, silent)
    kept = pq.read_table(tmp_path / "kept.parquet")
    rows = [info["index"] for info in kept.column("extra_info").to_pylist()]
    questions = lines(folder / "questions.jsonl")
    silent_rows = {
        q["row"]: q["passes"]["model_sampled"]
        for q in questions
        if q["passes"]["model_sampled"]["score_variance"] < 1e-12
    }
    assert silent_rows, "the test needs some"
    assert rows == [index for index in range(40) if index not in silent_rows]
    manifest = read_manifest(tmp_path / "kept.parquet", verify=True)
    assert {entry["row"] for entry in manifest["filter"]["rows"]} == set(silent_rows)
    for entry in manifest["filter"]["rows"]:
        stats = silent_rows[entry["row"]]
        expected = "all right" if stats["right"] == 2 else "all wrong" if stats["mean_score"] == 0 else "same score"
        assert entry["why"] == expected
    assert manifest["filter"]["not_probed"] == 10
    assert manifest["rows"] == len(rows) == result.filtered.kept
    assert manifest["probe"]["models"] == {"model": "hash of model"}
    assert manifest["source_manifest"]["source"] == "test"
    assert kept.schema.equals(pq.read_schema(split)), "the trainer reads both files alike"


def test_filtering_everything_is_an_error_and_writes_nothing(world, split, tmp_path, artifacts):
    world.samplers["model"].skill = 1.0
    with pytest.raises(RecipeError, match="nothing would be left"):
        run(world.plan(data=split, filter_out=tmp_path / "kept.parquet"), silent)
    assert not (tmp_path / "kept.parquet").exists()
    assert list((artifacts / "evaluations" / "sums").iterdir()) == []


def test_filtering_does_not_overwrite(world, split, tmp_path):
    for target in (split, tmp_path / "there.parquet"):
        (tmp_path / "there.parquet").write_text("mine")
        with pytest.raises(RecipeError, match=r"data itself|exists"):
            world.plan(data=split, filter_out=target)
    with pytest.raises(RecipeError, match="data itself"):
        world.plan(data=split, filter_out=split, overwrite=True)
    with pytest.raises(RecipeError, match="needs the signal probe"):
        world.plan(data=split, filter_out=tmp_path / "new.parquet", greedy=GREEDY)


def test_more_responses_take_nearly_the_same_memory():
    few, many = measure(4_000, 16_000)
    # 12,000 more responses of 620 characters would be at least 26 MiB as records; their 750 questions may stay.
    assert many.peak_mib - few.peak_mib < 15
    assert many.microseconds_each < 2_000, "CPU time, whatever else the machine does"
