"""The fork server with light processes in the place of Ray and vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
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


def run(folder: Path, driver: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = folder / "server.py"
    body = textwrap.indent(textwrap.dedent(driver).strip(), "    ").lstrip()
    script.write_text(PRELUDE.replace("DRIVER", body), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(paths.ROOT), "TMPDIR": str(folder), "PYTHONSAFEPATH": "", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_worker_is_forked_with_its_arguments_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        "import os, sys, json\n"
        "told = [sys.argv[1:], os.environ.get('ADDED'), __name__, 'decimal' in sys.modules, os.getcwd()]\n"
        "print(json.dumps(told), flush=True)\n"
        "open('done', 'w').close()\n"
    )
    done = run(
        tmp_path,
        """
        context = '--serialized-runtime-env-context={"env_vars": {"ADDED": "${HOME}!"}}'
        assert shim("worker.py", "--node=1", "--language=PYTHON", context, HOME="/h") == 0
        wait_for("done")
        return 7
        """,
    )

    assert done.stdout.strip() == f'[["--node=1"], "/h!", "__main__", true, "{tmp_path}"]'
    assert done.returncode == 7, done.stderr
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
    done = run(
        tmp_path,
        f"""
        return shim("worker.py", {argument!r}, RECIPES_RAY_SETUP_WORKER="setup_worker.py", **{variables!r})
        """,
    )

    assert done.stdout.strip() == f"started {['worker.py', argument]}"
    assert done.returncode == 0, done.stderr


def test_multiprocessing_forks_through_the_server_and_sees_how_it_ends(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import sys, time\n"
        "def answer(pipe):\n    pipe.send('decimal' in sys.modules)\n    sys.exit(9)\n"
        "def sleep():\n    time.sleep(60)\n"
    )
    done = run(
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

    assert done.stdout.split() == ["True", "9", "True", "True"], done.stderr
    assert done.returncode == 0


def test_signals_reach_the_driver_and_its_end_is_the_servers(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    body = "open('ready', 'w').close(); time.sleep(60); return 0"
    script.write_text(PRELUDE.replace("DRIVER", body), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=environment)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)

    assert process.wait(20) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("recipes-*"))


def test_children_die_with_a_server_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    body = "open('pid', 'w').write(str(os.getpid())); time.sleep(60); return 0"
    script.write_text(PRELUDE.replace("DRIVER", body), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=environment)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    driver = int((tmp_path / "pid").read_text())
    process.kill()
    process.wait(10)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{driver}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)

    assert not Path(f"/proc/{driver}").exists()
