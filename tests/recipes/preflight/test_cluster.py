"""Several machines: the message names what is missing, and the wait ends."""

import json
import socket

import pytest

from recipes.config import load
from recipes.preflight import cluster
from tests.mistakes import mistake


@pytest.fixture
def recipe(monkeypatch):
    for name in (cluster.ADDRESS, cluster.WAIT):
        monkeypatch.delenv(name, raising=False)
    return load("countdown", arguments=["trainer.nnodes=2"], environ={}, hardware="cpu")


def test_several_machines_need_the_name_of_a_cluster_and_one_needs_none(recipe, monkeypatch):
    for none in (None, "", "local"):
        if none is not None:
            monkeypatch.setenv(cluster.ADDRESS, none)
        mistake(lambda: cluster.check_cluster(recipe), cluster.ADDRESS)
        assert cluster.job_variables({"A": "1"}) == {}
    monkeypatch.setenv(cluster.ADDRESS, "head:6379")
    assert "same paths" in cluster.check_cluster(recipe)[0]


def test_the_wait_for_machines_ends_where_another_program_listens(recipe, monkeypatch):
    monkeypatch.setenv(cluster.WAIT, "0")
    monkeypatch.setattr(cluster, "HEALTH_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv(cluster.ADDRESS, address)
        assert address in mistake(lambda: cluster.wait_for_nodes(recipe, lambda line: None)).where


def test_a_node_without_slots_is_refused_where_slots_are_counted_by_hand(recipe, monkeypatch):
    monkeypatch.setenv(cluster.ADDRESS, "head:6379")
    monkeypatch.setattr(cluster, "alive_nodes", lambda address: [("10.0.0.1", 1), ("10.0.0.2", 0)])
    error = mistake(lambda: cluster.wait_for_nodes(recipe, lambda line: None), "10.0.0.2: 0")
    assert "--num-gpus=1" in error.fix
    assert "unset RAY_ADDRESS" in error.fix


def test_workers_on_every_node_get_the_trainers_variables_beside_those_of_a_submitted_job(monkeypatch):
    monkeypatch.setenv(cluster.ADDRESS, "head:6379")
    monkeypatch.setenv(cluster.JOB, json.dumps({"metadata": {"x": "y"}, "runtime_env": {"env_vars": {"B": "2"}}}))
    job = json.loads(cluster.job_variables({"A": "1"})[cluster.JOB])
    assert job == {"metadata": {"x": "y"}, "runtime_env": {"env_vars": {"A": "1", "B": "2"}}}
