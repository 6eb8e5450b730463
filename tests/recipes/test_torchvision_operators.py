"""torchvision's import beside a torch that cannot load its library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.paths import ROOT

pytest.importorskip("torch")

REGISTERS = """
import torch
torch.library.register_fake('torchvision::nms')(lambda dets, scores, threshold: dets)
torch.library.register_fake('torchvision::qnms')(lambda dets, scores, threshold: dets)
"""
LIBRARY = """
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that finds packages in `folder` first, without torch's entry points."""
    environ = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize("has_library", [False, True])
def test_operators_are_declared_where_torchvisions_library_does_not_load(tmp_path, has_library):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import extension, _meta_registrations\n")
    library = LIBRARY if has_library else ""
    (package / "extension.py").write_text(f"{library}\ndef _has_ops(): return {has_library}\n")
    (package / "_meta_registrations.py").write_text(REGISTERS)
    done = run(tmp_path, "import recipes, sys; assert 'torch' not in sys.modules; import torchvision")
    assert done.returncode == 0, done.stderr
