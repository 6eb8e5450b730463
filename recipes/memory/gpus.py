"""NVIDIA GPUs as `nvidia-smi` shows them: their memory, how much is in use, and by which processes."""

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recipes.errors import RecipeError

IDLE = 1 << 30
"""Bytes that an idle GPU may show as used: the driver's own."""
DRIVER = 610 << 20
"""Bytes that the driver keeps of a GPU that is planned for: of an H200 so many."""


@cache
def nvidia_smi(*options: str) -> str:
    """Return what `nvidia-smi` prints; nothing where it is missing or does not answer."""
    try:
        return subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=20).stdout
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
        return self.total - self.used

    def __str__(self) -> str:
        by = ", ".join(self.processes) or "a process that is not shown here"
        return f"GPU {self.index} has {self.used / 1e9:.1f} GB of {self.total / 1e9:.1f} GB in use by {by}"


def gpus_here() -> list[Gpu]:
    """Return the machine's GPUs whose memory `nvidia-smi` shows in numbers, which it does not in MIG mode."""
    processes: dict[str, list[str]] = defaultdict(list)
    for uuid, pid, name in _rows(3, "--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader"):
        if pid.isdigit():
            processes[uuid].append(f"{pid} ({name.rpartition('/')[2]})")
    sizes = _rows(4, "--query-gpu=index,uuid,memory.free,memory.total", "--format=csv,noheader,nounits")
    return [
        Gpu(index, uuid, int(total) - int(free) << 20, int(total) << 20, tuple(processes[uuid]))
        for index, uuid, free, total in sizes
        if (free + total).isdigit()
    ]


def _rows(columns: int, *options: str) -> list[list[str]]:
    rows = [line.split(", ", columns - 1) for line in nvidia_smi(*options).splitlines()]
    return [row for row in rows if len(row) == columns]


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Return the ids of the devices in `CUDA_VISIBLE_DEVICES`, up to a word that names none, where CUDA stops.

    None if it is not set; none of them where one is named twice. Every word but -1 counts without `nvidia-smi`.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return None
    known, found = re.findall(r"(?:GPU (\d+)|MIG ).*\(UUID: (.+)\)", nvidia_smi("-L")), list[str]()
    for name in (part.strip() for part in chosen.split(",") if part.strip()):
        ids = [uuid for index, uuid in known if name == index or (uuid.startswith(name) and len(name) > 4)]
        if name.startswith("MIG-GPU-") or not known:
            ids = [name] * (name != "-1")
        if len(ids) != 1:
            break
        if known and ids[0] in found:
            return []
        found += ids
    return found


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Return how many GPUs a process may use: those of the machine, cut down by `CUDA_VISIBLE_DEVICES`."""
    present = len([entry for entry in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name)])
    if not present:  # as on WSL, where the devices are not files under /dev
        present = sum(line.startswith("GPU ") for line in nvidia_smi("-L").splitlines())
    names = visible_devices(environ)
    return present if names is None else min(present, len(names))


def chosen_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use, with their memory; empty if `nvidia-smi` shows none."""
    names, every = visible_devices(os.environ), gpus_here()
    if names is None:
        return every
    return [gpu for name in names for gpu in every if name == gpu.index or gpu.uuid.startswith(name)]


LABELS_MIB = {
    "8": 8_188, "12": 12_288, "16": 16_376, "24": 23_028, "40": 40_536, "48": 46_068, "80": 81_559, "96": 95_830,
    "141": 143_771,
}  # fmt: skip
"""GB in a GPU's name -> MiB that `nvidia-smi` shows: RTX 4060, RTX 3060, RTX A4000, A10, A100, L40S, H100, H100 NVL,
H200."""


def described(text: str, where: str) -> list[Gpu]:
    """Return idle GPUs as text such as `1x24` (number, GB each) describes them. Raises RecipeError for other text."""
    found = re.fullmatch(r"([1-9]\d?)x([1-9]\d{0,2})", text)
    if not found:
        what = f"{text!r} is not a number of GPUs and the GB of each"
        raise RecipeError(what, where=where, fix="for instance 1x24 or 8x80")
    size = LABELS_MIB.get(found[2], int(found[2]) * 1_024 * 96 // 100) << 20
    return [Gpu(str(index), f"GPU-{index}", DRIVER, size) for index in range(int(found[1]))]


def model() -> tuple[str, tuple[int, int]] | None:
    """Return name and compute capability of the first GPU; None where `nvidia-smi` does not tell."""
    found = re.match(r"(.+), (\d+)\.(\d+)", nvidia_smi("--query-gpu=name,compute_cap", "--format=csv,noheader"))
    return (found[1], (int(found[2]), int(found[3]))) if found else None
