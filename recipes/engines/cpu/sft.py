"""verl's supervised trainer on CPUs; `torch.distributed.run` starts it with the settings of `recipes.sft`."""

from __future__ import annotations

import torch
from verl.trainer import sft_trainer
from verl.utils import distributed

from recipes.engines.verl import upstream


def _initialize() -> None:
    torch.distributed.init_process_group("cpu:gloo")  # verl names the CPU twice, which torch refuses


if __name__ == "__main__":
    upstream.apply("cpu verl")
    distributed.initialize_global_process_group = _initialize
    sft_trainer.main()
