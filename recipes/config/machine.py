"""The machine and the user's accounts: GPUs, flash-attn, Weights & Biases."""

from __future__ import annotations

import importlib.util
import netrc
import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from recipes.errors import RecipeError, did_you_mean
from recipes.memory.gpus import nvidia_smi

KINDS = ("cpu", "gpu")


def visible_gpus(environ: Mapping[str, str] = os.environ) -> int:
    """NVIDIA GPUs that a process may use: those of the machine, cut down by CUDA_VISIBLE_DEVICES."""
    present = len([entry for entry in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name)])
    if not present:  # as on WSL, where the devices are not files under /dev
        present = sum(line.startswith("GPU ") for line in nvidia_smi("-L").splitlines())
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not present:
        return present
    listed = [part.strip() for part in chosen.split(",") if part.strip()]
    usable = listed[: listed.index("-1")] if "-1" in listed else listed
    return min(present, len(usable))


def kind_of_machine(asked: str | None, where: str, environ: Mapping[str, str] = os.environ) -> str:
    """`cpu` or `gpu`: what was asked for, else what the machine has."""
    if asked is None or asked == "auto":
        return "gpu" if visible_gpus(environ) else "cpu"
    if asked not in KINDS:
        raise RecipeError(
            f"unknown hardware {asked!r}",
            where=where,
            fix=did_you_mean(asked, KINDS) or f"use one of {', '.join(KINDS)}",
        )
    return asked


def lacks_flash_attention(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this machine has GPUs but no flash-attn, which verl would otherwise ask transformers for."""
    return importlib.util.find_spec("flash_attn") is None and visible_gpus(environ) > 0


PACKING_TORCH = (2, 11)
"""The first torch whose `torch.nn.attention.varlen` has windows, and so causal attention as it is used here."""


ATOMIC_CACHE_TORCH = (2, 10)
"""The first torch that writes compiled artifacts atomically (pytorch/pytorch#162432)."""


def has_packed_attention() -> bool:
    """Return whether the installed torch brings a kernel for packed sequences (recipes/engines/packed_attention.py)."""
    return _torch_version() >= PACKING_TORCH


def has_atomic_compile_cache() -> bool:
    """Return whether several vLLM engines may share a folder for what they compile."""
    return _torch_version() >= ATOMIC_CACHE_TORCH


def _torch_version() -> tuple[int, ...]:
    """The first two numbers of the installed torch's version; nothing where there is none."""
    try:
        return tuple(int(number) for number in re.findall(r"\d+", version("torch"))[:2])
    except PackageNotFoundError:
        return ()


def lacks_liger(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this machine has GPUs but no liger-kernel."""
    return importlib.util.find_spec("liger_kernel") is None and visible_gpus(environ) > 0


def logged_in(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether W&B would find a key: in WANDB_API_KEY, or in the netrc file that `wandb login` writes."""
    if environ.get("WANDB_API_KEY"):
        return True
    host = environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    home = environ.get("HOME")
    candidates = [environ.get("NETRC"), f"{home}/.netrc" if home else None, f"{home}/_netrc" if home else None]
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            try:
                return netrc.netrc(candidate).authenticators(host) is not None
            except (netrc.NetrcParseError, OSError):
                return False
    return False


def loggers(listed: list[str], asked: bool, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The loggers that take part: a recipe's `wandb` stays only if the user asks for it in this run or is logged in.

    WANDB_MODE asks for it, or with `disabled` against it. `file` always takes part: progress, history and the closing
    table are read from it.
    """
    mode = environ.get("WANDB_MODE", "").strip()
    takes_part = mode != "disabled" and (bool(mode) or logged_in(environ))
    wanted = listed if asked or takes_part else [name for name in listed if name != "wandb"]
    return wanted if "file" in wanted else [*wanted, "file"]


_PLACES = {
    "wandb": ("WANDB_DIR", "{folder}"),
    "tensorboard": ("TENSORBOARD_DIR", "{folder}/tensorboard"),
    "swanlab": ("SWANLAB_LOG_DIR", "{folder}/swanlab"),
    "mlflow": ("MLFLOW_TRACKING_URI", "sqlite:///{folder}/mlflow.db"),
}
"""Logger -> the variable that says where it writes; without it the trainer's working folder, or /tmp (mlflow)."""


def logger_environment(loggers: Sequence[str], folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for the trainer: what loggers write goes to the run's `folder`, offline where there is no login."""
    taking_part = (_PLACES[name] for name in loggers if name in _PLACES)
    places = {name: text.format(folder=folder) for name, text in taking_part if not environ.get(name)}
    if "swanlab" in loggers and not (environ.get("SWANLAB_API_KEY") or environ.get("SWANLAB_MODE")):
        places["SWANLAB_MODE"] = "offline"
    return {**places, **wandb_environment(loggers, environ)}


def wandb_environment(loggers: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for the trainer: the user's team and mode, on every machine; offline where there is no login."""
    if "wandb" not in loggers:
        return {}
    given = {name: environ[name] for name in ("WANDB_ENTITY", "WANDB_MODE") if environ.get(name)}
    return given if logged_in(environ) else {"WANDB_MODE": "offline", **given}
