"""The origin of a file: its SHA-256, the command and the commit that made it, and the versions of libraries."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from recipes.paths import ROOT

_PIECE = 1 << 20


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def command_line() -> str:
    """The command that runs now, as it can be typed in the repository."""
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(ROOT) if script.is_relative_to(ROOT) else Path("scripts") / script.name
    return shlex.join(["python", str(shown), *sys.argv[1:]])


def git_commit(*paths: Path) -> str:
    """The checkout's commit, with `+changes` where the paths (all by default) differ from it; `unknown` outside one."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = [*git, "status", "--porcelain", "--untracked-files=no", "--", *map(str, paths)]
        changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def versions(*modules: str) -> dict[str, str]:
    """Version by name of imported libraries, such as torch's `2.13.0+cpu`."""
    return {name: import_module(name).__version__ for name in modules}
