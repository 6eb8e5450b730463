"""The choice between the fork server's start and the ordinary one, which is said once."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest

from recipes.engines import versions
from recipes.engines.start import cuda, forkserver, main


@pytest.fixture(autouse=True)
def tested_ray(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda name: versions.TESTED_RAY)
    monkeypatch.setattr(versions, "check", lambda hardware: None)
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


def test_hidden_gpus_do_not_keep_a_run_without_gpus_from_its_logical_slots(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["main.py", "trainer.device=cpu"])
    monkeypatch.setattr(main, "can_fork", lambda *_: False)
    monkeypatch.setattr(main, "train", lambda address, in_driver: int("CUDA_VISIBLE_DEVICES" in main.os.environ))
    assert main.main() == 0


def test_a_cluster_that_is_joined_gets_no_sizes(monkeypatch):
    given = ["trainer.device=cpu", "+ray_kwargs.ray_init.num_gpus=1", "ray_kwargs.ray_init.include_dashboard=False"]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(sys, "argv", ["main.py", *given, "ray_kwargs.ray_init.log_to_driver=True"])
    monkeypatch.setattr(main, "ordinary", lambda hardware: len(sys.argv))
    assert main.main() == 3
    assert sys.argv[1:] == ["trainer.device=cpu", "ray_kwargs.ray_init.log_to_driver=True"]


class Replaced(BaseException):
    """Carries what `execve` was given."""


@pytest.mark.parametrize("reason", ["CUDA's driver is initialised", None])
def test_where_children_could_not_work_the_ordinary_start_is_taken_with_the_users_variables(
    monkeypatch, capsys, reason
):
    stopped, closed, collecting = [], [], []
    node = SimpleNamespace(address="127.0.0.1:1", raylet_pid=1, stop=lambda: stopped.append(1))

    class Server:
        def __init__(self):
            monkeypatch.setenv("RECIPES_FORK_SERVER", "here")

        def serve(self, driver):
            raise BlockingIOError(11, "Resource temporarily unavailable")

        def close(self):
            closed.append(1)

    def import_all(*_):
        collecting.append(gc.isenabled())
        return reason, node

    def replace(program, arguments, variables):
        collecting.append(gc.isenabled())
        raise Replaced(arguments, variables)

    monkeypatch.setattr(forkserver, "ForkServer", Server)
    monkeypatch.setattr(main.ray_head, "launch", lambda ray_init: None)
    monkeypatch.setattr(main, "import_all", import_all)
    monkeypatch.setattr(main.os, "execve", replace)
    monkeypatch.setattr(sys, "argv", ["main.py", "a=1"])
    with pytest.raises(Replaced) as caught:
        main.main()
    arguments, variables = caught.value.args
    assert arguments[1:] == ["-m", "recipes.engines.start.main", "a=1"]
    assert variables[main.SWITCH] == "0"
    assert "RECIPES_FORK_SERVER" not in variables
    assert stopped == closed == [1]
    assert collecting == [False, True], "objects are collected again once the imports are made"
    said = capsys.readouterr().err
    assert said.count("started anew") == 1
    assert (reason or "no process can be forked") in said


def test_a_module_that_needs_cuda_while_it_is_imported_is_left_to_who_needs_it(monkeypatch, capsys, tmp_path):
    (tmp_path / "asks_for_cuda.py").write_text(
        "from recipes.engines.start.cuda import CudaWhileImporting\nraise CudaWhileImporting('refused')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    forkserver.preload(["asks_for_cuda", "no_such_module", "colorsys"])
    printed = capsys.readouterr().err
    assert "asks_for_cuda (refused)" in printed
    assert "no_such_module" not in printed, "it is not installed"
    assert "colorsys" in sys.modules
    assert cuda.driver_status() in (None, cuda.NOT_INITIALIZED)
