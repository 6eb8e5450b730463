"""Where no sandbox works nothing is run, and the message says what to install or to allow."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from recipes.data.rewards import load_reward

sandboxes = load_reward("tests/reward_functions/sandboxes.py")
dispatch, sandbox = sandboxes.dispatch, sandboxes.sandbox
ROW = ("code", '{"inputs": ["1"], "outputs": ["1"]}')
RESPONSE = "```python\nimport pathlib\npathlib.Path('/tmp/it_ran').write_text('x')\nprint(input())\n```"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """An empty folder as PATH, for a bubblewrap of our own."""
    for remembered in (sandbox._options, sandbox._as_nobody):
        remembered.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    for remembered in (sandbox._options, sandbox._as_nobody):
        remembered.cache_clear()


def fake(folder: Path, script: str) -> None:
    file = folder / "bwrap"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def refused() -> str:
    """What the check before the start says; the reward itself must refuse as well, and run nothing."""
    (problem,) = dispatch.check_sources([ROW])
    return problem


def test_without_bubblewrap_nothing_runs(path):
    assert "apt-get install bubblewrap" in refused()
    with pytest.raises(RuntimeError, match="apt-get install bubblewrap") as caught:
        dispatch.compute_score(ROW[0], RESPONSE, ROW[1])
    assert not Path("/tmp/it_ran").exists()
    assert type(caught.value) is RuntimeError, "Ray's driver cannot load a class of this file"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            'echo "bwrap: No permissions to create new namespace" >&2; exit 1',
            ("No permissions to create new namespace", "user namespaces", "--security-opt"),
        ),
        ("exit 127", ("exit code 127",)),
    ],
)
def test_a_bubblewrap_that_does_not_work(path, script, words):
    fake(path, script)
    assert [word for word in words if word not in refused()] == []


def test_another_system(path, monkeypatch):
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    assert "riscv64" in refused()
    assert "Sandbox Fusion" in refused()


def test_a_sandbox_that_dies_is_counted_apart(path):
    """Not the policy's fault, and not a wrong answer."""
    fake(path, "exit 1")
    result = dispatch.compute_score(ROW[0], RESPONSE, ROW[1])
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
    setpriv = path / "setpriv"
    setpriv.write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ] || [ "$1" = 65534 ]; do shift; done\nexec "$@"\n')
    setpriv.chmod(0o755)
    fake(path, "printf 'ran 6\\nworks\\n'")
    monkeypatch.setattr(sandbox.os, "getuid", lambda: 0)
    assert sandbox._as_nobody(str(path / "bwrap"))[:3] == (str(setpriv), "--reuid", "65534")
    assert dispatch.check_sources([ROW]) == []
    fake(path, "echo 'bwrap: Permission denied' >&2; exit 1")  # then as root, which may work
    sandbox._as_nobody.cache_clear()
    assert sandbox._as_nobody(str(path / "bwrap")) == ()
    sandbox._as_nobody.cache_clear()
    monkeypatch.setattr(sandbox.os, "getuid", lambda: 1000)
    fake(path, "printf 'ran 6\\nworks\\n'")
    assert sandbox._as_nobody(str(path / "bwrap")) == ()


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


def test_the_command_has_every_wall(path):
    """Also those that another one stands behind, so that no other test would miss them."""
    fake(path, "echo '    --size BYTES'")
    words = sandbox._command(str(path / "bwrap"), 1 << 20)
    for kind in ("user", "ipc", "pid", "net", "uts"):
        assert f"--unshare-{kind}" in words
    assert {"--unshare-cgroup-try", "--die-with-parent", "--new-session"} <= set(words)
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert not {"--bind", "--proc", "--dev", "--share-net", "--cap-add"} & set(words)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--dev-bind"] == ["/dev/null", "/dev/urandom"]


# The filter for system calls, on a machine that is not this one: interpreted, instruction by instruction.


def seccomp() -> ModuleType:
    """The filter's file; in the sandbox it is loaded by its code."""
    return load_reward(sandbox.SANDBOXED / "seccomp.py")


def decide(
    machine: str, number: int, argument: int = 0, audit: int | None = None, pid: int = 77, second: int = 0
) -> str:
    """What the filter does with a system call."""
    table = seccomp()
    arch = table.TABLES[machine][0] if audit is None else audit
    data = struct.pack("<IIQ6Q", number, arch, 0, argument, second, 0, 0, 0, 0)
    lines, at, held = table.program(machine, pid), 0, 0
    assert all(0 <= jump <= 255 for _, yes, no, _ in lines for jump in (yes, no)), "a jump is one byte"
    while True:
        code, yes, no, constant = lines[at]
        if code == table.RETURN:
            if constant == table.ALLOW:
                return "allow"
            return "kill" if constant == table.KILL else f"errno {constant & 0xFFFF}"
        if code == table.LOAD:
            (held,) = struct.unpack_from("<I", data, constant)
            at += 1
        else:
            true = {
                table.EQUAL: held == constant,
                table.AT_LEAST: held >= constant,
                table.ANY_BIT: bool(held & constant),
            }[code]
            at += 1 + (yes if true else no)


