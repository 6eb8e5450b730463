"""Without a sandbox nothing is run, and the message says what to install or to allow."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reward_functions.sandboxes import dispatch, sandbox

ROW = ("code", '{"inputs": ["1"], "outputs": ["1"]}')
RESPONSE = "```python\nimport pathlib\npathlib.Path('/tmp/it_ran').write_text('x')\nprint(input())\n```"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """An empty folder as PATH, for a bubblewrap of our own."""
    sandbox._lock_files()  # before a test says that it is root
    for cached in (sandbox._command, sandbox._as_nobody):
        cached.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    for cached in (sandbox._command, sandbox._as_nobody):
        cached.cache_clear()


def fake(folder: Path, script: str, name: str = "bwrap") -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_nothing_runs_without_bubblewrap(path, monkeypatch):
    (problem,) = dispatch.check_sources([ROW])
    assert "bubblewrap" in problem
    with pytest.raises(RuntimeError) as caught:
        dispatch.compute_score(ROW[0], RESPONSE, ROW[1])
    assert type(caught.value) is RuntimeError, "Ray's driver cannot load a class of this file"
    assert not Path("/tmp/it_ran").exists()
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    (problem,) = dispatch.check_sources([ROW])
    assert "riscv64" in problem


def test_a_bubblewrap_that_does_not_work(path):
    for script, named in (('echo "bwrap: No permissions" >&2; exit 1', "No permissions"), ("exit 127", "127")):
        fake(path, script)
        (problem,) = dispatch.check_sources([ROW])
        assert named in problem
        result = dispatch.compute_score(ROW[0], RESPONSE, ROW[1])  # counted apart: not the policy's fault
        assert (result["score"], result["reason"]) == (0.0, "sandbox_error")


@pytest.mark.parametrize("works", [True, False])
def test_root_starts_the_sandbox_as_nobody_where_that_works(path, monkeypatch, works):
    """The kernel holds root to no limit on threads. Without it the program is still judged, as root may be."""
    monkeypatch.setattr(sandbox.os, "getuid", lambda: 0)
    fake(path, 'printf "ran 6 0\\nworks\\n"')
    fake(path, f'echo "$@" > {path}/asked; printf "ran 6 0\\n{"works" if works else "wrong"}\\n"', "setpriv")
    assert sandbox.run("script", "", [""], sandbox.Limits()) == [{"status": "ran", "output": "works\n"}]
    prefix = "--reuid 65534 --regid 65534 --clear-groups --no-new-privs"
    assert (path / "asked").read_text().startswith(f"{prefix} {path}/bwrap")
    assert sandbox._as_nobody(f"{path}/bwrap") == ((f"{path}/setpriv", *prefix.split()) if works else ())


def test_waiting_for_a_core_takes_none_of_a_programs_time(path, monkeypatch):
    monkeypatch.setattr(sandbox, "_lock_files", lambda: [path / "door", path / "core"])
    fake(path, 'printf "ran 6 0\\nworks\\n"')
    with ThreadPoolExecutor(1) as pool:
        with sandbox.slot():
            run = pool.submit(sandbox.run, "script", "", [""], sandbox.Limits(total_wall_s=0.2))
            time.sleep(0.5)
        assert run.result() == [{"status": "ran", "output": "works\n"}]


def test_waiting_programs_take_every_core_that_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "_lock_files", lambda: [tmp_path / str(number) for number in range(1 + 8)])

    full = threading.Barrier(8, timeout=30)  # breaks unless eight programs run at one time

    def held(_: int) -> None:
        with sandbox.slot():
            full.wait()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(held, range(16)))
