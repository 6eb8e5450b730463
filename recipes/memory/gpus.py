"""NVIDIA GPUs as `nvidia-smi` shows them: what they have, what is in use, and by whom."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

IDLE = 1 << 30
"""Bytes that an idle GPU may show as used: the driver's own."""


@cache
def nvidia_smi(*options: str) -> str:
    """Return what `nvidia-smi` prints; nothing where it is missing or does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        return subprocess.run([tool, *options], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes, processes as `pid (name)`."""

    index: str
    uuid: str
    used: int
    total: int
    processes: tuple[str, ...] = ()

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.total - self.used

    def __str__(self) -> str:
        by = ", ".join(self.processes) or "a process that is not shown here"
        return f"GPU {self.index} has {self.used / 1e9:.1f} GB of {self.total / 1e9:.1f} GB in use by {by}"


def gpus_here() -> list[Gpu]:
    """Return the machine's GPUs; none where `nvidia-smi` does not tell."""
    processes = read_processes(nvidia_smi("--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader"))
    text = nvidia_smi("--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits")
    return [Gpu(*sizes, processes=tuple(processes.get(sizes[1], ()))) for sizes in read_sizes(text)]


def chosen_gpus(environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """Return the GPUs that a process may use: those of the machine, cut down by `CUDA_VISIBLE_DEVICES`."""
    listed = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES", "")
    names = [part.strip() for part in listed.split(",") if part.strip()]
    every = gpus_here()
    if not names:
        return every
    return [gpu for name in names for gpu in every if name == gpu.index or gpu.uuid.startswith(name)]


def model() -> tuple[str, tuple[int, int]] | None:
    """Return name and compute capability of the first GPU; None where `nvidia-smi` does not tell."""
    text = nvidia_smi("--query-gpu=name,compute_cap", "--format=csv,noheader")
    name, _, capability = (text.splitlines() or [""])[0].rpartition(",")
    major, _, minor = capability.strip().partition(".")
    return (name.strip(), (int(major), int(minor))) if major.isdigit() and minor.isdigit() else None


def taken(count: int) -> list[Gpu]:
    """Return the `count` GPUs that a run takes, the first that it may use; none where `nvidia-smi` does not tell."""
    return chosen_gpus()[:count]


def read_sizes(text: str) -> list[tuple[str, str, int, int]]:
    """Read the answer to `index,uuid,memory.used,memory.total`; lines without numbers (MIG) are left out."""
    lines = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    numeric = [parts for parts in lines if len(parts) == 4 and (parts[0] + parts[2] + parts[3]).isdigit()]
    return [(index, uuid, int(used) << 20, int(total) << 20) for index, uuid, used, total in numeric]


def read_processes(text: str) -> dict[str, list[str]]:
    """Read the answer to `gpu_uuid,pid,process_name`: GPU -> `pid (name)` of each process."""
    processes: dict[str, list[str]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and parts[1].isdigit():
            processes.setdefault(parts[0], []).append(f"{parts[1]} ({parts[2].rpartition('/')[2]})")
    return processes
