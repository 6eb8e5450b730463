"""Checks of a run in which some GPUs only generate: which settings do not work with it, and how its loss corrects."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.schema import Recipe
from recipes.errors import RecipeError

OWN = "worker.rollout.own_gpus"
PAGE = "docs/ASYNC.md"


def corrects_in_update(recipe: Recipe) -> bool:
    """Return whether the ratio in the loss is the policy's probability over the one with which vLLM sampled.

    It is not if the user set `recompute_old_log_probs`. Then a weight of each token, at most 2, corrects for vLLM.
    """
    key = "worker.actor.recompute_old_log_probs"
    return not (recipe.value(key) and recipe.source_of(key).by_user)


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """Yield an error for each setting that verl's asynchronous trainer cannot handle or would handle wrongly."""
    rollout, gpus = recipe.worker.rollout, recipe.trainer.n_gpus_per_node
    if not rollout.own_gpus:
        if not recipe.worker.hybrid_engine:
            yield recipe.error(
                "worker.hybrid_engine is false, but no GPU is there for generation alone",
                f"set ROLLOUT_GPUS to their number ({PAGE}), or leave worker.hybrid_engine out",
                "worker.hybrid_engine",
            )
        return
    if rollout.own_gpus >= gpus:
        yield recipe.error(
            f"{OWN} {rollout.own_gpus} of {gpus} GPU{'s' * (gpus != 1)} leaves none that trains",
            f"set ROLLOUT_GPUS to {gpus - 1} or fewer" if gpus > 1 else "leave ROLLOUT_GPUS out: it takes two GPUs",
            OWN,
            "trainer.n_gpus_per_node",
        )
    if recipe.trainer.nnodes > 1:
        yield recipe.error(
            f"{OWN} is for one machine", "leave ROLLOUT_GPUS out, or set NNODES=1", OWN, "trainer.nnodes"
        )
    if recipe.algorithm.online_filtering:
        yield recipe.error(
            f"{OWN} and algorithm.online_filtering: nothing bounds the groups that would be generated for a step",
            "set ONLINE_FILTERING=false, or leave ROLLOUT_GPUS out",
            OWN,
            "algorithm.online_filtering",
        )
    if recipe.worker.actor.model.lora.rank:
        yield recipe.error(
            f"{OWN} and LoRA: verl sends whole weights between GPUs, and adapters would not reach vLLM",
            "set LORA_RANK=0, or leave ROLLOUT_GPUS out",
            OWN,
            "worker.actor.model.lora.rank",
        )
    if recipe.worker.actor.loss_type == "gpg":
        yield recipe.error(
            f"{OWN}: the loss gpg has no ratio to the policy that sampled, which is an older one here",
            "choose another worker.actor.loss_type, or leave ROLLOUT_GPUS out",
            OWN,
            "worker.actor.loss_type",
        )
    if not rollout.calculate_log_probs:
        yield recipe.error(
            f"{OWN} takes the probabilities with which vLLM sampled, and worker.rollout.calculate_log_probs is false",
            "leave worker.rollout.calculate_log_probs out",
            OWN,
            "worker.rollout.calculate_log_probs",
        )
    if rollout.top_p != 1 or rollout.top_k != -1:
        yield recipe.error(
            f"{OWN} takes the probabilities with which vLLM sampled, and it states those before top-p and top-k",
            "set TOP_P=1 and TOP_K=-1, or leave ROLLOUT_GPUS out",
            OWN,
            "worker.rollout.top_p",
            "worker.rollout.top_k",
        )


def remarks(recipe: Recipe) -> list[str]:
    """Return a sentence that says how many GPUs only generate and how many train."""
    own, training = recipe.worker.rollout.own_gpus, recipe.n_gpus
    if not own:
        return []
    what = "GPUs" if recipe.hardware == "gpu" else "ranks"
    return [f"{own} of {own + training} {what} only generate, one step ahead of the others, which train: {PAGE}"]
