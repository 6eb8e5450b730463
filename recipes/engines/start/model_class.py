"""vLLM's inspection of the model's class, made while the policy starts.

vLLM asks a class what it can do in a new interpreter, "to avoid initializing CUDA", and keeps the answer in its cache:
vllm/model_executor/models/registry.py:1031 (`_run_in_subprocess`),
vllm-0.24.0/model_executor/models/registry.py:934 (`_run_in_subprocess`). On a machine without that answer the run waits
for one more import of torch and vLLM. A child of the fork server has made these imports, and what it does with CUDA
ends with it. On CPUs the server looks by itself (`verl_cpu/patches.py`).
"""

from __future__ import annotations

import yaml

from recipes.model_files import local_model, read_json

MODEL = "actor_rollout_ref.model.path"


def inspect(arguments: list[str]) -> None:
    """Fill vLLM's cache for the model of verl's command line; called in a process that ends afterwards.

    Does nothing for a model that is not on this machine yet, or that vLLM does not know by its name.
    """
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()
    given = dict(argument.lstrip("+").partition("=")[::2] for argument in arguments)
    folder = local_model(yaml.safe_load(given.get(MODEL, "")))
    names = read_json(folder / "config.json").get("architectures") if folder else None
    for name in names or ():
        if model := registry.ModelRegistry.models.get(name):
            model.inspect_model_cls()
