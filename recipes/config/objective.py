"""The objective: where KL acts and by which estimator, how the loss is averaged, and how its ratio is clipped."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from recipes.config.accounting import updates
from recipes.config.schema import Recipe
from recipes.errors import RecipeError

Place = Literal["reward", "loss"]
NO_KL = "algorithm.disable_kl"
PLACES_OF_KL = ("algorithm.use_kl_loss", "algorithm.use_kl_in_reward")
OF_KL = (*PLACES_OF_KL, *(f"algorithm.{name}" for name in ("kl_coef", "kl_penalty", "kl_loss_coef", "kl_loss_type")))
"""Keys that nothing reads where `NO_KL` is true."""
OLD_PASS = "worker.actor.recompute_old_log_probs"
LOW, HIGH = "worker.actor.clip_ratio_low", "worker.actor.clip_ratio_high"


class Term(NamedTuple):
    """A KL term: verl's name of its estimator (`kl` is k1, `mse` k2, `low_var_kl` k3) and its weight."""

    estimator: str
    coefficient: float


def kl_in_reward(recipe: Recipe) -> Term | None:
    """The KL that is subtracted from each token's reward; None where there is none."""
    algorithm, chosen = recipe.algorithm, recipe.algorithm.use_kl_in_reward
    acts = not algorithm.use_kl_loss if chosen is None else chosen
    return Term(algorithm.kl_penalty, algorithm.kl_coef) if acts and not algorithm.disable_kl else None


def kl_in_loss(recipe: Recipe) -> Term | None:
    """The KL that is a term of the loss; None where there is none."""
    algorithm = recipe.algorithm
    if algorithm.disable_kl or not algorithm.use_kl_loss:
        return None
    coefficient = algorithm.kl_coef if algorithm.kl_loss_coef is None else algorithm.kl_loss_coef
    return Term(algorithm.kl_loss_type or algorithm.kl_penalty, coefficient)


_PUSHED = "no gradient of a KL: {} as a constant, which pushes tokens that became less probable down further"
_CANCELS = "grad KL(pi, ref) - grad KL(ref, pi), which cancels near the reference, and pushes away beyond"
NO_PENALTY: dict[tuple[str, Place], str] = {
    ("kl", "loss"): "an expected gradient of zero, since E[grad log pi] = 0",
    ("mse", "reward"): _PUSHED.format("half the squared log-ratio"),
    ("low_var_kl", "reward"): _CANCELS,
    ("low_var_kl+", "reward"): _CANCELS,
    ("abs", "reward"): _PUSHED.format("the absolute log-ratio"),
    ("abs", "loss"): "the gradient of twice the total variation, which does not shrink near the reference",
}
"""(estimator, place) -> the expected gradient where it is not a KL penalty's; docs/ALGORITHMS.md has all pairs."""
BETTER: dict[Place, str] = {"reward": "algorithm.kl_penalty=kl", "loss": "algorithm.kl_loss_type=low_var_kl"}
SOURCES = "arXiv:2512.21852 compares the estimators in both places"

BY_DEVIATION = ("grpo", "grpo_passk", "grpo_vectorized")
"""Estimators of advantages that divide by the standard deviation of the group, where `norm_adv_by_std` is true."""

CONSTANT_LENGTH = "seq-mean-token-sum-norm"
"""The loss_agg_mode that divides by a constant length instead of each response's."""


def constant_length(recipe: Recipe) -> int | None:
    """The length that the loss is divided by; without one verl takes the longest response of each micro-batch."""
    actor = recipe.worker.actor
    by_default = recipe.data.max_response_length if actor.loss_agg_mode == CONSTANT_LENGTH else None
    return actor.loss_scale_factor or by_default


def update_suffices(recipe: Recipe) -> bool:
    """Return whether the update's log-probabilities can replace those of a pass before it: a step has one update.

    A KL in the reward is then computed from vLLM's log-probabilities, which equal the policy's only without top-p and
    top-k; so there must be none of these limits either.
    """
    rollout = recipe.worker.rollout
    exact = kl_in_reward(recipe) is None or (rollout.top_p == 1 and rollout.top_k == -1)
    return updates(recipe) == 1 and rollout.calculate_log_probs and exact


