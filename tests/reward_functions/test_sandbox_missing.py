"""Where no sandbox works nothing is run, and the message says what to install or to allow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from recipes.data.rewards import load_reward

sandboxes = load_reward("tests/reward_functions/sandboxes.py")
dispatch, sandbox = sandboxes.dispatch, sandboxes.sandbox
ROW = ("code", '{"inputs": ["1"], "outputs": ["1"]}')
RESPONSE = "```python\nimport pathlib\npathlib.Path('/tmp/it_ran').write_text('x')\nprint(input())\n```"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """An empty folder as PATH, for a bubblewrap of our own."""
    for cached in (sandbox._options, sandbox._as_nobody):
        cached.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    for cached in (sandbox._options, sandbox._as_nobody):
        cached.cache_clear()


def fake(folder: Path, script: str, name: str = "bwrap") -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_nothing_runs_without_bubblewrap(path, monkeypatch):
    (problem,) = dispatch.check_sources([ROW])
    assert "apt-get install bubblewrap" in problem
    with pytest.raises(RuntimeError, match="apt-get install bubblewrap") as caught:
        dispatch.compute_score(ROW[0], RESPONSE, ROW[1])
    assert type(caught.value) is RuntimeError, "Ray's driver cannot load a class of this file"
    assert not Path("/tmp/it_ran").exists()
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    (problem,) = dispatch.check_sources([ROW])
    assert "riscv64" in problem and "Sandbox Fusion" in problem  # noqa: PT018


def test_a_bubblewrap_that_does_not_work(path):
    for script, words in (
        ('echo "bwrap: No permissions" >&2; exit 1', ("No permissions", "user namespaces", "--security-opt")),
        ("exit 127", ("exit code 127",)),
    ):
        fake(path, script)
        (problem,) = dispatch.check_sources([ROW])
        assert [word for word in words if word not in problem] == []
        result = dispatch.compute_score(ROW[0], RESPONSE, ROW[1])  # counted apart: not the policy's fault
        assert (result["score"], result["reason"]) == (0.0, "sandbox_error")


def test_an_old_bubblewrap_gets_no_scratch_folder(path):
    fake(path, "echo '    --tmpfs DEST'")
    assert sandbox._command(str(path / "bwrap"), 1 << 20).count("--dir") == 1
    fake(path, "echo '    --size BYTES'")
    sandbox._options.cache_clear()
    command = sandbox._command(str(path / "bwrap"), 1 << 20)
    assert command[command.index("--size") + 1] == str(1 << 20)


def test_a_lock_folder_of_somebody_else(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"reward_sandbox_{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(sandbox.tempfile, "gettempdir", lambda: str(tmp_path))
    sandbox._lock_files.cache_clear()
    with pytest.raises(sandbox.SandboxMissing, match="somebody else"), sandbox.slot():
        pass
    sandbox._lock_files.cache_clear()


def test_root_becomes_nobody_first_where_that_works(path, monkeypatch):
    """The kernel does not count root's threads."""
    fake(path, 'while [ "${1#--}" != "$1" ] || [ "$1" = 65534 ]; do shift; done\nexec "$@"', "setpriv")
    for uid, works, prefix in ((0, True, (str(path / "setpriv"), "--reuid")), (0, False, ()), (1000, True, ())):
        fake(path, "printf 'ran 6\\nworks\\n'" if works else "exit 1")
        monkeypatch.setattr(sandbox.os, "getuid", lambda uid=uid: uid)
        sandbox._as_nobody.cache_clear()
        assert sandbox._as_nobody(str(path / "bwrap"))[:2] == prefix


THREADS = """
import os, threading, time
threading.stack_size(32768)
started = 0
try:
    while started < 200:
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
print(started, flush=True)
os._exit(0)
"""
IN_ANOTHER_PYTHON = """
import runpy, sys
sandbox = runpy.run_path({path!r})["sandbox"]
if not sandbox._as_nobody(sandbox._bubblewrap()):
    sys.exit(77)
print(sandbox.run("script", {program!r}, [""], sandbox.Limits(threads=20))[0]["output"])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="for root only")
def test_a_root_that_became_nobody_has_its_threads_counted():
    """With the system's Python, since root's own may lie where nobody may not look."""
    python = Path("/usr/bin/python3")
    if sandboxes.PROBLEM or not python.exists():
        pytest.skip(sandboxes.PROBLEM or "no /usr/bin/python3")
    code = IN_ANOTHER_PYTHON.format(path=dispatch.__file__, program=THREADS)
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("nobody may not make namespaces here")
    assert done.returncode == 0, done.stderr
    assert 5 < int(done.stdout) < 20
