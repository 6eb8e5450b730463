"""Scripts whose Python lacks the packages are started again with the repository's own environment."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from recipes.paths import ROOT

ENVIRONMENTS = (".venv", ".venv.cpu", ".venv.gpu")
"""Environments that scripts/setup_env.sh makes; `.venv` is the one for this machine's hardware."""
NEEDED = ("typer", "omegaconf", "pydantic", "pyarrow", "psutil")
"""Packages that the scripts import; a Python outside these environments rarely has all of them."""


def ensure() -> None:
    """Return where the packages are there; otherwise start the same command again with the Python that has them.

    Ends the process with exit code 2 and a message where the set-up has not been run.
    """
    if all(find_spec(name) is not None for name in NEEDED):
        return
    for name in ENVIRONMENTS:
        python = ROOT / name / "bin" / "python"
        if (ROOT / name / ".complete").is_file() and Path(sys.prefix).resolve() != (ROOT / name).resolve():
            os.execv(python, [str(python), *sys.orig_argv[1:]])
    print(
        f"error: {sys.executable} lacks the packages of this repository\n"
        "  where: the Python that this script was started with\n"
        "  fix:   bash scripts/setup_env.sh, which makes .venv; then the same command again",
        file=sys.stderr,
    )
    sys.exit(2)
