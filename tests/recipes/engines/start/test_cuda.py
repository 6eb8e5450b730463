"""Imports that ask for CUDA are answered or refused, and a process that has it is not forked."""

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
