"""The recipe in verl's words: its dotted keys, Hydra's overrides, the trainer's command and environment."""

from __future__ import annotations

from recipes.engines.verl.command import command, environment
from recipes.engines.verl.overrides import overrides
from recipes.engines.verl.translate import translate

__all__ = ["command", "environment", "overrides", "translate"]
