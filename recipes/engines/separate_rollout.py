"""Keys of verl's asynchronous trainer: some GPUs only generate, one step ahead of those that train (docs/ASYNC.md).

The trainer is verl/trainer/ppo/v1/trainer_separate_async.py:44 (`@register_trainer("separate_async")`).
`recipes/config/separate.py` refuses settings that do not work with it.
"""

from __future__ import annotations

from typing import Any

from recipes.config.schema import Recipe
from recipes.config.schema.keys import settled

BACKEND = "broadcast"
"""The name under which `weight_broadcast.py` registers with verl."""
MOST_VERSIONS = 2
"""A prompt's responses may come from this many versions of the weights: the present one, and the one before it."""
SAMPLER = "PromptReplayBuffer"
ROLLOUT, V1 = "actor_rollout_ref.rollout", "trainer.v1"


def keys(recipe: Recipe) -> dict[str, Any]:
    """Return verl's dotted keys for a run in which some GPUs only generate; none if every GPU does both.

    One batch of prompts is sent to generation in advance. A step waits for the last response of its own batch (`wait`),
    even if many responses of the next batch are finished; in the first step, whose number both batches have, the
    sampler keeps them apart (`samplers.py`). So no response is dropped, and a step does not take short responses of
    the next batch in place of its own long ones.
    """
    own = recipe.worker.rollout.own_gpus
    if not own:
        return {}
    backend = "recipes.engines.weight_broadcast"
    if recipe.hardware == "cpu":
        backend = "recipes.engines.verl_cpu.standalone"
    return {
        "trainer.n_gpus_per_node": recipe.trainer.n_gpus_per_node - own,
        f"{V1}.trainer_mode": "separate_async",
        f"{V1}.separate_async.parameter_sync_step": recipe.data.rollout_batch_size
        // settled(recipe.worker.actor.global_batch_size),
        f"{V1}.separate_async.num_warmup_batches": 1,
        f"{V1}.sampler.max_off_policy_threshold": MOST_VERSIONS,
        f"{V1}.sampler.max_off_policy_strategy": "wait",
        f"{V1}.sampler.custom_sampler.path": "pkg://recipes.engines.samplers",
        f"{V1}.sampler.custom_sampler.name": SAMPLER,
        "actor_rollout_ref.hybrid_engine": False,
        f"{ROLLOUT}.nnodes": 1,
        f"{ROLLOUT}.n_gpus_per_node": own,
        f"{ROLLOUT}.checkpoint_engine.backend": BACKEND,
        f"{ROLLOUT}.checkpoint_engine.custom_backend_module": backend,
    }
