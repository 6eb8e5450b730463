"""Loggers: which ones a run uses, where they write, and whether the user has a login at Weights & Biases."""

from __future__ import annotations

import netrc
from collections.abc import Mapping


def logged_in(environ: Mapping[str, str]) -> bool:
    """Return whether W&B would find a key: in WANDB_API_KEY, or in the netrc file that `wandb login` writes."""
    if environ.get("WANDB_API_KEY"):
        return True
    host = environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    home = environ.get("HOME", "")
    try:
        return netrc.netrc(environ.get("NETRC") or f"{home}/.netrc").authenticators(host) is not None
    except (netrc.NetrcParseError, OSError):
        return False


def loggers(listed: list[str], by_user: bool, environ: Mapping[str, str]) -> list[str]:
    """Return the loggers that the run uses; `wandb` only if the user asks for it in this run or is logged in.

    Setting WANDB_MODE asks for `wandb` too; the mode `disabled` drops `wandb` despite a login. `file` is always used:
    progress, history and the closing table are read from it.
    """
    mode = environ.get("WANDB_MODE", "").strip()
    takes_part = mode != "disabled" and (bool(mode) or logged_in(environ))
    wanted = listed if by_user or takes_part else [name for name in listed if name != "wandb"]
    return wanted if "file" in wanted else [*wanted, "file"]
