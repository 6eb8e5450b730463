"""Let torchvision be imported with a torch build that its C++ library was not built for.

PyPI's wheel of torchvision is built for CUDA. With a CPU build of torch its C++ library cannot be loaded, and importing
torchvision, and transformers' models, fails at torchvision/_meta_registrations.py:163 (`torchvision::nms`). Declaring
the two operators that are registered there is enough for its transforms; calling the operators still fails. Importing
`recipes` puts `OperatorFinder` on `sys.meta_path`, which acts only where torchvision could not load its library.
"""

import sys
from importlib.abc import MetaPathFinder

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[object] = []
"""Keeps the libraries alive: torch removes the operators of one that is garbage-collected."""


class OperatorFinder(MetaPathFinder):
    """Declares torchvision's operators before they are registered; the other finders find the modules."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torchvision._meta_registrations" and not sys.modules["torchvision.extension"]._has_ops():
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in SCHEMAS:
                library.define(schema)
            _libraries.append(library)


def tolerate() -> None:
    """Let this process import torchvision."""
    sys.meta_path.insert(0, OperatorFinder())
