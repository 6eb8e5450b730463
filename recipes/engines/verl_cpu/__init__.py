"""The plug-in that runs the real verl trainer on a machine without a GPU.

verl has platforms for CUDA and for NPUs. With this one the same trainer (Ray, FSDP, vLLM, rewards, weight sync,
checkpoints) trains on the cores of a laptop or a CI machine, so that a recipe can be tried and tested before GPUs are
paid for. It uses verl's own extension points: the platform registry (`platform.py`), the engine registry
(`engine.py`), the rollout's registries and the custom replay buffer (`rollout.py`). What those do not reach is in
`patches.py`, one function per line of verl, vLLM or Ray that it works around. `settings.py` says which keys and
environment variables switch it on. Nothing here is imported when a recipe trains on GPUs.

`main.py`, `ray_head.py`, `forkserver.py` and `spawn.py` make the start shorter, and nothing else. A run has eight
processes that import torch, Ray, verl and vLLM. The fork server imports them once; the others are forked from it.
`RECIPES_FORK_WORKERS=0` does without: `main.py` then calls verl's `run_ppo` at once, and Ray and vLLM start their own
processes. The same happens with another version of Ray, on another system than Linux, and where
`RAY_ADDRESS` or `ray_kwargs.ray_init.address` names a cluster that runs already.
"""
