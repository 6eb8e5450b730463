"""The first process in the sandbox: forks one child per test (or one for all calls), limits it, reports what it did.

`sandbox.run` sends this file's code and the request; the answer is, per test and in order, a line `status length` and
that many bytes. Children get neither. The request has no expected answer in it, so there is nothing here to be found.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time
from _signal import SIGKILL, SIGXCPU  # the module signal takes as long to import as Python to start

import harness
import seccomp

RAISED, NO_MEMORY, BAD_SYNTAX = 101, 102, 103  # exit codes of a child
STATUS = {0: "ran", RAISED: "runtime_error", NO_MEMORY: "memory_limit", BAD_SYNTAX: "syntax_error"}
POLL_MS = 20


class Child:
    """One process that runs the program: what it wrote, and how it ended.

    Args:
        request: `program`, `machine`, and the limits; see `sandbox.Limits`.
        stdin: the text on its standard input, or None to call functions.
        tests: the calls that are left.
        cpu_s: CPU seconds that the program may still use in all its tests.
        deadline: on the monotonic clock, for all its tests.
    """

    def __init__(self, request: dict, stdin: str | None, tests: list, cpu_s: float, deadline: float) -> None:
        self.limits, self.deadline = request["limits"], deadline
        self.output, self.status = b"", ""
        self.seen = 0  # bytes whose lines were handed out
        source = memory_file((stdin or "").encode("utf-8", "surrogatepass"))
        self.pipe, there = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            be_the_program(request, source, there, stdin is not None, tests, cpu_s)
        os.close(source)
        os.close(there)
        os.set_blocking(self.pipe, False)
        self.ended = os.pidfd_open(self.pid)
        self.reading = True
        self.poll = select.poll()
        self.poll.register(self.pipe, select.POLLIN)
        self.poll.register(self.ended, select.POLLIN)

    def cpu(self) -> float:
        """CPU seconds so far."""
        return time.clock_gettime(~self.pid << 3 | 2)  # the clock of another process, see clock_getcpuclockid(3)

    def line(self, cpu_before: float) -> bytes | None:
        """The next line that the child wrote, or None where it ended, or was ended, before one; see `status`."""
        began = time.monotonic()
        while (at := self.output.find(b"\n", self.seen)) == -1:
            if not self.more(began, cpu_before) and b"\n" not in self.output[self.seen :]:
                return None
        line = self.output[self.seen : at]
        self.seen = at + 1
        return line

    def all(self) -> bytes:
        """Everything that the child wrote until it ended, or was ended."""
        began = time.monotonic()
        while self.more(began, 0.0):
            pass
        return self.output

    def more(self, began: float, cpu_before: float) -> bool:
        """Wait for output or the end; False once the child is gone and `status` is known."""
        if self.status:
            return False
        ready = {fd for fd, _ in self.poll.poll(POLL_MS)}
        gone = self.ended in ready
        if self.reading and (gone or self.pipe in ready):
            self.read(everything=gone)
        if len(self.output) > self.limits["output_bytes"]:
            self.end("output_limit")
        elif gone:
            self.end("")
        elif self.late(began, cpu_before):
            self.end("timeout")
        return not self.status

    def late(self, began: float, cpu_before: float) -> bool:
        """Is this test's CPU time, this test's time by the clock, or the program's time over?"""
        now, limits = time.monotonic(), self.limits
        over = now > self.deadline or now - began > limits["wall_s"]
        return over or self.cpu() - cpu_before > limits["test_s"]

    def read(self, everything: bool) -> None:
        while True:
            try:
                block = os.read(self.pipe, 65536)
            except BlockingIOError:
                return
            self.output += block
            if not block:
                self.reading = False
                self.poll.unregister(self.pipe)  # it closed its output, which need not be the end
                return
            if not everything or len(self.output) > self.limits["output_bytes"]:
                return

    def end(self, status: str) -> None:
        """Kill what is left of the child and note how it ended."""
        try:  # noqa: SIM105  # contextlib takes longer to import than this process may live
            os.kill(self.pid, SIGKILL)
        except ProcessLookupError:
            pass
        _, code, usage = os.wait4(self.pid, 0)
        self.used = usage.ru_utime + usage.ru_stime
        os.close(self.pipe)
        os.close(self.ended)
        if not status and os.WIFSIGNALED(code):
            late = os.WTERMSIG(code) in (SIGXCPU, SIGKILL) and self.used > self.limits["test_s"]
            status = "timeout" if late else "runtime_error"
        self.status = status or STATUS.get(os.WEXITSTATUS(code), "runtime_error")


