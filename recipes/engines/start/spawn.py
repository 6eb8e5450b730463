"""Started in place of a Python interpreter: ask the fork server for a process; without a server, become Python.

Two callers start this script, which imports next to nothing, since it runs once for every process.

- raylet, in place of `ray/_private/workers/setup_worker.py`, whose two arguments this script understands. It
  ends when the worker has been forked; the worker registers with raylet itself.
- `multiprocessing`, in place of `sys.executable`, for vLLM's engine. It keeps running, forwards signals, and ends with
  the forked process's exit status, because `multiprocessing` watches the process that it started.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False  # a type checker reads this name; importing typing for it would cost every process
if TYPE_CHECKING:
    from typing import Any

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
ADDRESS = "RECIPES_FORK_SERVER"
"""Variable that names the server's socket."""
INTERPRETER = "RECIPES_FORK_PYTHON"
"""Variable that names an executable for `multiprocessing.set_executable`."""
SETUP_WORKER = "RECIPES_RAY_SETUP_WORKER"
"""Variable with the path of Ray's own `setup_worker.py`."""
STARTS_PROCESS = "from multiprocessing.spawn import spawn_main"


def main(arguments: list[str]) -> None:
    """Start a process of `multiprocessing` if the arguments contain `-c`, otherwise a Ray worker."""
    if "-c" in arguments:
        start_process(arguments)
    else:
        start_worker(arguments)


def start_worker(arguments: list[str]) -> None:
    """Fork a Ray worker, or start it as Ray would."""
    context: dict[str, Any] = next(
        (json.loads(item[len(CONTEXT) :]) for item in arguments if item.startswith(CONTEXT)), {}
    )
    plain = [item for item in arguments if not item.startswith((CONTEXT, LANGUAGE))]
    if _only_variables(context):
        environment = dict(os.environ)
        environment.update({name: os.path.expandvars(value) for name, value in context.get("env_vars", {}).items()})
        connection, pid = request_fork(plain, environment, [0, 1, 2])
        if pid:
            connection.close()
            return
    os.execv(sys.executable, [sys.executable, os.environ[SETUP_WORKER], *arguments])


def _only_variables(context: dict[str, Any]) -> bool:
    """Return whether the worker needs no other Python, container or entry point."""
    return not (
        context.get("command_prefix")
        or context.get("override_worker_entrypoint")
        or context.get("py_executable", sys.executable) != sys.executable
    )


def start_process(arguments: list[str]) -> None:
    """Fork a process of `multiprocessing` and stand in for it, or become Python."""
    code = arguments[arguments.index("-c") + 1]
    if code.startswith(STARTS_PROCESS):
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
        connection, pid = request_fork(
            arguments[arguments.index("-c") :], dict(os.environ), [fd for fd in descriptors if _is_open(fd)]
        )
        if pid:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda received, _: os.kill(pid, received))
            status = connection.recv(1)
            os._exit(status[0] if status else 1)
    os.execv(sys.executable, [sys.executable, *arguments])


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False  # the descriptor with which the folder was listed
    return True


def request_fork(argv: list[str], environment: dict[str, str], descriptors: list[int]) -> tuple[socket.socket, int]:
    """Ask the server for a process with these arguments, variables and open files.

    Returns the connection, over which a process of `multiprocessing` sends its exit status, and the process id, 0 if
    there is none.
    """
    connection = socket.socket(socket.AF_UNIX)
    request = {"argv": argv, "env": environment, "cwd": os.getcwd(), "descriptors": descriptors}
    payload = json.dumps(request).encode()
    try:
        connection.connect(os.environ.get(ADDRESS, ""))
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        connection.sendmsg([len(payload).to_bytes(8, "big")], [rights])
        connection.sendall(payload)
        return connection, int.from_bytes(connection.recv(8), "big")
    except OSError:
        return connection, 0


if __name__ == "__main__":
    main(sys.argv[1:])
