"""Two Ray nodes on one host, one rank on each: the launcher waits, trains, loses a node, and resumes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from recipes.paths import ROOT
from recipes.runs.metrics import read_history
from tests.ports import free_port
from tests.recipes.engines.conftest import variables

pytestmark = pytest.mark.trainer(seconds=20)

SCRIPT = ROOT / "examples" / "cluster" / "ray_cluster.sh"
MARK = "CLUSTER_OF_THIS_TEST"
NODE = "--object-store-memory=134217728"
KEYS = ("trainer.save_freq=1", "trainer.val_freq=-1", "trainer.val_before_train=false")


class Cluster:
    """Ray's nodes, known by a variable that all their processes inherit; `ray stop` would end those of others."""

    def __init__(self, folder: Path) -> None:
        from ray.util import get_node_ip_address

        # The paths of Ray's sockets have about a hundred characters at most.
        self.temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self.folder = folder
        port = free_port()
        self.address = f"{get_node_ip_address()}:{port}"
        self.variables = {
            **variables(folder),
            "RAY_PORT": str(port),
            "RAY_AUTH_TOKEN": uuid.uuid4().hex,  # no node may take it alone
            MARK: uuid.uuid4().hex,
        }
        self.variables.pop("PYTHONSAFEPATH", None)

    def start(self, role: str) -> set[int]:
        """Start a node; the processes that are new."""
        before = set(self.processes())
        options = f"{NODE} --include-dashboard=false --temp-dir={self.temporary}" if role == "head" else NODE
        command = ["bash", str(SCRIPT), role, *([] if role == "head" else [self.address])]
        environment = {**self.variables, "RAY_NODE_OPTIONS": options}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return set(self.processes()) - before

    def launcher(self, output: Path, **variables: str) -> subprocess.Popen:
        """The launcher on the cluster."""
        environment = {**self.variables, "NNODES": "2", "GPUS_PER_NODE": "1", **variables}
        launch = [sys.executable, "-m", "recipes.launch", "countdown", *KEYS]
        with output.open("w") as stream:
            return subprocess.Popen(
                ["bash", str(SCRIPT), "submit", self.address, *launch],
                env=environment, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def processes(self) -> Iterator[int]:
        """Ray's and the run's processes of this cluster."""
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.environ().get(MARK) == self.variables[MARK]:
                    yield process.pid

    def kill(self, pids: set[int]) -> None:
        """End these processes."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.kill(set(made.processes()))
    shutil.rmtree(made.temporary, ignore_errors=True)


def says(run: subprocess.Popen, output: Path, line: str) -> None:
    """Wait until a launcher has written a line; it fails where the launcher ends before, or says nothing for long."""
    deadline = time.monotonic() + 240
    while line not in output.read_text():
        assert run.poll() is None and time.monotonic() < deadline, output.read_text()[-3000:]  # noqa: PT018
        time.sleep(0.1)


def joined(cluster: Cluster, output: Path, **variables: str) -> tuple[subprocess.Popen, set[int]]:
    """A launcher that waited for the second machine and goes on with both; that machine's processes."""
    cluster.start("head")
    run = cluster.launcher(output, **variables)
    says(run, output, "1 of 2 machines with 1 GPUs are in the Ray cluster")
    refused = output.with_name("refused")
    assert cluster.launcher(refused, RAY_WAIT_MINUTES="0", EXPERIMENT_NAME="refused").wait(600) == 2
    assert "error: 1 of 2 machines with 1 GPUs are in the Ray cluster" in refused.read_text()
    second = cluster.start("worker")
    says(run, output, "has its 2 machines")
    return run, second


def test_a_launcher_refuses_a_cluster_that_lacks_a_machine_or_a_token_or_waits(cluster: Cluster, tmp_path: Path):
    cluster.variables["RAY_AUTH_MODE"] = "token"
    run, _ = joined(cluster, tmp_path / "output")
    run.kill()
    run.wait()
    refused = tmp_path / "refused"
    for wrong in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "another"}):
        assert cluster.launcher(refused, RAY_WAIT_MINUTES="0", EXPERIMENT_NAME="refused", **wrong).wait(120) == 2, wrong
        assert "error: the Ray cluster refuses this process" in refused.read_text()
        assert "Traceback" not in refused.read_text()


@pytest.mark.skipif("FAULTS" not in os.environ, reason="minutes of real nodes: FAULTS=some or FAULTS=all")
def test_two_nodes_train_lose_one_and_resume(cluster: Cluster, tmp_path: Path) -> None:
    first, resumed = (tmp_path / f"output-{number}" for number in (1, 2))
    tracker = tmp_path / "checkpoints" / "countdown" / "latest_checkpointed_iteration.txt"
    run, second = joined(cluster, first, MAX_STEPS="40")
    deadline = time.monotonic() + 400
    while not tracker.exists() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
    lost = time.monotonic()
    cluster.kill(second)
    assert run.wait(120) not in (0, 2), first.read_text()[-3000:]
    assert time.monotonic() - lost < 90
    saved = int(tracker.read_text())
    assert f"resumed from step {saved}" in first.read_text()

    cluster.start("worker")
    assert cluster.launcher(resumed, MAX_STEPS=str(saved + 1)).wait(400) == 0, resumed.read_text()[-3000:]
    assert f"resuming from step {saved}" in resumed.read_text()
    steps = [step.step for step in read_history(tmp_path / "runs" / "countdown" / "metrics.jsonl")]
    assert steps == list(range(1, saved + 2))
    actor = tmp_path / "checkpoints" / "countdown" / f"global_step_{saved + 1}" / "actor"
    assert sorted(file.name for file in actor.glob("model_*.pt")) == [f"model_world_size_2_rank_{n}.pt" for n in (0, 1)]
