"""GPUs that only generate, one step ahead of those that train: what does not go together with it, and what it means."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.config.schema import Recipe
from recipes.errors import RecipeError

OWN = "worker.rollout.own_gpus"
PAGE = "docs/ASYNC.md"


def corrects_in_update(recipe: Recipe) -> bool:
    """Return whether the update's own ratio is of the policy to the one that sampled, as vLLM computed it.

    Otherwise the user asked for `recompute_old_log_probs`, and weights of each token, cut at 2, stand for that ratio.
    """
    key = "worker.actor.recompute_old_log_probs"
    return not (recipe.value(key) and recipe.source_of(key).by_user)


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """What verl's asynchronous trainer cannot do, or would do wrong."""
    rollout, here = recipe.worker.rollout, recipe.trainer.n_gpus_per_node
    if not rollout.own_gpus:
        if not recipe.worker.hybrid_engine:
            yield recipe.error(
                "worker.hybrid_engine is false, but no GPU is there for generation alone",
                f"set ROLLOUT_GPUS to their number ({PAGE}), or leave worker.hybrid_engine out",
                "worker.hybrid_engine",
            )
        return
    if rollout.own_gpus >= here:
        yield recipe.error(
            f"{OWN} {rollout.own_gpus} of {here} GPU{'s' * (here != 1)} leaves none that trains",
            f"set ROLLOUT_GPUS to {here - 1} or fewer" if here > 1 else "leave ROLLOUT_GPUS out: it takes two GPUs",
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
    """Say what runs where."""
    own, training = recipe.worker.rollout.own_gpus, recipe.n_gpus
    if not own:
        return []
    what = "GPUs" if recipe.hardware == "gpu" else "ranks"
    return [f"{own} of {own + training} {what} only generate, one step ahead of the others, which train: {PAGE}"]
