"""Reads EasyR1's modules with the lines of `lines.py` in place, in this process and in each that Ray starts for it."""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from recipes.engines.easyr1_compat import lines

HOME = "EASYR1_HOME"
ON_CPU = "RECIPES_EASYR1_ON_CPU"
"""Variable that is 1 on a machine without a GPU."""
RANKS = "RECIPES_EASYR1_RANKS"
"""Variable with the number of ranks on such a machine."""
HOOK = f"{__name__}.install"


class _Loader(SourceFileLoader):
    """Python's own loader, with replaced lines; compiled code is not kept, since the file stays as it is."""

    def __init__(self, name: str, path: str, file: str, entries: tuple[lines.Line, ...]) -> None:
        super().__init__(name, path)
        self._file, self._entries = file, entries

    def get_code(self, fullname: str) -> CodeType:
        source = decode_source(self.get_data(self.path))
        return self.source_to_code(lines.applied(source, self._file, self._entries).encode(), self.path)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of EasyR1 that have such lines, below `home` only."""

    def __init__(self, home: Path, on_cpu: bool) -> None:
        self._home, self._entries = home, lines.chosen(on_cpu)
        self._files = {entry.module: entry.file for entry in self._entries}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if file else None
        if spec is None or spec.origin is None or file is None or Path(spec.origin).resolve() != self._home / file:
            return None
        spec.loader = _Loader(fullname, spec.origin, file, self._entries)
        return spec


def install() -> None:
    """Prepare this process, by `EASYR1_HOME` and the kind of machine; again is harmless. Ray calls it in workers."""
    home = os.environ.get(HOME)
    if home and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(Path(home).resolve(), os.environ.get(ON_CPU) == "1"))


CLUSTER_ADDRESS: str | None = None
"""Address of the Ray that `main.py` started; None before."""


def ray_arguments(runtime_env: dict[str, Any]) -> dict[str, Any]:
    """Return what EasyR1's driver gives `ray.init`: its own variables, and this module's hook in each worker."""
    arguments: dict[str, Any] = {"runtime_env": {**runtime_env, "worker_process_setup_hook": HOOK}}
    if CLUSTER_ADDRESS:
        return {"address": CLUSTER_ADDRESS, **arguments}
    return arguments if os.environ.get("RAY_ADDRESS") else {**arguments, **cluster()}


def cluster() -> dict[str, Any]:
    """Sizes of the Ray that is started; on CPUs with logical GPUs, by which alone EasyR1 schedules its ranks."""
    sizes: dict[str, Any] = {"include_dashboard": False}
    if os.environ.get(ON_CPU) == "1":
        ranks = int(os.environ.get(RANKS, "1"))
        sizes |= {"num_cpus": 8 + 4 * ranks, "num_gpus": ranks, "object_store_memory": 1 << 28}
    return sizes
