"""The first process in the sandbox: forks one child per test of a script, or one for the program and one for the tests
that call it, limits them, and reports what they did.

`sandbox.run` sends this file's code and the request; the answer is, per test and in order, a line `status length` and
that many bytes. The request has no expected answer in it, and neither has this process, so there is nothing in a child
with a program to be found. The tests that follow the request are read by the child that executes them alone.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import site
import sys
import time
from _signal import SIGKILL, SIGXCPU  # the module signal takes as long to import as Python to start

import judged
import seccomp
import served

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than starting Python
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Job = tuple[Callable[..., Any], Any]  # what a child does: `run_script`, `serve` or `judge`, and its argument

NO_MEMORY, BAD_SYNTAX = 102, 103  # exit codes of a child, besides Python's own
STATUS = {0: "ran", NO_MEMORY: "memory_limit", BAD_SYNTAX: "syntax_error"}
POLL_MS = 20
LEAVING_S = 0.5  # for a child that closed its pipes to end
MOVED = 200  # where files are put that are about to get their numbers
TESTS = 0  # the file with the request and, behind it, the tests
PROGRAM = "/tmp/program.py"
FRAMES = 12  # at most so many are below a program's calls, which shall recurse as deep as in a file of their own


class InChild(BaseException):
    """Raised in a new child, so that it leaves the runner's frames before it runs the program."""


class Child:
    """One process that runs the program: what it wrote, and how it ended.

    Args:
        request: see `sandbox.run`.
        stdin: the text on its standard input, or None where it reports lines.
        job: what it does.
        talk: the two ends of pipes on which it hears and speaks to another child.
        cpu_s: CPU seconds that it may use.
        deadline: on the monotonic clock.
    """

    def __init__(
        self, request: dict, stdin: str | None, job: Job, cpu_s: float, deadline: float, talk: tuple = ()
    ) -> None:
        self.limits, self.deadline = request["limits"], deadline
        self.output, self.status = b"", ""
        self.seen = 0  # bytes whose lines were handed out
        if job[0] is judge:
            source = os.dup(TESTS)
        else:
            source = os.memfd_create("stdin")
            write(source, (stdin or "").encode("utf-8", "surrogatepass"))
            os.lseek(source, 0, os.SEEK_SET)
        self.pipe, there = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            become_child(request, source, there, stdin is not None, cpu_s, talk)
            raise InChild(*job)
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
        if self.status:
            return self.used
        return time.clock_gettime(~self.pid << 3 | 2)  # the clock of another process, see clock_getcpuclockid(3)

    def line(self, others: list[Child]) -> bytes | None:
        """Return the next line that the child wrote, or None where it ended, or was ended, before one; see `status`.

        Args:
            others: children whose CPU time counts too.
        """
        began, cpu_before = time.monotonic(), self.cpu() + sum(each.cpu() for each in others)
        while (at := self.output.find(b"\n", self.seen)) == -1:
            if not self.more(began, cpu_before, others) and b"\n" not in self.output[self.seen :]:
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

    def more(self, began: float, cpu_before: float, others: Iterable[Child] = ()) -> bool:
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
        elif self.late(began, cpu_before - sum(each.cpu() for each in others)):
            self.end("timeout")
        return not self.status

    def late(self, began: float, cpu_before: float) -> bool:
        """Is this test's CPU time, this test's time by the clock, or the program's time over?"""
        now = time.monotonic()
        by_the_clock = now > self.deadline or now - began > self.limits["wall_s"]
        return by_the_clock or self.cpu() - cpu_before > self.limits["test_s"]

    def left(self) -> str:
        """The status of a child that ended by itself, or is about to."""
        began = time.monotonic()
        while not self.status and time.monotonic() - began < LEAVING_S:
            self.more(began, self.cpu())
        if not self.status:
            self.end("runtime_error")
        return self.status

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


def become_child(request: dict, source: int, there: int, as_script: bool, cpu_s: float, talk: tuple) -> None:
    """In the child: give up everything but the program's own input and output, and accept the limits for good."""
    nothing = os.open("/dev/null", os.O_RDWR)
    files = [source, there if as_script else nothing, nothing, nothing if as_script else there, *talk]
    for at, fd in enumerate(files):
        os.dup2(fd, MOVED + at)
    for at in range(len(files)):
        os.dup2(MOVED + at, at)
    os.closerange(len(files), 256)
    limits = request["limits"]
    bounds = {"AS": limits["memory_bytes"], "CPU": int(cpu_s) + 1, "FSIZE": limits["file_bytes"], "NOFILE": 64}
    bounds |= {"NPROC": limits["threads"], "CORE": 0, "MSGQUEUE": 0, "MEMLOCK": 0}
    seccomp.install(request["machine"])
    for name, bound in bounds.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (bound, bound))
    for part in request["parts"]:
        sys.modules.pop(part)


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def report(line: str) -> None:
    """In a child: the next line to the runner."""
    write(3, line.encode() + b"\n")


