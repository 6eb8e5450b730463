"""The whole model in `actor/huggingface`, at each save, for vLLM and transformers; EasyR1 writes shards alone."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WEIGHTS = "RECIPES_EASYR1_WEIGHTS"
"""Variable with the number type of the weights; without it none are written (`trainer.save_hf_model`)."""


def write(module: Any, folder: str) -> None:
    """Gather the weights of all ranks and have rank 0 write them beside the configuration that EasyR1 has written.

    LoRA adapters become part of the weights. Every rank has to call this.

    Args:
        module: the FSDP module.
        folder: `.../global_step_N/actor`; a critic's is left as it is.
    """
    kind = os.environ.get(WEIGHTS)
    if not kind or Path(folder).name != "actor":
        return
    import torch
    import torch.distributed as dist
    from peft import PeftModel
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    from recipes.engines import saved_models

    weights = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() != 0:
        return
    model, target = module._fsdp_wrapped_module, Path(folder) / "huggingface"
    if isinstance(model, PeftModel):
        weights = saved_models.with_adapters(weights, saved_models.scalings(model))
        model = model.get_base_model()
    number = getattr(torch, kind)
    weights = {name: value.to(number) if value.is_floating_point() else value for name, value in weights.items()}
    model.save_pretrained(target, state_dict=weights)
    saved_models.name_the_type(target)


def set_again(worker: Any, folder: str) -> None:
    """Give optimiser and schedule the command's rate, betas and decay, which loading took from the checkpoint.

    Args:
        worker: EasyR1's `FSDPWorker`.
        folder: `.../global_step_N/actor`.
    """
    from recipes.engines import resumed_optimizer

    engine = SimpleNamespace(
        optimizer_config=worker.config.actor.optim,
        optimizer=worker.optimizer,
        lr_scheduler=worker.lr_scheduler,
        checkpoint_manager=SimpleNamespace(should_load_extra=True),
        rank=worker.rank,
    )
    resumed_optimizer.set_again(engine, folder)
