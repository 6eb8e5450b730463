"""Runs model-written programs under bubblewrap: no network, no files but Python's, limits on everything else.

The layers around a program, outermost first: bubblewrap's namespaces (users, processes, network, IPC, host name), a
file system of Python's runtime (read-only) and a small scratch folder in memory, none of the caller's environment, no
capabilities; then resource limits and the system call filter, see `sandboxed/`. docs/REWARD_CUSTOM.md says what that
guarantees. A program never runs without the sandbox.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from .sandboxed import talk

SANDBOXED = Path(__file__).resolve().parent / "sandboxed"
PARTS = ("seccomp", "talk", "runner")
# The same Python runs inside, so it can execute code objects that were compiled outside.
START = """import marshal, sys
read = sys.stdin.buffer.raw.read
for name, code in marshal.loads(read(int.from_bytes(read(8), "little"))):
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
job, request = module.main()
job(request)"""
TRY_S = 30.0
FREE_S = 0.003  # between two checks for a free core
GRACE_S = 3.0  # for the start of the sandbox and for its own reports
INSTALL = "install bubblewrap (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"
ALLOW_NAMESPACES = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0; "
    "Ubuntu 24: kernel.apparmor_restrict_unprivileged_userns=0; Docker: --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
)


@dataclass(frozen=True)
class Limits:
    """Limits of one program."""

    test_s: float = 2.0  # CPU seconds of a test
    wall_s: float = 6.0  # seconds of a test by the clock, for programs that sleep
    total_s: float = 10.0  # CPU seconds of all tests; the tests left over then fail
    total_wall_s: float = 20.0  # the same by the clock
    memory_bytes: int = 512 << 20  # address space
    output_bytes: int = 256 << 10  # of a test
    file_bytes: int = 16 << 20  # the scratch folder, and any file in it
    threads: int = 64  # not enforced for root where `_as_nobody` does not work

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kinds = (int, float) if name.endswith("_s") else (int,)
            if type(value) not in kinds or not 0 < value < 1 << 50:
                whole = "number" if float in kinds else "whole number"
                raise ValueError(f"limits.{name} is {value!r}, not a positive {whole}")


def run(kind: str, program: str, tests: list[Any], limits: Limits) -> list[dict[str, str]]:
    """Run a program on tests, in one sandbox.

    Args:
        kind: "script", "calls" or "asserts".
        tests: for a script, the text on its standard input; for calls and asserts, a `talk.Test` each, which no process
            that runs the program can see.

    Returns:
        One dict per test with `status` and `output`. A script that ended well has status "ran", and its output is what
        it printed. A call or an assert has status "held" or "failed", or "gold_unparsable" if it is not a valid test;
        an assert's output is "b" if a program that always answers True or False passes it.

    Raises:
        RuntimeError: no sandbox works on this machine; the message says why and what to install. Nothing was run.
    """
    path = _bubblewrap()
    command = [*_as_nobody(path), *_command(path, limits.file_bytes)]
    results: list[dict[str, str]] = []
    cpu_s = limits.total_s
    with slot():
        began = time.monotonic()
        while len(results) < len(tests):  # restarts the program after a test that ended it
            wall_s = limits.total_wall_s - (time.monotonic() - began)
            if min(cpu_s, wall_s) <= 0:
                return results + [{"status": "timeout", "output": ""}] * (len(tests) - len(results))
            left = replace(limits, total_s=cpu_s, total_wall_s=wall_s)
            more, used = _once(kind, command, program, tests[len(results) :], left)
            results += more
            cpu_s -= used
    return results


def _once(
    kind: str, command: list[str], program: str, tests: list[Any], limits: Limits
) -> tuple[list[dict[str, str]], float]:
    """Return the results of one sandbox run (at least one result), and the run's CPU seconds."""
    done = _exchange(command, _request(kind, program, tests, limits), limits.total_wall_s + limits.wall_s)
    blocks = list(_blocks(done.stdout))
    results = [{"status": status, "output": out.decode("utf-8", "replace")} for status, out, _ in blocks]
    if kind != "script":
        steps, results = results[:2], results[2:]
        if len(steps) == 1:  # a test takes too long by itself
            return [{"status": "gold_unparsable", "output": ""}] * len(tests), 0.0
        if steps and not results:
            return [{"status": "timeout", "output": ""}], limits.test_s
    used = blocks[-1][2] if blocks else 0.0
    if results and kind != "script":
        return results, used
    return results + [{"status": "sandbox_error", "output": ""}] * (len(tests) - len(results)), used


