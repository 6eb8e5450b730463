"""The choice between the fork server's start and the ordinary one, which is said once."""

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fork server is for Linux")
def test_processes_are_forked_with_the_tested_ray_alone_and_where_a_key_does_not_forbid_it(monkeypatch):
    arguments = ["trainer.device=cpu", "ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.num_gpus=1"]
    assert main.can_fork(main.ray_arguments(arguments), arguments)
    ray = "+ray_kwargs.ray_init."
    others = ("trainer.use_v1=False", "global_profiler.tool=nsys")
    for key in (f"{ray}runtime_env.env_vars.A=b", f"{ray}address=auto", *others):
        assert not main.can_fork(main.ray_arguments([key]), [key])
    for name, value in ((main.SWITCH, "0"), ("RAY_ADDRESS", "10.0.0.1:6379")):
        with monkeypatch.context() as one:
            one.setenv(name, value)
            assert not main.can_fork({}, [])
    monkeypatch.setattr(versions, "installed", lambda name: "3.0.0")
    assert not main.can_fork(main.ray_arguments(arguments), arguments)


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


def test_where_children_could_not_work_the_ordinary_start_is_taken_with_the_users_variables(monkeypatch, capsys):
    stopped = []

    def replace(program, arguments, variables):
        raise Replaced(arguments, variables)

    def server():
        monkeypatch.setenv("RECIPES_FORK_SERVER", "here")
        return SimpleNamespace(close=lambda: stopped.append("server"))

    node = SimpleNamespace(stop=lambda: stopped.append("node"))
    monkeypatch.setattr(forkserver, "ForkServer", server)
    monkeypatch.setattr(main.ray_head, "launch", lambda ray_init: None)
    monkeypatch.setattr(main, "import_all", lambda *_: ("CUDA's driver is initialised", node))
    monkeypatch.setattr(main.os, "execve", replace)
    monkeypatch.setattr(sys, "argv", ["main.py", "a=1"])
    with pytest.raises(Replaced) as caught:
        main.main()
    arguments, variables = caught.value.args
    assert arguments[1:] == ["-m", "recipes.engines.start.main", "a=1"]
    assert variables[main.SWITCH] == "0"
    assert "RECIPES_FORK_SERVER" not in variables
    assert stopped == ["node", "server"]
    assert "CUDA's driver is initialised" in capsys.readouterr().err