def run_script(program: str) -> tuple:
    """The program, for START to run as `python program.py` would, as `__main__`: its code, its names, and the end."""
    try:
        code = compile(program, PROGRAM, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        os._exit(BAD_SYNTAX)
    sys.argv = ["program.py"]
    sys.path.insert(0, "/tmp")
    return code, served.module("__main__", PROGRAM).__dict__, end_slowly if "__del__" in program else end


def end(names: dict[str, Any], error: BaseException | None) -> None:
    """End as Python does: threads, exit handlers, objects, output. Its own end takes longer than most programs."""
    code = exit_code(error)
    threading, atexit = sys.modules.get("threading"), sys.modules.get("atexit")
    if threading is not None:
        threading._shutdown()  # waits for the program's threads
    if atexit is not None:
        atexit._run_exitfuncs()
    code = code if flushed(sys.stdout) else 120
    names.clear()
    flushed(sys.__stdout__)
    os._exit(code)


def flushed(file: Any) -> bool:
    """Flush what may be of the program's own class; False where that raises."""
    try:
        if not getattr(file, "closed", file is None):
            file.flush()
    except BaseException:  # allowed: the program may raise anything
        return False
    return True


def end_slowly(names: dict[str, Any], error: BaseException | None) -> None:
    """Python's own end, which calls every `__del__`."""
    raise SystemExit(exit_code(error))


def exit_code(error: BaseException | None) -> int:
    """Return what Python exits with behind a program that ended with this."""
    if isinstance(error, SystemExit):
        return 0 if error.code is None else error.code & 255 if isinstance(error.code, int) else 1
    return 0 if error is None else NO_MEMORY if isinstance(error, MemoryError) else 1


def serve(job: tuple) -> None:
    """Run the program, and answer the calls that are known, or else what the tests ask."""
    program, calls = job
    sys.argv = ["program.py"]
    sys.path.insert(0, "/tmp")
    sys.setrecursionlimit(sys.getrecursionlimit() + FRAMES)
    try:
        if calls is None:
            output = sys.stdout = served.Output()
            served.Server(lambda line: write(5, line.encode() + b"\n"), output).run(program, PROGRAM, lines(4))
        else:
            served.Server(report).run(program, PROGRAM, calls)
    except MemoryError:
        os._exit(NO_MEMORY)
    os._exit(0)


def judge(job: tuple) -> None:
    """Execute the tests from this one on, in a process in which no program runs."""
    first, at, most = job
    size = int.from_bytes(os.pread(TESTS, 8, at), "little")
    tests, data_names = marshal.loads(os.pread(TESTS, size, at + 8))
    os.dup2(2, TESTS)
    judged.run(tests, data_names, first, lambda line: write(5, line.encode() + b"\n"), lines(4, most), report)
    os._exit(0)


def lines(fd: int, most: int = 1 << 40) -> Iterator[str]:
    """Yield what comes through a pipe, line by line. Raises OverflowError: a longer line than this many bytes."""
    rest = b""
    while True:
        blocks, size = [rest], len(rest)
        while b"\n" not in blocks[-1]:
            block = os.read(fd, 1 << 20)
            if not block:
                return
            blocks.append(block)
            size += len(block)
            if size > most:
                raise OverflowError
        line, _, rest = b"".join(blocks).partition(b"\n")
        yield line.decode("ascii", "replace")


def main(request: dict) -> tuple:
    """Answer a request, and end. Only a child that is to run a script returns, with its code and names.

    Args:
        request: see `sandbox.run`.
    """
    try:
        answer(request)
    except InChild as child:
        do, argument = child.args
    else:
        os._exit(0)
    return do(argument)


def answer(request: dict) -> None:
    """Run every test of a request, and send its results to `sandbox.run`."""
    site.setquit()
    site.setcopyright()
    site.sethelper()
    program, limits = request["program"], request["limits"]
    try:
        with open(PROGRAM, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(program)  # for programs that read themselves
    except OSError:
        pass  # a sandbox without a scratch folder
    if request["kind"] == "script":
        left, deadline = limits["total_s"], time.monotonic() + limits["total_wall_s"]
        for stdin in request["inputs"]:
            if left < 0 or time.monotonic() > deadline:
                send("timeout")
                continue
            child = Child(request, stdin, (run_script, program), limits["test_s"], deadline)
            output = child.all()
            left -= child.used
            send(child.status, output if child.status == "ran" else b"")
        return
    for status, content in in_turn(request):
        send(status, content)


def send(status: str, content: bytes = b"") -> None:
    """Send one test's result to `sandbox.run`."""
    write(1, f"{status} {len(content)}\n".encode() + content)


def in_turn(request: dict) -> list[tuple[str, bytes]]:
    """Return the status of each call or test, and what the program answers, or "b" for a test that a constant passes;
    behind one that ended the program it starts anew."""
    limits, calls, count = request["limits"], request["inputs"], request["count"]
    left, deadline, at = limits["total_s"], time.monotonic() + limits["total_wall_s"], os.lseek(TESTS, 0, os.SEEK_CUR)
    results: list[tuple[str, bytes]] = []
    flags = b""
    while len(results) < count:
        if left < 0 or time.monotonic() > deadline:
            results.append(("timeout", b""))
            continue
        if calls is not None:
            job = (serve, (request["program"], calls[len(results) :]))
            reader = program = Child(request, None, job, left, deadline)
            others = []
        else:
            hears, speaks = os.pipe(), os.pipe()  # of the program
            job = (judge, (len(results), at, limits["output_bytes"]))
            reader = Child(request, None, job, left, deadline, (speaks[0], hears[1]))
            if not results:
                flags = reader.line([])
                if flags is None:
                    return [("gold_unparsable", b"")] * count  # a test takes too long by itself
            job = (serve, (request["program"], None))
            program = Child(request, None, job, left, deadline, (hears[0], speaks[1]))
            for fd in (*hears, *speaks):
                os.close(fd)
            others = [program]
        loaded, over = False, False
        while not over and len(results) < count:
            line = reader.line(others)
            over = line is None
            status, content = (reader.status, b"") if line is None else ("ran", line)
            if line is not None and calls is None:
                status, content = line.decode(), flags[len(results) : len(results) + 1]
                over = status in judged.GONE
                status = program.left() if status == "gone" else status
            if not loaded and not over:
                loaded = True
                continue
            status = "runtime_error" if over and status == "ran" else status
            results += [(status, content)] * (1 if loaded else count - len(results))
        for child in {program, reader}:
            if not child.status:
                child.end("ran")
            left -= child.used
    return results
