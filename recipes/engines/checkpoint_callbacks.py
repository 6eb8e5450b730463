"""verl's hook after a save: it ends a run in order, and names the type of the weights that were saved.

verl has no key that ends a run early. Its loop runs while `global_steps <= total_training_steps`
(`PPOTrainer.fit`, verl/trainer/ppo/v1/trainer_base.py), and this hook is called in the loop with the trainer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from recipes.engines.checkpoints import withdraw_stop
from recipes.engines.saved_models import name_the_type


class EndInOrder(CheckpointCallback):
    """Ends the run after the saved step if a stop was requested."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        if withdraw_stop(Path(checkpoint_dir).parent):
            print(f"stop requested: step {global_step} is the last", flush=True)
            trainer.total_training_steps = global_step


class ExactModels(EndInOrder):
    """The saved configuration names the type of the saved weights too, so that nobody rounds them by default."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        super().on_save(trainer, global_step, checkpoint_dir, **kwargs)
        for folder in Path(checkpoint_dir).glob("*/huggingface"):
            name_the_type(folder)
