"""The files for clusters: the RayJob against its schema, the Slurm script with stand-ins for Slurm and Ray."""

import json
import os
import subprocess
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from recipes.paths import ROOT

CLUSTER = ROOT / "examples" / "cluster"
SCHEMA = Draft202012Validator(json.loads(Path(__file__).with_name("rayjob_v1.schema.json").read_text()))


def test_the_rayjob_is_one_and_asks_for_the_machines_that_it_names():
    job = yaml.safe_load((CLUSTER / "kuberay_rayjob.yaml").read_text())
    SCHEMA.validate(job)
    cluster = job["spec"]["rayClusterSpec"]
    variables = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert int(variables["NNODES"]) == 1 + sum(group["replicas"] for group in cluster["workerGroupSpecs"])
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == variables["GPUS_PER_NODE"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    folder = next(line.split()[1] for line in (ROOT / "Dockerfile").read_text().splitlines() if "WORKDIR" in line)
    entry = Path(job["spec"]["entrypoint"].split()[1])
    assert (ROOT / entry.relative_to(folder)).is_file(), "it starts what the image has"


STANDINS = {
    "srun": 'while [[ "$1" == --* ]]; do [[ "$1" == --nodelist=* ]] && export HOST="${1#*=}"; shift; done; exec "$@"',
    "scontrol": "printf '%s\\n' n1 n2 n3",
    "ray": 'echo "$HOST: ray $*" >> "$LOG"',
    # A run takes longer than the start of the other machines' Ray.
    "launcher.sh": """until [ "$(wc -l < "$LOG")" -ge 3 ]; do sleep 0.05; done
echo "$HOST: $RAY_ADDRESS $NNODES $GPUS_PER_NODE $*" >> "$LOG\"""",
}


def test_the_slurm_script_starts_a_head_workers_and_the_launcher(tmp_path):
    for name, body in STANDINS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
    slurm = {"SUBMIT_DIR": str(ROOT), "JOB_NUM_NODES": "3", "JOB_NODELIST": "n[1-3]", "GPUS_ON_NODE": "4"}
    environment |= {f"SLURM_{name}": value for name, value in slurm.items()}
    command = ["bash", str(CLUSTER / "slurm.sbatch"), str(tmp_path / "launcher.sh"), "data.seed=1"]
    subprocess.run(command, env=environment, check=True, timeout=50)
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert lines[0] == "n1: n1:6379 3 4 data.seed=1"
    assert lines[1].startswith("n1: ray start --head --port=6379")
    assert all(f"n{host}: ray start --address=n1:6379" in lines[host] for host in (2, 3))
    assert all("--num-gpus=4" in line for line in lines[1:])
