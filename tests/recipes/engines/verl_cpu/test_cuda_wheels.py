"""torchvision's CUDA wheel beside a CPU build of torch: declared operators, and only for that pair."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from recipes import paths
from recipes.engines.verl_cpu.cuda_wheels import built_for_cuda


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '0.28.0+cu130'\ngit_version = 'x'\n", True),
        ('__version__ = "0.28.0+cu130"\n', True),
        ("__version__ = '0.28.0+cpu'\n", False),
        ("__version__ = '0.28.0'\n# not a +cu build\n", False),
        (None, False),
    ],
)
def test_a_cuda_build_is_known_by_its_version_file(
    text: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "somewheel"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('looked at, not imported')\n")
    if text is not None:
        (package / "version.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert built_for_cuda("somewheel") is expected


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