def memory_file(content: bytes) -> int:
    """A file that exists only as a descriptor, rewound to its start."""
    fd = os.memfd_create("stdin")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def confine(request: dict, cpu_s: float) -> None:
    """Limits that this process can never raise again, then the filter for system calls."""
    limits = request["limits"]
    bounds = {
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_CPU: int(cpu_s) + 1,
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: limits["threads"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    seccomp.install(request["machine"])
    for kind, bound in bounds.items():
        resource.setrlimit(kind, (bound, bound))


def be_the_program(request: dict, source: int, there: int, as_script: bool, tests: list, cpu_s: float) -> None:
    """In the child: give up everything but the program's own input and output, then run it. Never returns."""
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(source, 0)
    os.dup2(there if as_script else nothing, 1)
    os.dup2(nothing, 2)
    report = 3
    os.dup2(nothing if as_script else there, report)
    os.closerange(4, 256)
    code = RAISED
    try:
        confine(request, cpu_s)
        if as_script:
            code = run_script(request["program"])
        else:
            harness.run(request["program"], tests, lambda line: write(report, line.encode() + b"\n"))
            code = 0
    finally:
        os._exit(code)


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def run_script(program: str) -> int:
    """Run the program as `python program.py` would, threads and exit handlers included; return the exit code."""
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    sys.argv = ["program.py"]
    try:
        exec(compile(program, "<program>", "exec"), names)  # allowed: this is the sandbox; running it is the job
        code = 0
    except SystemExit as error:
        code = 0 if error.code in (None, 0) else RAISED
    except SyntaxError:
        code = BAD_SYNTAX
    except MemoryError:
        code = NO_MEMORY
    except BaseException:  # allowed: a program may raise anything
        code = RAISED
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()  # waits for the program's threads, as the interpreter does at its end
    atexit = sys.modules.get("atexit")
    if atexit is not None:
        atexit._run_exitfuncs()
    try:  # noqa: SIM105
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        pass  # the program closed or replaced it
    return code


def answer(request: dict) -> None:
    """Run every test of a request."""
    tests, limits = request["tests"], request["limits"]
    used, deadline, done = 0.0, time.monotonic() + limits["total_wall_s"], 0

    def report(status: str, content: bytes = b"") -> None:
        nonlocal done
        done += 1
        write(1, f"{status} {len(content)}\n".encode() + content)

    while done < len(tests):
        if used > limits["total_s"] or time.monotonic() > deadline:
            report("timeout")
        elif request["kind"] == "script":
            child = Child(request, tests[done], [], limits["test_s"], deadline)
            output = child.all()
            used += child.used
            report(child.status, output if child.status == "ran" else b"")
        else:
            used += run_calls(request, tests[done:], limits["total_s"] - used, deadline, report)


def run_calls(request: dict, tests: list, cpu_s: float, deadline: float, report) -> float:
    """Call functions in one child until it ends; the test that ended it has failed. Returns its CPU seconds."""
    child = Child(request, None, tests, cpu_s, deadline)
    for _ in tests:
        line = child.line(child.cpu() if not child.status else 0.0)
        if line is None:
            report(child.status if child.status != "ran" else "runtime_error")
            break
        report("line", line)
    if not child.status:
        child.end("ran")
    return child.used
