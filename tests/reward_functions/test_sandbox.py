"""Hostile programs: each tries one thing, none gets it, and the programs beside it are still judged."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.data.rewards import load_reward

sandboxes = load_reward("tests/reward_functions/sandboxes.py")
sandbox, needs_sandbox = sandboxes.sandbox, sandboxes.needs_sandbox

pytestmark = needs_sandbox

TIGHT = sandbox.Limits(test_s=0.4, wall_s=5.0, total_s=1.0, total_wall_s=6.0, memory_bytes=128 << 20)
BRIEF = replace(TIGHT, test_s=0.2, wall_s=0.5, total_s=0.5, total_wall_s=1.2)  # for what is to be ended


def script(program: str, *inputs: str, limits=TIGHT) -> list[dict]:
    return sandbox.run("script", program, list(inputs) or [""], limits)


def printed(program: str) -> str:
    (result,) = script(program)
    assert result["status"] == "ran", result
    return result["output"].strip()


def test_inputs_go_in_and_outputs_come_out():
    program = "n = int(input())\nwhile n == 2: pass\nif n == 3: import os; os._exit(9)\nprint(n * 2, 'é中')"
    results = script(program, "4", "2", "3", "x", "-1")
    assert [result["status"] for result in results] == ["ran", "timeout", "runtime_error", "runtime_error", "ran"]
    assert results[4]["output"] == "-2 é中\n"
    assert sandbox.run("script", "print(1)", [], TIGHT) == []


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("while True: pass", "timeout"),
        ("import signal, time\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: 0\n"
         "while True: pass", "timeout"),
        ("import os, time\nos.close(0); os.close(1); os.close(2)\ntime.sleep(1000)", "timeout"),
        ("x = []\nwhile True: x.append('a' * 10 ** 7)", "memory_limit"),
        ("while True: print('x' * 1000)", "output_limit"),
        ("def broken(:", "syntax_error"),
        ("import sys\nsys.setrecursionlimit(10 ** 9)\nclass A:\n  def __eq__(self, o): return A() == A()\nA() == A()",
         "runtime_error"),
        ("import ctypes\nctypes.string_at(0)", "runtime_error"),
        ("while True:\n  try:\n    raise SystemExit\n  except SystemExit: pass", "timeout"),
    ],
)  # fmt: skip
def test_what_is_over_a_limit_ends_and_says_why(program, status):
    assert [result["status"] for result in script(program, limits=BRIEF if status == "timeout" else TIGHT)] == [status]


@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.execv('/python/bin/python3.11', ['python'])",
        "import ctypes\nif ctypes.CDLL(None).vfork() == -1: raise OSError",
        "import threading, time\nfor _ in range(10 ** 5): threading.Thread(target=time.sleep, args=(9,)).start()",
    ],
)
def test_no_processes_and_not_many_threads(program):
    assert script(program, limits=BRIEF)[0]["status"] in ("runtime_error", "memory_limit", "timeout")


def test_the_environment_and_the_home_folder_are_not_there(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "do-not-tell")
    environment = printed("import os\nprint(dict(os.environ))")
    assert "do-not-tell" not in environment
    assert set(eval(environment)) <= {"LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "PWD", "LC_CTYPE"}
    places = [str(Path.home()), os.getcwd(), str(sandbox.SANDBOXED), "/etc/passwd", "/proc", "/sys", "/var", "/run"]
    assert printed(f"import os\nprint([place for place in {places!r} if os.path.exists(place)])") == "[]"
    root, scratch = eval(printed("import os\nprint((os.listdir('/'), os.listdir('/tmp')))"))
    assert set(root) <= {"dev", "etc", "lib", "lib64", "python", "tmp", "usr"}
    assert scratch == ["program.py"]
    search = "import os, sys\nfolders = [os.path.join(path, 'site-packages') for path in sys.path]\n"
    assert eval(printed(f"{search}print([os.listdir(path) for path in folders if os.path.isdir(path)])")) in ([], [[]])


# What a program gets -> what it tries; among it to signal, limit or slow this process and the runner above it.
OURS = os.getpid()
DENIED = {
    "PermissionError": [
        *(f"import os; os.kill({pid}, 9)" for pid in (OURS, "os.getppid()", 1, -1, 0)),
        "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
        "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "import os; os.sched_setaffinity(os.getppid(), {0})",
        "import os; os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
        "import os; os.memfd_create('x')",
        "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
        "import socket; socket.socket(socket.AF_UNIX)",
    ],
    "URLError": ["import urllib.request; urllib.request.urlopen('http://1.1.1.1', timeout=1)"],
    "ModuleNotFoundError": ["import numpy"],
    "OSError PermissionError ValueError": [
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
        "import os; os.setuid(0)",
    ],
    "OSError MemoryError": ["import mmap; mmap.mmap(-1, 1 << 34)"],
    "OSError PermissionError FileNotFoundError": [
        "import os; os.symlink('/etc/passwd', 'link'); open('link').read()",
        "import os; os.symlink('/var', 'there'); open('there/new', 'w')",
        *(f"open('{place}/x', 'w')" for place in ("", "/usr", "/usr/lib", "/python", "/dev", "/etc", "/python/lib")),
    ],
    "nothing": [
        "import ctypes, os; assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == -1",
        "import ctypes; assert ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600) == -1",
        "import os; os.sched_setaffinity(0, os.sched_getaffinity(0))",
    ],
}


def test_what_a_program_may_not_do():
    attempts = [attempt for each in DENIED.values() for attempt in each]
    program = f"""
for attempt in {attempts!r}:
    try:
        exec(attempt)
    except BaseException as error:
        print(type(error).__name__)
    else:
        print('nothing')"""
    got = dict(zip(attempts, printed(program).split(), strict=True))
    assert {each: got[each] for names in DENIED for each in DENIED[names] if got[each] not in names.split()} == {}


@pytest.mark.parametrize(
    "truth",
    [
        {"inputs": ["the input"], "outputs": ["the EXPECTED one"]},
        {"fn_name": "f", "inputs": [["the input"]], "outputs": [{"EXPECTED": 1}]},
        {"asserts": ["assert sorted(f('the input')) == ['EXPECTED']", "assert f(2)['EXPECTED'] == 1"]},
    ],
)
def test_nothing_that_is_expected_goes_to_the_program(truth, monkeypatch):
    sent, exchange = [], sandbox._exchange
    monkeypatch.setattr(sandbox, "_exchange", lambda *given: sent.append(given[1]) or exchange(*given))
    sandboxes.dispatch.compute_score("code", "```python\ndef f(x): return x\n```", truth)
    size = int.from_bytes(sent[0][:8], "little")
    for_the_program, for_the_tests = sent[0][: 8 + size], sent[0][8 + size :]
    assert b"EXPECTED" not in for_the_program
    assert (b"EXPECTED" in for_the_tests) is ("asserts" in truth)


def test_nothing_is_left_behind():
    script("import time\ntime.sleep(100)", limits=BRIEF)
    running = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in running.splitlines() if line.split()[0] == str(os.getpid()) and "bwrap" in line]
