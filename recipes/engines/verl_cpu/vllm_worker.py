"""The class that vLLM mixes into its worker; imported in the worker's process before the model is loaded."""

from __future__ import annotations

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from recipes.engines.verl_cpu import patches

patches.apply_to_vllm()


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """verl's receiver of weights."""
