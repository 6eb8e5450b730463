"""The filter for system calls: the kernel's numbers, interpreted instruction by instruction."""

import re
import struct
from pathlib import Path

import pytest

from recipes.paths import ROOT
from recipes.rewards.loading import load_reward

seccomp = load_reward(ROOT / "reward_functions" / "sources" / "sandboxed" / "seccomp.py")

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
ALLOWED = "read write mmap brk futex openat close exit_group rt_sigaction getrandom"
OWN = "kill tgkill prlimit64 sched_setparam sched_setscheduler sched_setaffinity sched_setattr"
THREAD, FORK = 0x3D0F00, 0x1200011  # the flags of glibc's pthread_create and fork
PID = 77


def decide(number: int, first: int = 0, second: int = 0, audit: int = seccomp.AUDIT) -> str:
    """The filter's answer to a system call."""
    data = struct.pack("<IIQ6Q", number, audit, 0, first, second, 0, 0, 0, 0)
    lines, at, loaded = seccomp.program(PID), 0, 0
    assert all(0 <= jump <= 255 for _, yes, no, _ in lines for jump in (yes, no)), "a jump is one byte"
    while True:
        code, yes, no, constant = lines[at]
        if code == seccomp.RETURN:
            return {seccomp.ALLOW: "allow", seccomp.KILL: "kill"}.get(constant, f"errno {constant & 0xFFFF}")
        if code == seccomp.LOAD:
            (loaded,) = struct.unpack_from("<I", data, constant)
            at += 1
        else:
            tests = {seccomp.EQUAL: loaded == constant, seccomp.AT_LEAST: loaded >= constant}
            at += 1 + (yes if tests.get(code, bool(loaded & constant)) else no)


def test_the_filter():
    if not HEADER.is_file():
        pytest.skip("the sandbox's filter on this kernel: apt-get install linux-libc-dev")
    text = HEADER.read_text(encoding="utf-8")
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", text)}
    here = numbers.keys() & seccomp.DENIED.keys()  # an older kernel has no name for the newest
    assert len(here) > 50
    assert {name: numbers[name] for name in here} == {name: seccomp.DENIED[name] for name in here}
    assert {decide(number) for number in seccomp.DENIED.values()} == {"errno 1"}
    assert {decide(numbers[name]) for name in ALLOWED.split()} == {"allow"}
    assert {decide(number) for number in (numbers["clone3"], 450, 470, 5000)} == {"errno 38"}
    assert [decide(numbers["clone"], flags) for flags in (THREAD, FORK)] == ["allow", "errno 1"]
    for name in OWN.split():
        itself = "errno 1" if "kill" in name else "allow"  # 0 is the process group there
        results = [decide(numbers[name], pid) for pid in (PID, 0, 1, 2, 2**32 - 1)]
        assert results == ["allow", itself, *["errno 1"] * 3], name
    for name, signalling, others in (
        ("fcntl", (8, 10, 15, 1024, 1026, 8 + 2**32), (1, 2, 3, 4, 1030)),
        ("ioctl", (0x5452, 0x8901, 0x8902), (0x5401, 0x5421)),
    ):
        number = numbers[name]
        assert {decide(number, second=each) for each in signalling} == {"errno 1"}
        assert {decide(number, second=each) for each in others} == {"allow"}
    assert decide(numbers["read"], audit=0x40000003) == "kill"
    assert decide(0x40000000 + numbers["read"]) == "kill"