NAMES = """
execve execveat ptrace socket shmget shmat shmctl semget msgget mq_open memfd_create process_vm_readv process_vm_writev
kcmp personality pivot_root chroot acct mount umount2 swapon reboot init_module finit_module delete_module
kexec_file_load add_key request_key keyctl unshare setns vmsplice perf_event_open fanotify_init name_to_handle_at
open_by_handle_at bpf userfaultfd tkill rt_sigqueueinfo rt_tgsigqueueinfo
setpriority ioprio_set migrate_pages move_pages syslog fork vfork
"""
SHARED = """
pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick
pidfd_open pidfd_getfd process_madvise mount_setattr quotactl_fd memfd_secret process_mrelease
"""
OWN = "kill tgkill prlimit64 sched_setparam sched_setscheduler sched_setaffinity sched_setattr"
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_the_kernels(machine):
    if not HEADERS[machine].is_file():
        pytest.skip("the kernel's headers (linux-libc-dev) are not installed")
    lines = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text(), flags=re.MULTILINE)
    numbers = {name: int(number) for name, number in lines}
    _, clone, signalling, own, denied = seccomp().TABLES[machine]
    numbers.setdefault("fcntl", numbers.get("fcntl64"))
    assert clone == numbers["clone"]
    assert signalling == (numbers["fcntl"], numbers["ioctl"])
    assert [int(text) for text in own.split()] == [numbers[name] for name in OWN.split()]
    wanted = [numbers[name] for name in NAMES.split() if name in numbers]
    assert [int(text) for text in denied.split()] == wanted
    assert list(seccomp().SHARED) == [numbers[name] for name in SHARED.split()]
    assert numbers["clone3"] == seccomp().CLONE3


THREAD, FORK = 0x3D0F00, 0x1200011  # the flags of glibc's pthread_create and fork


NUMBERS = {
    "x86_64": {
        "clone": 56, "kill": 62, "prlimit64": 302, "fcntl": 72, "ioctl": 16, "sched_setaffinity": 203, "read": 0,
        "mmap": 9, "futex": 202, "openat": 257,
    },
    "aarch64": {
        "clone": 220, "kill": 129, "prlimit64": 261, "fcntl": 25, "ioctl": 29, "sched_setaffinity": 122, "read": 63,
        "mmap": 222, "futex": 98, "openat": 56,
    },
}  # fmt: skip
DENIED = {  # execve, socket, ptrace, unshare, bpf, and fork and vfork or memfd_create
    "x86_64": (59, 41, 101, 272, 321, 57, 58),
    "aarch64": (221, 198, 117, 97, 280, 279),
}


@pytest.mark.parametrize(("machine", "names"), NUMBERS.items())
def test_the_filter_on_both_machines(machine, names):
    assert {decide(machine, names[name]) for name in ("read", "mmap", "futex", "openat")} == {"allow"}
    assert decide(machine, names["clone"], THREAD) == "allow"
    assert decide(machine, names["clone"], FORK) == "errno 1"
    assert {decide(machine, number) for number in (435, 450, 470, 5000)} == {"errno 38"}
    for number, denied, allowed in (
        (names["fcntl"], (8, 10, 15, 1024, 1026, 8 + 2**32), (1, 2, 3, 4, 1030)),
        (names["ioctl"], (0x5452, 0x8901, 0x8902), (0x5401, 0x5421)),
    ):
        assert {decide(machine, number, second=each) for each in denied} == {"errno 1"}
        assert {decide(machine, number, second=each) for each in allowed} == {"allow"}
    assert [decide(machine, names["sched_setaffinity"], pid) for pid in (0, 77, 2)] == ["allow", "allow", "errno 1"]
    assert decide(machine, names["kill"], 77) == "allow"
    assert {decide(machine, names["kill"], other) for other in (1, 2, 0, 2**32 - 1)} == {"errno 1"}
    assert decide(machine, names["prlimit64"], 0) == decide(machine, names["prlimit64"], 77) == "allow"
    assert decide(machine, names["prlimit64"], 2) == "errno 1"
    assert decide(machine, names["read"], audit=0x40000003) == "kill"
    assert decide(machine, 0x40000000 + names["read"]) == "kill"
    assert {decide(machine, number) for number in (*DENIED[machine], 425, 428, 434, 440, 447, 448)} == {"errno 1"}
