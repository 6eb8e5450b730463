"""Imports without CUDA, and the check that the importing process can still be forked.

PyTorch counts devices with NVML and not with CUDA where `PYTORCH_NVML_BASED_CUDA_CHECK=1`. Two modules then still call
CUDA while they are imported:

- verl/trainer/constants_ppo.py:26 (`get_device_capability()`), for the compute capability;
- vllm-0.24.0/model_executor/layers/fla/ops/utils.py:145 (`get_available_device`), for Triton's target, which is the
  capability of the current device.

During the imports both get what `nvidia-smi` reports; any other call that needs CUDA fails in `torch.cuda._lazy_init`.
`nvidia-smi` does not report a block's shared memory, so vLLM's linear-attention kernels choose their smaller sizes.
"""

import ctypes
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
DRIVER = "libcuda.so"
NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED, which every function of the driver returns before `cuInit`."""


class CudaWhileImporting(RuntimeError):
    """A module called CUDA while it was imported."""


@contextmanager
def imports_without_cuda(cuda: ModuleType, name: str, capability: tuple[int, int]) -> Iterator[None]:
    """Within the context, answer what imports ask `torch.cuda`, and fail any call that would initialise CUDA.

    A module may keep a stand-in (Triton's driver does); after the context the stand-in calls the real function.
    """
    importing = True
    answers: dict[str, Any] = {"current_device": 0, "get_device_capability": capability, "get_device_name": name}
    real = {each: getattr(cuda, each) for each in (*answers, "_lazy_init")}

    def stand_in(function: Callable[..., Any], answer: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: answer if importing else function(*args, **kwargs)

    for each, answer in answers.items():
        setattr(cuda, each, stand_in(real[each], answer))
    cuda._lazy_init = _refuse  # type: ignore[attr-defined]  # a name of torch.cuda's
    try:
        yield
    finally:
        importing = False
        for each, function in real.items():
            setattr(cuda, each, function)


def _refuse() -> None:
    """Stand in for `torch.cuda._lazy_init`: raise, and print the caller, since a module may catch the exception."""
    frames = [each for each in traceback.extract_stack()[:-1] if "importlib" not in each.filename]
    caller = next((each for each in reversed(frames) if "/torch/" not in each.filename), frames[-1])
    found = f"CUDA was asked for while importing, by {caller.filename}:{caller.lineno} {caller.name}"
    print(f"{found}, and was refused", file=sys.stderr, flush=True)
    raise CudaWhileImporting(found)


def why_children_lack_cuda() -> str | None:
    """Return why forked children cannot use CUDA, if this process has initialised it; else None."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    loaded = next((line.split()[-1] for line in lines if DRIVER in line), None)
    status = NOT_INITIALIZED if loaded is None else ctypes.CDLL(loaded).cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))
    return None if status == NOT_INITIALIZED else f"CUDA's driver is initialised (cuCtxGetCurrent answers {status})"