def _request(kind: str, program: str, tests: list[Any], limits: Limits) -> bytes:
    """Return what the sandbox reads; calls and asserts come last, after what the program's process may see."""
    hidden = kind != "script"
    request: dict[str, Any] = {"kind": kind, "program": program, "limits": vars(limits)}
    request["inputs"] = None if hidden else tests
    code, data_names = _code()
    blocks = [code, marshal.dumps(request), marshal.dumps((tests, data_names) if hidden else None)]
    return b"".join(len(block).to_bytes(8, "little") + block for block in blocks)


@lru_cache(maxsize=1)
def _code() -> tuple[bytes, list[str]]:
    sources = {name: (SANDBOXED / f"{name}.py").read_text(encoding="utf-8") for name in PARTS}
    code = [(name, compile(source, f"<{name}>", "exec")) for name, source in sources.items()]
    return marshal.dumps(code), talk.data_names()


def _blocks(answer: bytes) -> Iterator[tuple[str, bytes, float]]:
    """Yield the runner's answer, test by test, as far as it is whole: status, content, CPU seconds so far."""
    at = 0
    while (end := answer.find(b"\n", at, at + 64)) != -1:
        status, length, used = answer[at:end].decode("ascii", "replace").split()
        at = end + 1 + int(length)
        if at > len(answer):
            return
        yield status, answer[end + 1 : at], int(used) / 1000


