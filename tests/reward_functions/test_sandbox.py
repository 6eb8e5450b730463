"""Hostile programs: each tries one thing, none gets it, and the programs beside it are still judged."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.reward_functions.sandboxes import dispatch, needs_sandbox, sandbox

pytestmark = [needs_sandbox, pytest.mark.timeout(300)]  # a program's own seconds, and a queue for a core

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


def test_threads_are_bounded():
    program = "import threading, time\nfor _ in range(10 ** 5): threading.Thread(target=time.sleep, args=(9,)).start()"
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
        *("import os; os.fork()", "import subprocess; subprocess.run(['true'])"),
        "import os; os.execv('/python/bin/python3.11', ['python'])",
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
        "import ctypes; assert ctypes.CDLL(None).vfork() == -1",
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
    dispatch.compute_score("code", "```python\ndef f(x): return x\n```", truth)
    at = 0
    for _ in range(2):  # the runner's code and the request; what follows is read once the program is split off
        at += 8 + int.from_bytes(sent[0][at : at + 8], "little")
    for_the_program, for_the_tests = sent[0][:at], sent[0][at:]
    assert b"EXPECTED" not in for_the_program
    assert (b"EXPECTED" in for_the_tests) is (truth.keys() != {"inputs", "outputs"})


WAITS = "import time\nif input() == 'wait': time.sleep(1000)\nprint('judged')"
PATIENT = sandbox.Limits(wall_s=100.0, total_wall_s=100.0)
JUDGE = """
import sys
from recipes.rewards.loading import load_reward
sandbox = load_reward("reward_functions/dispatch.py").sandbox
sandbox.run("script", sys.argv[1], ["wait"], sandbox.Limits(wall_s=500.0, total_wall_s=500.0))
"""


def processes(judge: int, others: tuple[psutil.Process, ...] = ()) -> list[psutil.Process]:
    """The processes of a judge's sandbox, once the limits hold in the last one, which is the program's."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        inside = [each for each in psutil.Process(judge).children(recursive=True) if each not in others]
        try:
            limits = Path(f"/proc/{inside[-1].pid}/limits").read_text(encoding="utf-8")
        except (IndexError, OSError):
            limits = ""
        if "Max open files 64 64" in " ".join(limits.split()):
            return inside
        time.sleep(0.01)
    raise AssertionError("no program runs")


@contextmanager
def judged_here(*inputs: str) -> Iterator[tuple[list[psutil.Process], list[dict]]]:
    """The processes of a sandbox in which WAITS waits until the block ends it; behind it its results."""
    results, before = [], tuple(psutil.Process().children(recursive=True))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(script, WAITS, *inputs, limits=PATIENT)
        inside = processes(os.getpid(), before)
        yield inside, results
        results += run.result()


def is_gone(inside: list[psutil.Process]) -> bool:
    deadline = time.monotonic() + 60
    while any(map(runs, inside)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(runs, inside))


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_signal_ends_all_processes_and_the_verdict_is_not_that_of_a_program_that_ran(name):
    """To the judge, to the program, and to the sandbox around it."""
    sent = getattr(signal, name)
    with subprocess.Popen([sys.executable, "-c", JUDGE, WAITS], stderr=subprocess.DEVNULL) as judge:
        inside = processes(judge.pid)
        judge.send_signal(sent)
    assert is_gone(inside), "a judge that is ended leaves no program behind"
    for place, statuses in ((-1, ["runtime_error", "ran"]), (0, ["sandbox_error"] * 2)):
        with judged_here("wait", "go on") as (inside, results):
            inside[place].send_signal(sent)
        assert ([result["status"] for result in results], is_gone(inside)) == (statuses, True)


def test_root_is_lost_on_both_sides_of_the_namespaces():
    """User 65534 without capabilities inside; outside too, where nobody may start bubblewrap: threads are limited."""
    with judged_here("wait") as (inside, _):
        lines = Path(f"/proc/{inside[-1].pid}/status").read_text(encoding="utf-8").splitlines()
        inside[-1].kill()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert {name: int(status[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0,
    }  # fmt: skip
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    assert eval(printed("import os\nprint((os.getresuid(), os.getresgid()))")) == ((65534,) * 3, (65534,) * 3)
    as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    tried = [*as_nobody, "bwrap", "--unshare-user", "--ro-bind", "/", "/", os.path.realpath(sys.executable), "-c", ""]
    if os.getuid() == 0 and shutil.which("setpriv") and subprocess.run(tried, check=False).returncode == 0:
        assert (status["Uid"], status["Gid"]) == (["65534"] * 4, ["65534"] * 4)
    if status["Uid"][0] != "0":
        program = "import threading, time\nthreading.stack_size(65536)\nnumber = 0\nwhile number < 200:\n  try:\n"
        program += "    threading.Thread(target=time.sleep, args=(0.1,)).start()\n  except RuntimeError: break\n"
        assert int(printed(f"{program}  number += 1\nprint(number)")) < sandbox.Limits().threads


def test_scratch_space_is_bounded_kept_for_the_next_test_and_gone_afterwards(tmp_path):
    mark = f"left_by_{tmp_path.name}_{os.getpid()}"
    fill = f"""
import errno, os
print(len(os.listdir('.')))
try:
    for number in range(64):
        with open('{mark}' + str(number), 'ab') as file:
            file.write(bytes(1 << 20))
except OSError as error:
    print(errno.errorcode[error.errno])
print(sum(os.path.getsize(name) for name in os.listdir('.')) >> 20)
"""
    limits = replace(TIGHT, file_bytes=8 << 20, test_s=2.0, total_s=4.0)
    first, second = (result["output"].split() for result in script(fill, "", "", limits=limits))
    assert (first[:2], 4 <= int(first[2]) <= 8) == (["1", "ENOSPC"], True)
    assert int(second[0]) > 4, "what a test leaves is there for the next"
    assert printed("import os\nprint(os.listdir('/tmp'))") == "['program.py']"
    assert not [*Path("/tmp").glob(f"{mark}*"), *Path("/dev/shm").glob(f"{mark}*")]
