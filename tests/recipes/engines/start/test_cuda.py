"""Imports that ask for CUDA are answered or refused, and a process that has it is not forked."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from recipes.engines.start import cuda


def test_questions_are_answered_and_whatever_needs_cuda_is_refused_until_the_imports_are_made(capsys):
    started, module = [], ModuleType("cuda")
    module._lazy_init = lambda: started.append(True)
    for name, answer in {"current_device": 3, "get_device_capability": (8, 0), "get_device_name": "A100"}.items():
        setattr(module, name, lambda device=None, answer=answer: (module._lazy_init(), answer)[1])
    with cuda.imports_without_cuda(module, "NVIDIA H200", (9, 0)):
        kept = module.current_device
        assert (kept(), module.get_device_capability(0), module.get_device_name()) == (0, (9, 0), "NVIDIA H200")
        with pytest.raises(cuda.CudaWhileImporting):
            module._lazy_init()
    assert not started
    assert "test_cuda.py" in capsys.readouterr().err, "also where the caller hides the refusal"
    assert kept() == 3, "a function that a module kept asks CUDA afterwards"
    assert started


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