def _exchange(command: list[str], request: bytes, seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Start the sandbox, hand over the request, and return what it wrote until it ended or timed out."""
    with os.fdopen(os.memfd_create("request"), "w+b") as stdin:
        stdin.write(request)
        stdin.seek(0)
        try:  # killing bubblewrap kills everything in the sandbox, because of --die-with-parent
            return subprocess.run(
                command, stdin=stdin, capture_output=True, env={}, timeout=seconds + GRACE_S, check=False
            )
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(command, 1, late.output or b"", f"no answer in {seconds} s".encode())


@contextlib.contextmanager
def slot() -> Iterator[None]:
    """Wait until fewer sandboxes run on this machine than it has cores.

    There is one file lock per core, shared by all processes of the user, and one lock in front of them, whose holder
    takes the first free core.
    """
    door, *cores = [open(path, "wb") for path in _lock_files()]  # noqa: SIM115
    try:
        fcntl.flock(door, fcntl.LOCK_EX)
        while not any(map(_locked, cores)):
            time.sleep(FREE_S)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
    finally:
        for file in (door, *cores):
            fcntl.flock(file, fcntl.LOCK_UN)  # closing alone keeps the lock if a thread has forked meanwhile
            file.close()


def _locked(file: IO[bytes]) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@lru_cache(maxsize=1)
def _lock_files() -> list[Path]:
    folder = Path(tempfile.gettempdir()) / f"reward_sandbox_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    return [folder / "door", *(folder / f"core_{number}" for number in range(len(os.sched_getaffinity(0))))]


def check() -> None:
    """Run a program in the sandbox. Raises RuntimeError: with what to install or to allow."""
    path = _bubblewrap()
    problem = _problem([*_as_nobody(path), *_command(path, Limits().file_bytes)])
    if problem:
        no_namespaces = problem.startswith("bwrap:")
        fix = ALLOW_NAMESPACES if no_namespaces else "it needs a Python with its standard library beside it"
        raise RuntimeError(f"bubblewrap is installed, but no program runs in it here: {problem}; {fix}")


def _problem(command: list[str]) -> str:
    """Return the error with which a harmless program fails to run; "" if it runs."""
    done = _exchange(command, _request("script", "print(input())", ["works"], Limits()), TRY_S)
    if done.stdout == b"ran 6 0\nworks\n":
        return ""
    message = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return message.splitlines()[-1] if message else f"exit code {done.returncode}"


@lru_cache(maxsize=1)
def _as_nobody(path: str) -> tuple[str, ...]:
    """For root, return the command prefix that starts bubblewrap as the user `nobody`, if that works; else nothing.

    The kernel enforces no thread limit on root. `nobody` may not be allowed namespaces, or the folder of root's Python.
    """
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None:
        return ()
    prefix = (setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs")
    return () if _problem([*prefix, *_command(path, Limits().file_bytes)]) else prefix


def _bubblewrap() -> str:
    if (machine := (platform.system(), platform.machine())) != ("Linux", "x86_64"):  # see `sandboxed/seccomp.py`
        raise RuntimeError(f"programs run on Linux on x86-64; this is {' on '.join(machine)}")
    path = shutil.which("bwrap")
    if path is None:
        raise RuntimeError(f"model-written programs only run in a sandbox, and there is none: {INSTALL}")
    return path


@lru_cache(maxsize=4)
def _command(path: str, file_bytes: int) -> list[str]:
    python, runtime, libraries = _runtime()
    options = subprocess.run([path, "--help"], capture_output=True, text=True, check=False, env={}).stdout
    sizes = "--size BYTES" in options  # since 0.7; without it a tmpfs could fill the memory
    scratch = ["--size", str(file_bytes), "--tmpfs", "/tmp"] if sizes else ["--dir", "/tmp"]
    return [
        path,
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", *runtime),
        *("--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"),
        *(*scratch, "--remount-ro", "/", "--chdir", "/tmp", "--setenv", "LD_LIBRARY_PATH", libraries),
        *("--setenv", "MALLOC_ARENA_MAX", "1"),  # else each thread takes 128 MiB of the address space
        *("--", python, "-I", "-S", "-B", "-X", "utf8", "-c", START),
    ]


@lru_cache(maxsize=1)
def _runtime() -> tuple[str, list[str], str]:
    """Return this Python's path in the sandbox, the mounts (without its packages) and its library folder inside.

    A Python outside /usr (pyenv, conda, uv; perhaps in a home folder) is mounted under another name, /python.
    """
    binary, base = os.path.realpath(sys.executable), Path(sys.base_prefix)
    mounts: list[str] = []
    for name in ("lib", "lib64"):
        place = Path("/", name)
        if place.is_symlink():
            mounts += ["--symlink", os.readlink(place), str(place)]
        for folder in (Path("/usr", name), place):
            if folder.is_dir() and not folder.is_symlink():
                mounts += ["--ro-bind", str(folder), str(folder)]
    for file in ("/etc/ld.so.cache", "/usr/share/zoneinfo"):
        mounts += ["--ro-bind-try", file, file]
    if base == Path("/usr"):
        return binary, [*mounts, "--ro-bind", binary, binary], "/usr/lib"
    inner = f"/python/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    mounts += ["--ro-bind", binary, inner]
    for name in ("lib", "lib64"):
        if (base / name).is_dir() and not (base / name).is_symlink():
            mounts += ["--ro-bind", str(base / name), f"/python/{name}"]
    packages = Path(sysconfig.get_path("stdlib"), "site-packages")
    if packages.is_dir() and packages.is_relative_to(base):
        hidden = str(Path("/python", packages.relative_to(base)))
        mounts += ["--tmpfs", hidden, "--remount-ro", hidden]
    return inner, mounts, "/python/lib"
