"""`python server_script.py SCENARIO`: a fork server whose driver starts processes; what they are is printed as JSON."""

import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace


def tell(connection) -> None:
    connection.send({"pid": os.getpid(), "parent": os.getppid(), "imported": "colorsys" in sys.modules})


def wait(connection) -> None:
    tell(connection)
    time.sleep(60)


def end(connection) -> None:
    tell(connection)
    sys.exit(7)


def start(target):
    """A process of `multiprocessing`, and what it says of itself."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours.recv()


def leave(after_the_request: bool) -> None:
    """Connect to the server as a process does that is killed before it has sent its request, or before its answer."""
    from recipes.engines.start import spawn

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[spawn.ADDRESS])
        if after_the_request:
            request = {"argv": ["-c", ""], "env": {"RAY_JOB_ID": "another"}, "cwd": "/", "descriptors": []}
            payload = json.dumps(request).encode()
            connection.sendall(len(payload).to_bytes(8, "big"))
            time.sleep(0.2)
            connection.sendall(payload)


def threads_of_a_worker(**given: str) -> str:
    """How many threads torch has in a process that Ray starts."""
    from recipes.engines.start import spawn

    ours, theirs = os.pipe()
    script = f"import os, sys; os.write({theirs}, str(sys.modules['torch'].threads).encode())"
    file = Path(os.environ[spawn.ADDRESS]).with_name("worker.py")
    file.write_text(script)
    environ = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    spawn.request_fork([str(file)], {**environ, **given}, [theirs])
    return os.read(ours, 8).decode()


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of a signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]
    return bool(int(caught, 16) >> (number - 1) & 1)


def scenario(name: str, server: int) -> int:
    said: dict = {"server": server, "driver": os.getpid()}
    if name == "ends":
        leave(False)
        leave(True)
    if name in ("ends", "other job"):
        if name == "other job":
            os.environ["RAY_JOB_ID"] = "another"
        process, said["child"] = start(end)
        process.join()
        said["status"] = process.exitcode
    elif name in ("killed", "terminated"):
        process, said["child"] = start(wait)
        while not handles(process.pid, signal.SIGTERM):
            time.sleep(0.01)
        process.kill() if name == "killed" else process.terminate()
        process.join()
        said["status"] = process.exitcode
    elif name == "worker":
        said["threads"] = [threads_of_a_worker(**given) for given in ({}, {"OMP_NUM_THREADS": "3"})]
    elif name == "waits":
        _, said["child"] = start(wait)
    print(json.dumps(said), flush=True)
    if name == "waits":
        time.sleep(60)
    if name == "driver killed at once":
        os.kill(os.getpid(), signal.SIGKILL)
    return 5


def slow(fork=os.fork) -> int:
    """Fork; the child has ended before the parent goes on."""
    pid = fork()
    if pid:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def main(name: str) -> int:
    from recipes.engines.start import forkserver, spawn

    server = forkserver.ForkServer()
    forkserver.preload(["colorsys"])
    multiprocessing.set_executable(os.environ[spawn.INTERPRETER])
    owner = os.getpid()
    if name == "driver killed at once":
        os.fork = slow
    torch = sys.modules["torch"] = SimpleNamespace(threads=16)
    torch.set_num_threads = lambda threads: setattr(torch, "threads", threads)
    return server.serve(lambda: scenario(name, owner))()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
