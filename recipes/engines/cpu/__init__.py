"""The plug-in that runs the real verl trainer on a machine without a GPU.

It uses verl's own extension points: the platform registry (`platform.py`), the engine registry (`engine.py`), the
rollout's registries (`rollout.py`). `engines/verl/upstream.py` has what those do not reach, `settings.py` the keys and
environment variables that switch the plug-in on. Training on GPUs imports `settings.py` alone.
"""
