"""Let the CUDA wheels of torchvision and torchcodec, the ones on PyPI, stand beside a CPU build of torch.

Their C++ libraries cannot be loaded there.

- torchvision stops at `register_fake("torchvision::nms")`, "operator torchvision::nms does not exist"
  (torchvision/_meta_registrations.py:163 (`torchvision::nms`)). Declaring the schemas of the two operators that it
  registers whether or not its library was loaded is enough for its transforms and for transformers' processors; calling
  the operators still fails, as it should.
- torchcodec raises `OSError`, where its users (vllm/multimodal/video.py:35 (`from torchcodec`)) expect `ImportError`.
  It is made to look absent.

torch calls `tolerate` at the end of `import torch` in every process, through an entry point of the group
`torch.backends`. This module must therefore stay small and must never raise.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[object] = []
"""torch removes the operators of a library that is garbage-collected."""


def tolerate() -> None:
    """Prepare this process for the wheels that were built for CUDA, if this torch was not; again is harmless."""
    import torch

    if torch.version.cuda is not None:
        return
    if not _libraries and built_for_cuda("torchvision"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        _libraries.append(library)
    if "torchcodec" not in sys.modules and built_for_cuda("torchcodec"):
        sys.modules["torchcodec"] = None  # type: ignore[assignment]  # an import now raises ImportError


def built_for_cuda(package: str) -> bool:
    """True if the package's `version.py`, read without importing the package, says `+cu`; False where it cannot be."""
    try:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return False
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # no such file; a stand-in in `sys.modules` that says not where it comes from
        return False
    return bool(re.search(r"__version__ = .*\+cu", text))
