"""Official values are facts with a source, in keys that are known, and every difference from them has a reason."""

from __future__ import annotations

import re

import pytest

from recipes.config.official import (
    EXAMPLES,
    OF_DEFAULTS,
    OUTSIDE,
    REPOSITORIES,
    SNAPSHOTS,
    chosen,
    compare,
    has_counterpart,
    names,
    repeats,
    snapshot,
)
from recipes.config.resolve import tasks
from recipes.config.schema import Recipe, leaves
from recipes.paths import ROOT

STEMS = sorted(path.stem for path in SNAPSHOTS.glob("*.yaml"))
COMMITS = {
    "easyr1": "b44b311b669bf1fd1aa2fc36f2251482ba33cb16",
    "verl": "b178a3cd56f58b2d502255daba591e92833930a7",
}
MARKER = re.compile(r"<!-- generated: comparison ([\w-]+)((?: [\w:.-]+)+) -->")


def unknown_keys(stem: str, tree: dict) -> list[str]:
    """The keys of a snapshot that neither the schema nor the list of keys outside it explains."""
    values = tree["values"]
    if tree["engine"] == "easyr1":
        return [key for key in values if key not in leaves(Recipe)]
    return [key for key in values if not (has_counterpart(key) or repeats(key, values) or key in OUTSIDE)]


def test_every_example_has_its_snapshot_and_no_other():
    layers = {"easyr1_config", "easyr1_defaults", "verl_defaults"}
    assert set(STEMS) == layers | {name.replace(":", "_", 1) for name in names()}


@pytest.mark.parametrize("stem", STEMS)
def test_a_snapshot_has_repository_commit_and_file(stem):
    tree = snapshot(stem)
    assert tree["repository"] == REPOSITORIES[tree["engine"]]
    assert tree["commit"] == COMMITS[tree["engine"]]
    assert tree["file"]
    assert tree["values"]
    if tree["layer"] == "launcher":
        example = EXAMPLES[tree["engine"]][stem.partition("_")[2]]
        assert (tree["file"], tree["title"]) == (example.file, example.title)
        assert tree["below"] == (["config", "defaults"] if tree["engine"] == "easyr1" else ["defaults"])


@pytest.mark.parametrize("stem", STEMS)
def test_a_snapshot_names_only_keys_that_the_schema_knows(stem):
    assert not unknown_keys(stem, snapshot(stem))


@pytest.mark.parametrize("engine", COMMITS)
def test_an_unknown_key_is_noticed(engine):
    tree = {"engine": engine, "values": {"trainer.val_frequency": 5, "data.max_prompt_length": 1}}
    assert unknown_keys("made_up", tree) == ["trainer.val_frequency"]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "easyr1:3b",
            {
                "trainer.n_gpus_per_node": 2,
                "trainer.val_freq": 5,
                "trainer.save_freq": 5,
                "data.rollout_batch_size": 512,
                "data.max_prompt_length": 2048,
                "worker.actor.global_batch_size": 128,
                "worker.actor.clip_ratio_high": 0.3,
                "worker.rollout.tensor_parallel_size": 2,
                "worker.rollout.n": 5,
                "worker.ref.fsdp.enable_cpu_offload": True,
                "algorithm.use_kl_loss": True,
                "trainer.project_name": "easy_r1",
            },
        ),
        ("easyr1:7b", {"trainer.n_gpus_per_node": 8, "worker.actor.model.model_path": "Qwen/Qwen2.5-VL-7B-Instruct"}),
        ("easyr1:qwen3_4b_math", {"data.max_response_length": 4096, "data.train_files": "hiyouga/math12k@train"}),
        ("easyr1:qwen2_5_vl_3b_android_gui", {"trainer.n_gpus_per_node": 2, "algorithm.kl_coef": 0.04}),
        (
            "verl:3b",
            {
                "data.rollout_batch_size": 16,
                "worker.actor.model.lora.rank": 64,
                "algorithm.kl_coef": 0.001,
                "algorithm.kl_penalty": "low_var_kl",
                "algorithm.use_kl_in_reward": False,
                "algorithm.disable_kl": False,
                "worker.ref.offload.offload_params": True,
                "trainer.n_gpus_per_node": 2,
                "trainer.val_before_train": False,
                "trainer.save_limit": -1,
                "data.seed": None,
                "worker.rollout.dtype": "bf16",
            },
        ),
        ("verl:qwen3_8b_gsm8k", {"data.rollout_batch_size": 1024, "trainer.val_freq": 5, "trainer.save_freq": 20}),
        ("verl:qwen3_4b_gsm8k_npu", {"trainer.n_gpus_per_node": 16, "worker.actor.max_token_len_per_device": 3000}),
    ],
)
def test_official_facts(name, facts):
    (official,) = chosen([name])
    assert {key: official.values[key] for key in facts} == facts


def test_defaults_are_told_from_choices():
    (official,) = chosen(["easyr1:3b"])
    assert "worker.actor.clip_ratio_high" not in official.said
    assert {"trainer.val_freq", "trainer.n_gpus_per_node"} <= official.said


def documented(task: str) -> list[tuple[str, list[str]]]:
    readmes = sorted((ROOT / "examples").glob("*/README.md"))
    found = [match for page in readmes for match in MARKER.findall(page.read_text(encoding="utf-8"))]
    return [(named, words.split()) for named, words in found if named == task]


@pytest.mark.parametrize("task", tasks())
def test_every_recipe_shows_its_table_with_a_reason_for_every_difference(task):
    """`scripts/test_render_docs.py` checks that the table is fresh."""
    tables = documented(task)
    assert tables, f"put `<!-- generated: comparison {task} easyr1 -->` and its end into a README of examples/"
    for named, against in tables:
        compare(named, chosen(against)).require_reasons()


@pytest.mark.parametrize("name", names())
def test_countdown_gives_a_reason_for_every_difference_from_every_example(name):
    compare("countdown", chosen([name])).require_reasons()


@pytest.mark.parametrize("key", OF_DEFAULTS)
def test_a_reason_for_a_default_is_for_a_key_that_differs_somewhere(key):
    default = leaves(Recipe)[key].default
    values = [official.values[key] for official in chosen(names()) if key in official.values]
    assert any(value != default for value in values), f"{key} needs no reason"
