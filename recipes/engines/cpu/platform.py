"""verl's platform for CPUs: gloo, torch.cpu, and no-ops where only an accelerator has something to do.

verl imports this module in every process, at the end of `import verl`, because `VERL_USE_EXTERNAL_MODULES` names it.
"""

import contextlib
import os
import resource
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from recipes.engines.cpu import vllm_distribution
from recipes.engines.verl import upstream


def _no_op(*args: Any, **kwargs: Any) -> None:
    """Stand in where only an accelerator has work."""


class CpuDevice:
    """`torch.cpu` with the functions that verl expects of `torch.cuda`.

    Memory figures, in bytes, are those of the process and of the machine, since a CPU has no allocator of its own.
    """

    empty_cache = ipc_collect = reset_peak_memory_stats = set_per_process_memory_fraction = staticmethod(_no_op)
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    get_device_name = staticmethod(lambda device=None: "cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def memory_allocated(self, device: Any = None) -> int:
        return psutil.Process().memory_info().rss

    def max_memory_allocated(self, device: Any = None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One logical device per process; Ray counts logical "GPU" slots, the only resource that verl schedules by."""

    device_name = vendor_name = "cpu"
    device_module = CpuDevice()
    set_device = synchronize = set_allocator_settings = empty_cache = staticmethod(_no_op)
    profiler_start = profiler_stop = cudart = staticmethod(_no_op)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    nvtx_range = staticmethod(contextlib.nullcontext)

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    # verl calls `tensor.to(get_device_id())`, and an index would mean a GPU.
    current_device = staticmethod(lambda: "cpu")
    get_device_capability = staticmethod(lambda device_index=0: (None, None))
    communication_backend_name = staticmethod(lambda: "gloo")
    visible_devices_envvar = staticmethod(lambda: "CUDA_VISIBLE_DEVICES")
    ray_resource_name = staticmethod(lambda: "GPU")
    ray_noset_envvars: Any = staticmethod(list)
    # Weights travel from the trainer to vLLM through shared memory and ZMQ.
    is_ipc_supported = staticmethod(lambda: False)

    def rollout_env_vars(self) -> dict[str, str]:
        """Variables of a vLLM server's process on top of the run's environment."""
        return {
            # In its own process the engine would replace executor "uni" by "mp", which costs one more process.
            "VLLM_ENABLE_V1_MULTIPROCESSING": os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
            "TORCH_COMPILE_DISABLE": "1",
        }


vllm_distribution.name_vllm()
upstream.apply("cpu verl")
