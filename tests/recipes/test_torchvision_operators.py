"""torchvision's import beside a torch that cannot load its library."""

import os
import subprocess
import sys

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


@pytest.mark.timeout(240)
@pytest.mark.parametrize("has_library", [False, True])
def test_operators_are_declared_where_torchvisions_library_does_not_load(tmp_path, has_library):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import extension, _meta_registrations\n")
    library = LIBRARY if has_library else ""
    (package / "extension.py").write_text(f"{library}\ndef _has_ops(): return {has_library}\n")
    (package / "_meta_registrations.py").write_text(REGISTERS)
    code = "import recipes, sys; assert 'torch' not in sys.modules; import torchvision"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr
