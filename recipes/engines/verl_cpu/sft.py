"""verl's supervised trainer on CPUs; `torch.distributed.run` starts it with the settings of `recipes.sft`."""

from __future__ import annotations

import torch
from verl.trainer import sft_trainer
from verl.utils import distributed

from recipes.engines.verl_cpu.patches import apply_to_verl


def _initialize() -> None:
    torch.distributed.init_process_group("cpu:gloo")  # verl names the CPU twice, which torch refuses


if __name__ == "__main__":
    apply_to_verl()
    distributed.initialize_global_process_group = _initialize
    sft_trainer.main()
