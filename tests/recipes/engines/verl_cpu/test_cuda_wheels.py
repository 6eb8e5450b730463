"""Code that runs in every `import torch`: beside a torch without CUDA, wheels built for CUDA do not stop an import."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

REGISTERS = "import torch\ntorch.library.register_fake('torchvision::nms')(lambda dets, scores, threshold: dets)\n"
DEFINED = "import torch\nprint('nms', hasattr(torch.ops.torchvision, 'nms'))\n"
TORCHCODEC = """
import sys, importlib
try:
    importlib.import_module('torchcodec')
    print('torchcodec True')
except ImportError:
    print('torchcodec False')
"""


def python(folder: Path, code: str) -> str:
    """Run code in a new interpreter that finds packages in `folder` first."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def package(folder: Path, name: str, version: str | None, body: str = "") -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(body)
    if version is not None:
        (folder / name / "version.py").write_text(f"__version__ = {version!r}\n")


def test_torch_calls_it():
    (found,) = (each for each in entry_points(group="torch.backends") if each.name == "recipes_cuda_wheels")
    assert found.load().__name__ == "tolerate"


@pytest.mark.parametrize(("version", "taken"), [("0.28.0+cu130", True), ("0.28.0+cpu", False), ("0.28.0", False)])
def test_only_wheels_built_for_cuda_are_tolerated(tmp_path, version, taken):
    """torchvision's operator is declared, so that what its import does with it works; torchcodec looks absent."""
    package(tmp_path, "torchvision", version, body=REGISTERS if taken else "")
    package(tmp_path, "torchcodec", version, body="raise OSError('libcudart') " if taken else "")
    said = python(tmp_path, DEFINED + TORCHCODEC + ("import torchvision\n" if taken else ""))
    assert said.split() == ["nms", str(taken), "torchcodec", str(not taken)]


def test_a_torch_with_cuda_is_left_alone(tmp_path):
    package(tmp_path, "torchvision", "0.28.0+cu130")
    package(tmp_path, "torchcodec", "0.28.0+cu130")
    # What the entry point does in a process whose torch has CUDA, loaded afresh after the one that ran at the import.
    code = """
import sys, types
torch = types.ModuleType('torch'); torch.version = types.SimpleNamespace(cuda='13.0')
sys.modules['torch'] = torch
from recipes.engines.verl_cpu import cuda_wheels
cuda_wheels.tolerate()
print(cuda_wheels._libraries, 'torchcodec' in sys.modules, 'torchvision' in sys.modules)
"""
    assert python(tmp_path, code).strip() == "[] False False"


@pytest.mark.parametrize("broken", ["no package", "no version file", "a version that cannot be read", "a stand-in"])
def test_nothing_about_the_wheels_stops_an_import_of_torch(tmp_path, broken):
    if broken != "no package":
        package(tmp_path, "torchvision", None)
        package(tmp_path, "torchcodec", None)
    if broken == "a version that cannot be read":
        (tmp_path / "torchvision" / "version.py").write_bytes(b"__version__ = '\xff'")
    stand_in = "import types\nsys.modules['torchvision'] = types.ModuleType('torchvision')\n"
    said = python(
        tmp_path, (stand_in if broken == "a stand-in" else "") + "import torch\nprint(torch.ones(2).sum().item())"
    )
    assert said.strip() == "2.0"
