"""The plug-in that runs the real verl trainer on a machine without a GPU.

It uses verl's own extension points: the platform registry (`platform.py`), the engine registry (`engine.py`), the
rollout replica registry (`rollout.py`) and the custom sampler of the replay buffer (`sampler.py`). What those points do
not reach is in `patches.py`, one function per line of verl or vLLM that it works around. `settings.py` says which keys
and environment variables switch it on; nothing here is imported when a recipe trains on GPUs.
"""