def problems(recipe: Recipe) -> Iterator[RecipeError]:
    """Yield errors for KL that is on but placed nowhere, a low clip ratio above the high one, and a missing pass.

    CISPO may have a low ratio above the high one: of 1 or more, it means that there is no lower bound.
    """
    algorithm, low, high = recipe.algorithm, recipe.value(LOW), recipe.value(HIGH)
    if recipe.engine == "verl" and recipe.value(OLD_PASS) is False and not update_suffices(recipe):
        what = (
            f"{OLD_PASS} is false, but the update's log-probabilities cannot replace the old ones: that takes one "
            f"update a step (here {updates(recipe)}) and vLLM's log-probabilities, without top-p and top-k if KL is "
            "in the reward"
        )
        fix = "set it to null, which leaves the pass out where it can"
        yield recipe.error(what, fix, OLD_PASS, "worker.actor.global_batch_size", "worker.rollout.top_p")
    if not algorithm.disable_kl and not algorithm.use_kl_loss and algorithm.use_kl_in_reward is False:
        key, what = "algorithm.use_kl_in_reward", f"KL is neither in the loss nor in the reward, yet {NO_KL} is false"
        yield recipe.error(what, f"set {NO_KL} to true, or {key} to null", key, NO_KL)
    if recipe.worker.actor.loss_type != "cispo" and low > high:
        yield recipe.error(f"{LOW} {low} is above {HIGH} {high}", "exchange them; DAPO's are 0.2 and 0.28", LOW, HIGH)
    if recipe.engine == "easyr1" and low > 1:
        what = f"EasyR1 takes the logarithm of 1 - {LOW}, which is {low}"
        yield recipe.error(what, "set it to 1, which is no lower bound either", LOW)


def remarks(recipe: Recipe) -> Iterator[str]:
    """Remarks on valid settings that do not do what their names suggest.

    These are a KL estimator whose gradient, in the reward or in the loss, is not that of a KL penalty; KL that went
    from the loss into the reward, where verl's own `use_kl_loss=False` means none; KL in the reward that is divided by
    a group's deviation (verl and EasyR1 subtract it, then divide), where the user put it there; and clips that never
    act.
    """
    algorithm, actor = recipe.algorithm, recipe.worker.actor
    terms: dict[Place, Term | None] = {"reward": kl_in_reward(recipe), "loss": kl_in_loss(recipe)}
    acting = {place: term.estimator for place, term in terms.items() if term and term.coefficient}
    for place, estimator in acting.items():
        if gradient := NO_PENALTY.get((estimator, place)):
            yield f"KL in the {place} by {estimator} has {gradient} ({SOURCES}); use {BETTER[place]}"
    if "reward" in acting and algorithm.use_kl_in_reward is None and recipe.source_of(PLACES_OF_KL[0]).by_user:
        yield f"without KL in the loss it is in the reward, as in EasyR1; {NO_KL}=true leaves it out"
    divided = algorithm.norm_adv_by_std and algorithm.adv_estimator in BY_DEVIATION
    placed = any(recipe.source_of(key).chosen for key in (NO_KL, *PLACES_OF_KL))
    if "reward" in acting and divided and placed and not algorithm.online_filtering:
        yield (
            "KL in the reward is divided by the group's standard deviation: in a group of equal scores nothing but KL "
            "is left, which becomes an advantage of full size, and where few groups are mixed most of the gradient "
            "pulls back to the reference. USE_KL_LOSS=true (in the loss) helps, as do NORM_ADV_BY_STD=false and "
            "ONLINE_FILTERING=true"
        )
    clipped = algorithm.preset in ("dapo", "gspo", "cispo") or actor.loss_type != "default"
    by_user = recipe.source_of(LOW).by_user or recipe.source_of(HIGH).by_user
    if updates(recipe) == 1 and (clipped or by_user):
        yield (
            "one update a step: the ratio of new to old policy is 1 and no clip acts; GLOBAL_BATCH_SIZE below "
            "ROLLOUT_BATCH_SIZE makes several"
        )
