"""The fork server with real processes: what is forked, how it ends, and what happens where nothing can be forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("server_script.py")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fork server is for Linux")


@pytest.fixture
def run(tmp_path):
    """`run(scenario)` -> exit status, what the driver said, standard error."""

    def start(scenario):
        done = subprocess.run(
            [sys.executable, SCRIPT, scenario],
            capture_output=True,
            text=True,
            timeout=40,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        assert not list(tmp_path.glob("recipes-*")), "the server's folder is left behind"
        return done.returncode, json.loads(done.stdout), done.stderr

    return start


def ended(pid: int) -> bool:
    """Return whether a process ends long before it would by itself."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_a_process_is_forked_with_the_imports_made_and_its_exit_status_arrives(run):
    status, said, _ = run("ends")
    assert said["child"]["parent"] == said["server"]
    assert said["child"]["imported"]
    assert said["status"] == 7
    assert status == 5, "the driver's own"


@pytest.mark.parametrize("scenario", ["cannot fork", "other job"])
def test_a_process_that_cannot_be_forked_is_started_by_python_and_ends_the_same(run, scenario):
    status, said, errors = run(scenario)
    assert said["child"]["parent"] == said["driver"]
    assert not said["child"]["imported"]
    assert (status, said["status"]) == (5, 7)
    assert ("could not be forked" in errors) == (scenario == "cannot fork")


@pytest.mark.parametrize(("scenario", "status"), [("killed", -signal.SIGKILL), ("terminated", 1)])
def test_a_forked_process_ends_with_the_one_that_stands_for_it(run, scenario, status):
    _, said, _ = run(scenario)
    assert said["child"]["parent"] == said["server"]
    assert said["status"] == status
    assert ended(said["child"]["pid"])


@pytest.mark.parametrize("scenario", ["driver killed", "driver killed at once"])
def test_a_driver_that_is_killed_gives_the_status_of_a_shell(run, scenario):
    """Also when it ends before the server waits for it."""
    assert run(scenario)[0] == 128 + signal.SIGKILL


def test_callers_that_end_before_their_answer_leave_the_server_working(run):
    status, said, _ = run("callers leave")
    assert said["child"]["parent"] == said["server"]
    assert (status, said["status"]) == (5, 7)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 128 + signal.SIGINT)],
)
def test_nothing_outlives_the_server(tmp_path, number, status):
    server = subprocess.Popen(
        [sys.executable, SCRIPT, "waits"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    said = json.loads(server.stdout.readline())
    server.send_signal(number)
    assert server.wait(20) == status
    assert ended(said["driver"])
    assert ended(said["child"]["pid"])
