"""The fork server with real processes: what is forked, how it ends, and what happens where nothing can be forked."""

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
    """`run(scenario)` -> exit status, what the driver said."""

    def start(scenario):
        environ = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, SCRIPT, scenario]
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, env=environ)
        assert not list(tmp_path.glob("recipes-*")), "the server's folder is left behind"
        return done.returncode, json.loads(done.stdout)

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


@pytest.mark.parametrize(("scenario", "parent", "imported"), [("ends", "server", True), ("other job", "driver", False)])
def test_a_process_is_forked_with_its_imports_or_started_by_python_and_ends_the_same(run, scenario, parent, imported):
    """Also after callers that ended before their answer."""
    status, said = run(scenario)
    assert said["child"] == {**said["child"], "parent": said[parent], "imported": imported}
    assert (status, said["status"]) == (5, 7), "the driver's own, and the child's"


@pytest.mark.parametrize(("scenario", "status"), [("killed", -signal.SIGKILL), ("terminated", 1)])
def test_a_forked_process_ends_with_the_one_that_stands_for_it(run, scenario, status):
    _, said = run(scenario)
    assert said["status"] == status
    assert ended(said["child"]["pid"])


def test_a_worker_of_ray_has_one_thread_unless_the_user_says_how_many(run):
    assert run("worker")[1]["threads"] == ["1", "3"]


def test_a_driver_that_is_killed_before_the_server_waits_for_it_gives_the_status_of_a_shell(run):
    assert run("driver killed at once")[0] == 128 + signal.SIGKILL


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 128 + signal.SIGINT)])
def test_nothing_outlives_the_server(tmp_path, number, status):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    server = subprocess.Popen([sys.executable, SCRIPT, "waits"], text=True, env=environ, **pipes)
    said = json.loads(server.stdout.readline())
    server.send_signal(number)
    assert server.wait(20) == status
    assert ended(said["driver"])
    assert ended(said["child"]["pid"])
