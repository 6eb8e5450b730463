"""A short start of verl's trainer, on CPUs and on GPUs: import once, fork the rest.

A run has eight or more processes that import torch, Ray, verl and vLLM, which takes ten to twenty seconds and 800 MB
each. `main.py` starts Ray's own processes (`ray_head.py`) and makes the imports meanwhile, in a process from which the
driver, Ray's workers and vLLM's processes are then forked (`forkserver.py`; `spawn.py` asks it for them).

A process that has initialised CUDA cannot be forked: its children could not use the GPU. `cuda.py` makes the imports
without CUDA.

The ordinary start, where verl, Ray and vLLM start each process themselves, is taken with `RECIPES_FORK_WORKERS=0`, with
another version of Ray, on another system than Linux, where `RAY_ADDRESS` or `ray_kwargs.ray_init.address` names a
cluster that runs already, and where a setting or the machine does not allow it. If this shows only after the imports,
the run's log says why.
"""
