"""verl's platform for CPUs: gloo, torch.cpu, and no-ops where only an accelerator has something to do.

verl imports this module in every process, at the end of `import verl`, because `VERL_USE_EXTERNAL_MODULES` names it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from recipes.engines.verl_cpu import cuda_wheels, patches


class CpuDevice:
    """`torch.cpu` with the functions that verl expects of `torch.cuda`.

    Memory figures, in bytes, are those of the process and of the machine, since a CPU has no allocator of its own.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def ipc_collect(self) -> None:
        """Nothing is shared through device handles."""

    def memory_allocated(self, device: Any = None) -> int:
        return psutil.Process().memory_info().rss

    def memory_reserved(self, device: Any = None) -> int:
        return self.memory_allocated()

    def max_memory_allocated(self, device: Any = None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def max_memory_reserved(self, device: Any = None) -> int:
        return self.max_memory_allocated()

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """The kernel keeps the peak."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        """Processes share the machine's memory."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"


_DEVICE = CpuDevice()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One logical device per process; Ray counts logical "GPU" slots, the only resource that verl schedules by."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> Any:
        return _DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        """The string "cpu": verl calls `tensor.to(get_device_id())`, and an index would mean a GPU."""
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Work on a CPU is done when the call returns."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The allocator is the C library's."""

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        """False, so that weights travel from the trainer to vLLM through shared memory and ZMQ."""
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        """What the process of a vLLM server needs on top of the run's environment."""
        return {
            # In its own process the engine would replace executor "uni" by "mp", which costs one more process.
            "VLLM_ENABLE_V1_MULTIPROCESSING": os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
            "TORCH_COMPILE_DISABLE": "1",
        }

    def cudart(self) -> None:
        return None


cuda_wheels.tolerate()
patches.name_vllm()
patches.apply_to_verl()
