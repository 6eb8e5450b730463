"""The plug-in as verl, vLLM and Ray see it, without a trainer; one process for all, since its imports take 10 s."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes import paths
from recipes.engines.verl_cpu import settings


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    recipe = SimpleNamespace(
        data=SimpleNamespace(max_prompt_length=64, max_response_length=32),
        worker=SimpleNamespace(
            actor=SimpleNamespace(model=SimpleNamespace(model_path="none")),
            rollout=SimpleNamespace(tensor_parallel_size=1),
        ),
        trainer=SimpleNamespace(nnodes=1, n_gpus_per_node=1),
    )
    keys = {**settings.keys(recipe), "data.train_batch_size": 4}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("plugin_facts.py")), json.dumps(keys)],
        env={**os.environ, **settings.environment(recipe)},
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_platform_is_the_cpu(facts: dict[str, Any]) -> None:
    assert facts["platform"] == ["cpu", "cpu", False]


def test_both_kinds_of_model_have_an_engine_for_both_strategies(facts: dict[str, Any]) -> None:
    assert facts["engines"] == ["CpuLanguageModelEngine"] * 2 + ["CpuValueModelEngine"] * 2


def test_the_rollout_is_ours_on_both_sides(facts: dict[str, Any]) -> None:
    assert facts["replica"] == "recipes.engines.verl_cpu.rollout"
    assert facts["rollout"] == "WatchfulServerAdapter"


def test_vllm_keeps_the_weights_that_a_sync_writes_to(facts: dict[str, Any]) -> None:
    assert facts["linear"] == {"kept": True, "follows": True}


def test_forked_processes_draw_different_ids(facts: dict[str, Any]) -> None:
    first, second = facts["ids"]

    assert first
    assert first != second


def test_the_replay_buffer_differs_from_verls_in_its_poll_alone(facts: dict[str, Any]) -> None:
    for verls, ours in facts["buffers"]:
        assert (verls.pop("class"), ours.pop("class")) == ("ReplayBuffer", "QuickReplayBuffer")
        assert verls.pop("poll_interval") > 10 * ours.pop("poll_interval")
        assert ours == verls


def test_group_filtering_reaches_the_replay_buffer(facts: dict[str, Any]) -> None:
    plain, filtered, _ = (ours for _, ours in facts["buffers"])

    assert plain["filter_groups_metric"] is None
    assert filtered["filter_groups_metric"] == "acc"


def test_the_kl_penalty_changes_token_level_rewards(facts: dict[str, Any]) -> None:
    """Scores 0, 1; coefficient 0.5; the policy's log-probability of the first token is 0.5 above the reference's."""
    assert facts["kl"]["used"] is True
    assert facts["kl"]["rewards"][0] == pytest.approx([-0.25, 1.0, 0.0])
