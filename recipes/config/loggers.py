"""Whether Weights & Biases takes part, and never a prompt that waits for a key."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from pathlib import Path


def logged_in(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether W&B would find a key: in WANDB_API_KEY, or in the netrc file that `wandb login` writes."""
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


def chosen(loggers: list[str], asked: bool, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The loggers that take part: a recipe's `wandb` stays only if the user asked in this run or is logged in.

    `file` always takes part: progress, history and the closing table are read from it.
    """
    wanted = loggers if asked or logged_in(environ) else [name for name in loggers if name != "wandb"]
    return wanted if "file" in wanted else [*wanted, "file"]


def wandb_environment(loggers: list[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for the trainer: offline where W&B takes part without a login, silent about it otherwise."""
    if "wandb" not in loggers or logged_in(environ) or environ.get("WANDB_MODE"):
        return {}
    return {"WANDB_MODE": "offline"}
