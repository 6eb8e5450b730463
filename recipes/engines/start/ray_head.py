"""Ray's head node, started as a process of its own while the fork server is still importing.

`python -m recipes.engines.start.ray_head '{"num_cpus": 16, ...}'` starts what `ray.init()` would start, without the
autoscaler and with `spawn.py` to start workers, prints one line of JSON, and stops everything when its input ends.
"""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import Any

PARAMETERS = ("num_cpus", "num_gpus", "object_store_memory", "include_dashboard", "_temp_dir")
"""Keys of `ray_kwargs.ray_init` that a head node takes; Ray's `RayParams` has them without the underscore."""
STOP_SECONDS = 10.0


@dataclass
class Head:
    """A running head node."""

    process: subprocess.Popen[str]
    address: str
    raylet_pid: int

    def stop(self) -> None:
        """Stop Ray's processes and wait until they have ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel then kills what it started


def launch(ray_init: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a head node in the background; only this user's processes can join it."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # prestarted workers would idle: ours are forked
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "30")  # not 60: a dead GCS does not come back
    os.environ.setdefault("RAY_enable_metrics_collection", "0")  # nobody reads them
    known = {key.lstrip("_"): ray_init[key] for key in PARAMETERS if key in ray_init}
    return subprocess.Popen(
        [sys.executable, "-m", "recipes.engines.start.ray_head", json.dumps(known)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def connect(process: subprocess.Popen[str], ray_init: dict[str, Any]) -> Head:
    """Wait until the head node is up; one that did not start is started once more.

    Ray gives its node's helpers 15 s to import what they need, too little the first time on a busy machine.
    """
    for last in (False, True):
        assert process.stdout is not None
        if line := process.stdout.readline():
            return Head(process, **json.loads(line))
        status = process.wait()
        if not last:
            process = launch(ray_init)
    raise RuntimeError(f"Ray's head node did not start (exit status {status}); its messages are above this in the log")


def own_actor_ids() -> None:
    """Let each process generate its own actor ids; called after `import ray`, before actors' classes are imported.

    ray/actor.py:2938 (`ActorClassID.from_random()`) draws an id for each class under `@ray.remote`, also while a module
    is imported. That starts the generator in Ray's C++ code, and processes forked afterwards would go on with one and
    the same sequence: two workers then "put an object that already existed", and one of them dies.
    """
    from ray import actor

    original = actor.ActorClassID

    class ActorClassID:
        @staticmethod
        def from_random() -> Any:
            return original(os.urandom(original.size()))

    actor.ActorClassID = ActorClassID


def main(parameters: dict[str, Any]) -> None:
    """Start the node, print its address, and stop it when the parent closes the pipe or dies."""
    from ray._common.usage import usage_lib
    from ray._private import ray_constants
    from ray._private.node import Node
    from ray._private.parameter import RayParams
    from ray._private.workers import setup_worker

    from recipes.engines.start import spawn

    os.environ[spawn.SETUP_WORKER] = setup_worker.__file__
    usage_lib.set_usage_stats_enabled_via_env_var(False)
    node = Node(
        RayParams(**parameters, setup_worker_path=spawn.__file__, no_monitor=True, dashboard_host="127.0.0.1"),
        head=True,
        shutdown_at_exit=False,
        spawn_reaper=True,
        ray_init_cluster=True,
    )
    raylet = node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process
    print(json.dumps({"address": node.gcs_address, "raylet_pid": raylet.pid}), flush=True)
    sys.stdin.read()
    node.kill_all_processes(check_alive=False, allow_graceful=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
