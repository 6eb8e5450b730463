"""The first process in the sandbox: forks one child per test of a script, or one for all calls and asserts, limits the
child, and reports what it did.

`sandbox.run` sends the code of these files and then the request; the answer is, per test and in order, a line of
status, length and CPU milliseconds, then that many bytes. Neither the request nor this process holds an expected answer
when it forks, so a program finds none in its process. Only after the fork does this process read the calls and asserts,
and execute them.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import site
import sys
import time
from _signal import ITIMER_PROF, SIGKILL, SIGXCPU, setitimer  # importing signal takes as long as starting Python

import seccomp
import talk

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python
    from collections.abc import Callable
    from typing import Any

NO_MEMORY, BAD_SYNTAX = 102, 103  # exit codes of a child, besides Python's own
STATUS = {0: "ran", NO_MEMORY: "memory_limit", BAD_SYNTAX: "syntax_error"}
POLL_MS = 20
PROGRAM = "/tmp/program.py"
FRAMES = 12  # at most this many frames lie below a program's calls; the recursion limit is raised by them


class InChild(BaseException):
    """Raised in a new child, so that it leaves the runner's frames before it runs the program."""


class Child:
    """One process that runs the program (`job`: `run_script` or `serve`): what it wrote, and how it ended.

    `source` is the file descriptor of its standard input, closed here; `deadline` is on the monotonic clock.
    """

    def __init__(
        self, request: dict[str, Any], source: int, job: Callable[[dict[str, Any]], None], cpu_s: float, deadline: float
    ) -> None:
        self.limits, self.deadline = request["limits"], deadline
        self.output, self.status, self.used = b"", "", 0.0
        self.pipe, there = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            become_child(request, source, there, job is run_script, cpu_s)
            raise InChild(job)
        os.close(source)
        os.close(there)
        os.set_blocking(self.pipe, False)
        self.ended = os.pidfd_open(self.pid)
        self.reading = True
        self.poll = select.poll()
        self.poll.register(self.pipe, select.POLLIN)
        self.poll.register(self.ended, select.POLLIN)
        self.begin()

    def begin(self) -> None:
        self.began, self.cpu_before = time.monotonic(), self.cpu()

    def cpu(self) -> float:
        if self.status:
            return self.used
        return time.clock_gettime(~self.pid << 3 | 2)  # the clock of another process, see clock_getcpuclockid(3)

    def line(self) -> bytes | None:
        """Return the next line that the child wrote, or None if it ended or was killed first; see `status`."""
        while b"\n" not in self.output:
            if not self.more() and b"\n" not in self.output:
                return None
        line, _, self.output = self.output.partition(b"\n")
        return line

    def all(self) -> bytes:
        while self.more():
            pass
        return self.output

    def more(self) -> bool:
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
        elif self.late():
            self.end("timeout")
        return not self.status

    def late(self) -> bool:
        now = time.monotonic()
        by_the_clock = now > self.deadline or now - self.began > self.limits["wall_s"]
        return by_the_clock or self.cpu() - self.cpu_before > self.limits["test_s"]

    def failure(self) -> str:
        return "runtime_error" if self.status == "ran" else self.status

    def read(self, everything: bool) -> None:
        while True:
            try:
                block = os.read(self.pipe, 65536)
            except BlockingIOError:
                return
            self.output += block
            if not block:
                self.reading = False
                self.poll.unregister(self.pipe)  # the child closed its output, but may still run
                return
            if not everything or len(self.output) > self.limits["output_bytes"]:
                return

    def end(self, status: str) -> None:
        """Kill what is left of the child and note how it ended."""
        os.kill(self.pid, SIGKILL)  # the pid stays valid until wait4
        _, code, usage = os.wait4(self.pid, 0)
        self.used = usage.ru_utime + usage.ru_stime
        os.close(self.pipe)
        os.close(self.ended)
        if not status and os.WIFSIGNALED(code):
            late = os.WTERMSIG(code) in (SIGXCPU, SIGKILL) and self.used > self.limits["test_s"]
            status = "timeout" if late else "runtime_error"
        self.status = status or STATUS.get(os.WEXITSTATUS(code), "runtime_error")


def become_child(request: dict[str, Any], source: int, there: int, as_script: bool, cpu_s: float) -> None:
    """In the child: keep only the program's own input and output, and apply limits that it cannot raise again."""
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(source, 0)
    os.dup2(there if as_script else nothing, 1)
    os.dup2(nothing, 2)
    os.dup2(nothing if as_script else there, 3)
    os.closerange(4, 256)
    limits = request["limits"]
    bounds = {"AS": limits["memory_bytes"], "CPU": int(cpu_s) + 1, "FSIZE": limits["file_bytes"], "NOFILE": 64}
    bounds |= {"NPROC": limits["threads"], "CORE": 0, "MSGQUEUE": 0, "MEMLOCK": 0}
    seccomp.install()
    for name, bound in bounds.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (bound, bound))
    for part in ("seccomp", "talk", "runner"):
        sys.modules.pop(part)
    sys.argv = ["program.py"]
    sys.path.insert(0, "/tmp")


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def report(line: str) -> None:
    write(3, line.encode() + b"\n")


