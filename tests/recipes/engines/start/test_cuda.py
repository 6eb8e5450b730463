"""Imports that ask for CUDA are answered or refused, and a process that has it is not forked."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from recipes.engines.start import cuda


@pytest.fixture
def torch_cuda():
    """A `torch.cuda` that counts how often CUDA is initialised."""
    module = ModuleType("cuda")
    module.started = 0

    def start():
        module.started += 1

    def current_device():
        module._lazy_init()
        return 3

    module._lazy_init = start
    module.current_device = current_device
    module.get_device_capability = lambda device=None: (module._lazy_init(), (8, 0))[1]
    module.get_device_name = lambda device=None: (module._lazy_init(), "A100")[1]
    return module


def test_questions_are_answered_and_whatever_needs_cuda_is_refused_until_the_imports_are_made(torch_cuda, capsys):
    with cuda.imports_without_cuda(torch_cuda, "NVIDIA H200", (9, 0)):
        kept = torch_cuda.current_device
        assert (kept(), torch_cuda.get_device_capability(0), torch_cuda.get_device_name()) == (0, (9, 0), "NVIDIA H200")
        with pytest.raises(cuda.CudaWhileImporting):
            torch_cuda._lazy_init()
    assert torch_cuda.started == 0
    assert capsys.readouterr().err.count("test_cuda.py") == 1, "also where the caller hides the refusal"
    assert kept() == 3, "a function that a module kept asks CUDA afterwards"
    assert torch_cuda.started == 1


IMPORT_VERL = """
import contextlib, os, torch, verl
from types import SimpleNamespace
from recipes.engines.start import cuda
started = []
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda._lazy_init = lambda: started.append(1)
hopper = SimpleNamespace(major=9, minor=0)
torch.cuda.get_device_properties = lambda device=None: (torch.cuda._lazy_init(), hopper)[1]
if guarded := os.fork():
    os.wait()
with cuda.imports_without_cuda(torch.cuda, "NVIDIA H200", (9, 0)) if guarded else contextlib.nullcontext():
    from verl.trainer import constants_ppo
print(guarded > 0, len(started), constants_ppo._is_hopper_or_ampere, flush=True)
"""


def test_verls_question_for_the_capability_is_answered_without_cuda():
    """In the parent. In the child, as it is, verl asks CUDA."""
    pytest.importorskip("verl")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    code = [sys.executable, "-c", IMPORT_VERL]
    done = subprocess.run(code, capture_output=True, text=True, timeout=50, env=environ)
    assert done.stdout.splitlines()[-2:] == ["False 1 True", "True 0 True"], done.stderr[-2000:]
