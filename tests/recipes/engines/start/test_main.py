"""The choice between the fork server's start and the ordinary one, which is said once."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from recipes.engines import versions
from recipes.engines.start import forkserver, main


@pytest.fixture(autouse=True)
def tested_ray(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda name: versions.TESTED_RAY)
    for name in ("RAY_ADDRESS", main.SWITCH):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "arguments", "forks"),
    [
        ({}, ["trainer.device=cpu", "ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.num_gpus=1"], True),
        ({}, ["ray_kwargs.ray_init.include_dashboard=False"], True),
        ({"RECIPES_FORK_WORKERS": "0"}, [], False),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, [], False),
        ({}, ["+ray_kwargs.ray_init.address=auto"], False),
        ({}, ["+ray_kwargs.ray_init.runtime_env.env_vars.A=b"], False),
        ({}, ["trainer.use_v1=False"], False),
        ({}, ["global_profiler.tool=nsys"], False),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fork server is for Linux")
def test_when_processes_are_forked(monkeypatch, variables, arguments, forks):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main.can_fork(main.ray_arguments(arguments), arguments) == forks
    monkeypatch.setattr(versions, "installed", lambda name: "3.0.0")
    assert not main.can_fork(main.ray_arguments(arguments), arguments), "with a Ray that was not tested"


def test_a_cluster_that_is_joined_gets_no_sizes_and_hidden_gpus_stay_logical_slots(monkeypatch):
    given = ["trainer.device=cpu", "+ray_kwargs.ray_init.num_gpus=1", "ray_kwargs.ray_init.include_dashboard=False"]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["main.py", *given, "ray_kwargs.ray_init.log_to_driver=True"])
    monkeypatch.setattr(main, "train", lambda address, in_driver: int("CUDA_VISIBLE_DEVICES" in main.os.environ))
    assert main.main() == 0
    assert sys.argv[1:] == ["trainer.device=cpu", "ray_kwargs.ray_init.log_to_driver=True"]


class Replaced(BaseException):
    """Carries what `execve` was given."""


@pytest.mark.parametrize("reason", ["CUDA's driver is initialised", None])
def test_where_children_could_not_work_the_ordinary_start_is_taken_with_the_users_variables(
    monkeypatch, capsys, reason
):
    stopped = []
    node = SimpleNamespace(address="127.0.0.1:1", raylet_pid=1, stop=lambda: stopped.append("node"))

    def server():
        monkeypatch.setenv("RECIPES_FORK_SERVER", "here")
        return SimpleNamespace(serve=serve, close=lambda: stopped.append("server"))

    def serve(driver):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    def replace(program, arguments, variables):
        raise Replaced(arguments, variables)

    monkeypatch.setattr(forkserver, "ForkServer", server)
    monkeypatch.setattr(main.ray_head, "launch", lambda ray_init: None)
    monkeypatch.setattr(main, "import_all", lambda *_: (reason, node))
    monkeypatch.setattr(main.os, "execve", replace)
    monkeypatch.setattr(sys, "argv", ["main.py", "a=1"])
    with pytest.raises(Replaced) as caught:
        main.main()
    arguments, variables = caught.value.args
    assert arguments[1:] == ["-m", "recipes.engines.start.main", "a=1"]
    assert variables[main.SWITCH] == "0"
    assert "RECIPES_FORK_SERVER" not in variables
    assert stopped == ["node", "server"]
    said = capsys.readouterr().err
    assert said.count("started anew") == 1
    assert (reason or "no process can be forked") in said