def run_script(request: dict[str, Any]) -> None:
    """Run the program as `python program.py` would, as `__main__`."""
    try:
        code = compile(request["program"], PROGRAM, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        os._exit(BAD_SYNTAX)
    names = talk.module("__main__", PROGRAM).__dict__
    try:
        exec(code, names)
    except MemoryError:
        os._exit(NO_MEMORY)
    if "__del__" in request["program"] or sys.modules.keys() & {"threading", "atexit"}:
        return  # Python then shuts down as usual, which takes longer than most programs
    files: tuple[Any, ...] = (sys.stdout, sys.__stdout__)
    for file in files:
        if not getattr(file, "closed", file is None):
            file.flush()  # may be an object of the program's, which uses its names
        names.clear()  # closes files
    os._exit(0)


def serve(request: dict[str, Any]) -> None:
    sys.setrecursionlimit(sys.getrecursionlimit() + FRAMES)
    asked = os.dup(0)
    os.dup2(1, 0)
    messages = (line[:-1].decode() for line in open(asked, "rb", 1 << 20))  # noqa: SIM115
    try:
        talk.Server(report).run(request["program"], PROGRAM, messages)
    except MemoryError:
        os._exit(NO_MEMORY)
    os._exit(0)


def block() -> Any:
    return marshal.loads(os.read(0, int.from_bytes(os.read(0, 8), "little")))


def main() -> tuple[Callable[[dict[str, Any]], None], dict[str, Any]]:
    """Run every test of a request, send its results to `sandbox.run`, and end. Only a child returns, with its job."""
    request = block()
    try:
        answer(request)
    except InChild as child:
        (job,) = child.args
        return job, request
    os._exit(0)


def answer(request: dict[str, Any]) -> None:
    site.setquit()
    site.setcopyright()
    site.sethelper()
    try:
        with open(PROGRAM, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(request["program"])  # for programs that read themselves
    except OSError:
        pass  # a sandbox without a scratch folder
    run = run_scripts if request["kind"] == "script" else run_tests
    run(request, request["limits"])


def send(status: str, content: bytes = b"", used: float = 0.0) -> None:
    write(1, f"{status} {len(content)} {used * 1000:.0f}\n".encode() + content)


def run_scripts(request: dict[str, Any], limits: dict[str, Any]) -> None:
    left, deadline = limits["total_s"], time.monotonic() + limits["total_wall_s"]
    for stdin in request["inputs"]:
        if left < 0 or time.monotonic() > deadline:
            send("timeout")
            continue
        source = os.memfd_create("stdin")
        write(source, stdin.encode("utf-8", "surrogatepass"))
        os.lseek(source, 0, os.SEEK_SET)
        child = Child(request, source, run_script, limits["test_s"], deadline)
        output = child.all()
        left -= child.used
        send(child.status, output if child.status == "ran" else b"")


def run_tests(request: dict[str, Any], limits: dict[str, Any]) -> None:
    """Run the program, read the tests, and execute them, up to one that ends the program. A test that takes too long by
    itself ends this process (SIGPROF), and `sandbox.run` sees how far it got."""
    kind, (hears, speaks) = request["kind"], os.pipe()
    deadline = time.monotonic() + limits["total_wall_s"]
    child = Child(request, hears, serve, limits["total_s"], deadline)
    tests, data_names = block()
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))

    def begin() -> None:
        child.begin()
        setitimer(ITIMER_PROF, limits["test_s"])

    def answer(message: str) -> str:
        try:  # noqa: SIM105  # contextlib takes longer to import than this process may live
            write(speaks, message.encode() + b"\n")
        except BrokenPipeError:
            pass
        line = child.line()
        if line is None:
            raise talk.Gone(child.failure())
        return line.decode("ascii", "replace")

    send("started")
    begin()
    marks = [b""] * len(tests)
    if kind == "asserts":  # what a call should return is known outside
        marks = [b"b" if talk.holds_for(True, test) or talk.holds_for(False, test) else b"" for test in tests]
    send("tested")
    begin()
    loaded, asking = child.line() is not None, talk.Talk(answer, data_names, kind == "asserts")
    for test, mark in zip(tests, marks):  # noqa: B905
        begin()
        send(talk.judged(kind, test, asking) if loaded else child.failure(), mark, child.cpu())
        if asking.gone:
            return
