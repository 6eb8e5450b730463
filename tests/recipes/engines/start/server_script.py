"""`python server_script.py SCENARIO`: a fork server whose driver starts processes; what they are is printed as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time


def tell(connection) -> None:
    connection.send({"pid": os.getpid(), "parent": os.getppid(), "imported": "colorsys" in sys.modules})


def wait(connection) -> None:
    tell(connection)
    time.sleep(600)


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


def scenario(name: str, server: int) -> int:
    said: dict = {"server": server, "driver": os.getpid()}
    if name in ("ends", "cannot fork", "other job"):
        if name == "other job":
            os.environ["RAY_JOB_ID"] = "another"
        process, said["child"] = start(end)
        process.join(300)
        said["status"] = process.exitcode
    elif name in ("killed", "terminated"):
        process, said["child"] = start(wait)
        process.kill() if name == "killed" else process.terminate()
        process.join(300)
        said["status"] = process.exitcode
    elif name == "waits":
        _, said["child"] = start(wait)
    print(json.dumps(said), flush=True)
    if name == "waits":
        time.sleep(600)
    if name == "driver killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return 5


def main(name: str) -> int:
    from recipes.engines.start import forkserver, spawn

    server = forkserver.ForkServer()
    forkserver.preload(["colorsys"])
    multiprocessing.set_executable(os.environ[spawn.INTERPRETER])
    owner = os.getpid()
    if name == "cannot fork":
        fork, driver = os.fork, []

        def failing() -> int:
            if driver:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            driver.append(True)
            return fork()

        os.fork = failing
    return server.serve(lambda: scenario(name, owner))()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
