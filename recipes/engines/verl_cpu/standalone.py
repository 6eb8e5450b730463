"""What the processes need that only generate, on CPUs: the plug-in, and the weights' way to them.

verl imports this module in them before anything else of the plug-in, because
`actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module` names it.
"""

from __future__ import annotations

from recipes.engines import weight_broadcast
from recipes.engines.verl_cpu import engine

__all__ = ["engine", "weight_broadcast"]
