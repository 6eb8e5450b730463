"""The fork server with light processes in the place of Ray and vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipes import paths

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fork server is for Linux")

PRELUDE = """
import json, multiprocessing, os, subprocess, sys, time
from recipes.engines.verl_cpu import forkserver, spawn

def shim(*arguments, **variables):
    return subprocess.run([sys.executable, spawn.__file__, *arguments], env={**os.environ, **variables}).returncode

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def driver():
    DRIVER

if __name__ == "__main__":
    forkserver.preload(["decimal"])
    sys.exit(forkserver.ForkServer().serve(driver)())
"""


LIMIT_S = 120
"""Generous: the processes are light, the machine may be busy."""


def start(folder: Path, driver: str) -> subprocess.Popen[str]:
    """A server whose driver is this code."""
    script = folder / "server.py"
    body = textwrap.indent(textwrap.dedent(driver).strip(), "    ").lstrip()
    script.write_text(PRELUDE.replace("DRIVER", body), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT), "TMPDIR": str(folder), "PYTHONSAFEPATH": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def run(folder: Path, driver: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a server."""
    process = start(folder, driver)
    output, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, output, errors


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_is_forked_with_its_arguments_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        "import os, sys, json\n"
        "seen = [sys.argv[1:], os.environ.get('ADDED'), __name__, 'decimal' in sys.modules, os.getcwd()]\n"
        "print(json.dumps(seen), flush=True)\n"
        "open('done', 'w').close()\n"
    )
    status, output, errors = run(
        tmp_path,
        """
        context = '--serialized-runtime-env-context={"env_vars": {"ADDED": "${HOME}!"}}'
        assert shim("worker.py", "--node=1", "--language=PYTHON", context, HOME="/h") == 0
        wait_for("done")
        return 7
        """,
    )
    assert output.strip() == f'[["--node=1"], "/h!", "__main__", true, "{tmp_path}"]'
    assert status == 7, errors
    assert not list(tmp_path.glob("recipes-*"))


@pytest.mark.parametrize(
    ("argument", "variables"),
    [
        ('--serialized-runtime-env-context={"command_prefix": ["nice"]}', {}),
        ('--serialized-runtime-env-context={"py_executable": "/other/python"}', {}),
        ("--serialized-runtime-env-context={}", {"RAY_JOB_ID": "02000000"}),
        ("--serialized-runtime-env-context={}", {"RECIPES_FORK_SERVER": "/nowhere"}),
    ],
)
def test_a_worker_that_cannot_be_forked_is_started_as_ray_does(
    argument: str, variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "setup_worker.py").write_text("import sys; print('started', sys.argv[1:], flush=True)\n")
    call = f'return shim("worker.py", {argument!r}, RECIPES_RAY_SETUP_WORKER="setup_worker.py", **{variables!r})'
    status, output, errors = run(tmp_path, call)
    assert output.strip() == f"started {['worker.py', argument]}"
    assert status == 0, errors


def test_multiprocessing_forks_through_the_server_and_sees_how_it_ends(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import sys, time\n"
        "def answer(pipe):\n    pipe.send('decimal' in sys.modules)\n    sys.exit(9)\n"
        "def sleep():\n    time.sleep(60)\n"
    )
    status, output, errors = run(
        tmp_path,
        """
        import tasks
        multiprocessing.set_executable(os.environ[spawn.INTERPRETER])
        context = multiprocessing.get_context("spawn")
        mine, other = context.Pipe()
        process = context.Process(target=tasks.answer, args=(other,))
        process.start()
        print(mine.recv())
        process.join()
        print(process.exitcode)
        for end in ("terminate", "kill"):
            process = context.Process(target=tasks.sleep)
            process.start()
            time.sleep(0.3)
            getattr(process, end)()
            process.join()
            print(process.exitcode != 0)
        return 0
        """,
    )

    assert output.split() == ["True", "9", "True", "True"], errors
    assert status == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)])
def test_signals_reach_the_driver_and_nothing_survives_the_server(number: int, status: int, tmp_path: Path) -> None:
    process = start(tmp_path, "open('pid', 'w').write(str(os.getpid())); time.sleep(600); return 0")
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and bool(pid.read_text()))
    driver = Path("/proc", pid.read_text())
    process.send_signal(number)
    assert process.wait(LIMIT_S) == status
    process.communicate()
    wait_until(lambda: not driver.exists())
    assert number == signal.SIGKILL or not list(tmp_path.glob("recipes-*"))
