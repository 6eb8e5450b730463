"""torchvision's CUDA wheel beside a CPU build of torch: declared operators, and only for that pair."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from recipes import paths


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_transforms_beside_this_torch_and_a_broken_torchcodec_looks_absent() -> None:
    code = """
import torch
from recipes.engines.verl_cpu import cuda_wheels
cuda_wheels.tolerate()
cuda_wheels.tolerate()
from torchvision.transforms.v2 import functional
assert functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape == (3, 4, 4)
assert not cuda_wheels.built_for_cuda("no_such_package_anywhere")
if torch.version.cuda is None and cuda_wheels.built_for_cuda("torchcodec"):
    try:
        import torchcodec
    except ImportError:
        pass
    else:
        raise AssertionError("torchcodec was imported")
"""
    subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, check=True)
