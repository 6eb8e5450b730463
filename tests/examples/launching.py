"""Launchers as a user starts them, on the CPU and with artifacts of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

LIMIT_S = 600


def start(launcher: Path, artifacts: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    """The launcher, with this Python, and artifacts of its own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "ARTIFACTS_DIR": str(artifacts), "HARDWARE": "cpu", **variables}
    return subprocess.Popen(
        ["bash", str(launcher), *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def one_step(launcher: Path, artifacts: Path, experiment: str) -> str:
    """Output of `MAX_STEPS=1 bash <launcher>`, which has to succeed."""
    launched = start(launcher, artifacts, MAX_STEPS="1")
    text, _ = launched.communicate(timeout=LIMIT_S)
    log = artifacts / "runs" / experiment / "train.log"
    tail = log.read_text(errors="replace")[-4000:] if log.is_file() else ""
    assert launched.returncode == 0, f"{text}\n{tail}"
    return text


def left_behind(artifacts: Path) -> list[str]:
    """Processes that inherited the run's folder in their environment, or descend from one that did."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if process.environ().get("ARTIFACTS_DIR") == str(artifacts) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.info["cmdline"] or []))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
