"""How long a run lasts, what it saves, and where it goes on."""

from __future__ import annotations

from typing import Any

from recipes.config.schema import Recipe
from recipes.engines.verl.rules.base import ACTOR, rule, uses_critic


@rule("trainer.max_steps", "trainer.total_epochs")
def _duration(recipe: Recipe) -> dict[str, Any]:
    """verl stops at whichever ends first; here, as in EasyR1, max_steps alone decides. An epoch has a step at least."""
    steps, epochs = recipe.trainer.max_steps, recipe.trainer.total_epochs
    return {
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": epochs if steps is None else max(epochs, steps),
    }


@rule("trainer.save_model_only", "trainer.save_hf_model")
def _checkpoint(recipe: Recipe) -> dict[str, Any]:
    contents = ["model"] if recipe.trainer.save_model_only else ["model", "optimizer", "extra"]
    keys: dict[str, Any] = {}
    if uses_critic(recipe):
        keys["critic.checkpoint.save_contents"] = list(contents)
    if recipe.trainer.save_hf_model:
        contents.append("hf_model")
        keys["trainer.checkpoint_callback_class"] = "recipes.engines.checkpoint_callbacks.MergedModels"
    return {**keys, f"{ACTOR}.checkpoint.save_contents": contents}


@rule("trainer.save_limit")
def _limit(recipe: Recipe) -> dict[str, Any]:
    limit = recipe.trainer.save_limit if recipe.trainer.save_limit >= 0 else None
    keys = {"trainer.max_actor_ckpt_to_keep": limit}
    return {**keys, "trainer.max_critic_ckpt_to_keep": limit} if uses_critic(recipe) else keys


@rule("trainer.load_checkpoint_path", "trainer.find_last_checkpoint")
def _resume(recipe: Recipe) -> dict[str, Any]:
    path = recipe.trainer.load_checkpoint_path
    if path is not None:
        return {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": path}
    return {"trainer.resume_mode": "auto" if recipe.trainer.find_last_checkpoint else "disable"}
