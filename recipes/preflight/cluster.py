"""Several machines: the name of the Ray cluster, and the wait for its nodes (docs/MULTI_NODE.md)."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from recipes.config import Recipe
from recipes.config.variables import control
from recipes.errors import RecipeError, first_line

ADDRESS = "RAY_ADDRESS"
"""Ray's own variable: host and port of the cluster's head."""
WAIT = "RAY_WAIT_MINUTES"
WAIT_MINUTES = 10
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
POLL_S = 2.0
HEALTH_S = 30.0
"""Time limit of `ray health-check`, which takes 40 s where another program listens at the address."""
SCRIPT = "examples/cluster/ray_cluster.sh"
HOW = f"start it with {SCRIPT} (docs/MULTI_NODE.md)"


def named() -> str | None:
    """The address of the cluster that `RAY_ADDRESS` names; None where there is none, as for Ray's word `local`."""
    address = os.environ.get(ADDRESS)
    return None if address == "local" else address or None


def check_cluster(recipe: Recipe) -> list[str]:
    """Raise where the recipe needs several machines and no cluster is named."""
    if address := named():
        return [f"Ray's machines at {address} need this repository, data, model and artifacts at the same paths"]
    if recipe.trainer.nnodes > 1:
        what = f"trainer.nnodes is {recipe.trainer.nnodes}, but no Ray cluster is named"
        raise RecipeError(what, where=f"variable {ADDRESS}", fix=f"set it to HOST:PORT of the head node; {HOW}")
    return []


def wait_for_nodes(recipe: Recipe, log: Callable[[str], None]) -> None:
    """Wait until the cluster has the recipe's machines. Raises RecipeError if some are missing after the wait."""
    wanted, gpus, address = recipe.trainer.nnodes, recipe.trainer.n_gpus_per_node, named()
    if not address:
        return
    minutes, logged = control(os.environ, WAIT), ""
    minutes = WAIT_MINUTES if minutes is None else minutes
    alone = f"; or unset {ADDRESS}: this machine trains alone" if wanted == 1 else ""
    deadline = time.monotonic() + 60 * minutes
    while True:
        nodes = alive_nodes(address)
        counts = [count for _, count in nodes or ()]
        shown = ", ".join(f"{host}: {count}" for host, count in nodes or ()) or "no node"
        if recipe.hardware == "cpu" and min(counts, default=gpus) < gpus:
            raise RecipeError(
                f"a node of the Ray cluster has fewer than {gpus} slots, which Ray calls GPUs ({shown})",
                where=f"{ADDRESS}={address}",
                fix=f"start Ray there by {SCRIPT}, which counts GPUS_PER_NODE slots where there is no GPU, or with "
                f"--num-gpus={gpus}; or unset {ADDRESS} to train on this machine alone",
            )
        fitting = sum(count >= gpus for count in counts)
        if fitting >= wanted:
            log(f"the Ray cluster at {address} has its {wanted} machines")
            return
        state = f"nothing answers at {address}"
        if nodes is not None:
            state = f"{fitting} of {wanted} machines with {gpus} GPUs are in the Ray cluster ({shown})"
        if time.monotonic() > deadline:
            what = f"{state}, after {minutes:g} minutes"
            raise RecipeError(what, where=f"{ADDRESS}={address}", fix=f"{HOW}; {WAIT} waits longer{alone}")
        if state != logged:
            log(f"waiting up to {minutes:g} minutes: {state}{alone}")
            logged = state
        time.sleep(POLL_S)


def alive_nodes(address: str) -> list[tuple[str, int]] | None:
    """Host and GPUs of each living node of a cluster; None where its head does not answer."""
    if not _answers(address):
        return None
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        return None
    except RuntimeError as error:
        what = f"this process cannot join the Ray cluster: {first_line(error)}"
        fix = "use one version of Python and Ray on all machines, and run the launcher on one of them"
        raise RecipeError(what, where=f"{ADDRESS}={address}", fix=fix) from error
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        return sorted((node["NodeManagerAddress"], int(node["Resources"].get("GPU", 0))) for node in alive)
    finally:
        ray.shutdown()


def _answers(address: str) -> bool:
    """True where a cluster answers `ray health-check`; where none does, `ray.init` would retry.

    Raises RecipeError where the cluster requires another token, or `auto` finds none.
    """
    ray_health = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    command = [*ray_health, "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HEALTH_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    if "AuthenticationError" in done.stderr:
        where = f"{ADDRESS}={address}, RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE', '')}"
        fix = "RAY_AUTH_MODE and RAY_AUTH_TOKEN must be the same on all machines, for Ray and for the launcher"
        raise RecipeError("the Ray cluster refuses this process", where=where, fix=fix)
    if "Could not find any running Ray instance" in done.stderr:
        what = "no Ray cluster runs on this machine"
        raise RecipeError(what, where=f"{ADDRESS}={address}", fix=f"unset it, or {HOW}")
    return done.returncode == 0


def job_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that make Ray pass `variables` to the trainer's workers on every node; none without a cluster.

    Workers inherit the environment of their node's Ray, which was started before the run. Ray merges the JSON in
    `JOB` into the job's runtime environment (`ray.init`), as its own job submission does.
    """
    if named() is None:
        return {}
    job: dict[str, Any] = json.loads(os.environ.get(JOB) or "{}")
    environment = job.setdefault("runtime_env", {}).setdefault("env_vars", {})
    environment.update(variables)
    return {JOB: json.dumps(job), "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
