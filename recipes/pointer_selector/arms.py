"""What the sweep varies: one thing at a time around the recipe, and the controls that the answers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from recipes.errors import RecipeError
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.resolve import changed


@dataclass(frozen=True)
class Arm:
    """One setting of the sweep.

    Attributes:
        name: `<factor>/<value>`.
        recipe: everything resolved but the seed.
    """

    name: str
    recipe: PointerRecipe

    @property
    def factor(self) -> str:
        return self.name.split("/")[0]


REWARDS: dict[str, Mapping[str, Any]] = {
    "probability": {"reward.mode": "probability", "reward.alpha": 1.0},
    "correctness": {"reward.mode": "correctness"},
    "hard_soft": {"reward.mode": "hard_soft", "reward.alpha": 1.0, "reward.beta": 1.0},
    "separated": {"reward.mode": "separated", "reward.alpha": 1.0, "reward.beta": 1.0},
    "combined a=0.2": {"reward.mode": "combined", "reward.alpha": 0.2, "reward.beta": 1.0},
    "combined a=1": {"reward.mode": "combined", "reward.alpha": 1.0, "reward.beta": 1.0},
    "quality": {"reward.mode": "quality", "reward.alpha": 1.0},
}
RATES = (1e-5, 1e-4, 3e-4, 1e-3)


def arms(recipe: PointerRecipe, only: str = "*") -> list[Arm]:
    """The arms around a recipe whose name fits the pattern `only`, the most wanted first.

    Besides the factors there are the controls: RCE alone; RCE for as many epochs as both phases have together, without
    which a gain could be mere training time; and GRPO without a warm-up.
    """
    both = recipe.rce.epochs + recipe.grpo.epochs
    alone = {"grpo.epochs": 0}
    changes: dict[str, Mapping[str, Any]] = {
        "main/RCE": alone,
        "main/RCE, as many epochs": {**alone, "rce.epochs": both},
        "main/RCE + GRPO": {},
        "main/GRPO without warm-up": {"rce.epochs": 0},
    }
    for name, reward in REWARDS.items():
        changes[f"GRPO reward/{name}"] = dict(reward)
    changes["KL/0"] = {"grpo.kl.beta": 0.0}
    for over in ("logged", "policy"):
        for beta in (0.05, 0.1, 0.2):
            changes[f"KL over {over}/{beta:g}"] = {"grpo.kl.over": over, "grpo.kl.beta": beta}
    adaptive = {"grpo.kl.adaptive": True, "grpo.kl.beta": 0.1}
    changes["KL over logged/adaptive"] = {**adaptive, "grpo.kl.over": "logged"}
    for rate in RATES:
        changes[f"GRPO lr/{rate:g}"] = {"grpo.lr": rate}
    for rate in RATES:
        changes[f"RCE lr/{rate:g}"] = {**alone, "rce.lr": rate}
    for start, end in ((2.0, 0.5), (0.5, 0.1), (0.2, 0.05)):
        changes[f"RCE tau/{start:g} to {end:g}"] = {**alone, "rce.tau_start": start, "rce.tau_end": end}
    for start, end in ((0.2, 0.05), (0.05, 0.02)):
        long = {**alone, "rce.epochs": both, "rce.lr": 1e-3}
        changes[f"RCE tuned/{both} epochs, lr 0.001, tau {start:g} to {end:g}"] = {
            **long,
            "rce.tau_start": start,
            "rce.tau_end": end,
        }
    for name, reward in REWARDS.items():
        changes[f"RCE reward/{name}"] = {**alone, **reward}
    for kind in ("zscore", "rank", "mean"):
        changes[f"advantage/{kind}"] = {"grpo.advantage": kind}
    for level in ("sequence", "step"):
        changes[f"ratio/{level}"] = {"grpo.level": level}
    for epochs in (5, 10):
        changes[f"GRPO epochs/{epochs}"] = {"grpo.epochs": epochs}
    changes["trained shots/4 alone"] = {"data.shot_mode": "exact"}
    changes["trained shots/1 and 2"] = {"data.shot_num": 2}
    changes["curriculum/best 3 in the first third"] = {
        "grpo.curriculum.early_share": 0.34,
        "grpo.curriculum.early_candidates": 3,
    }
    changes["backbone/frozen in GRPO"] = {"grpo.freeze_backbone": True}
    changes["layers/2"] = {"policy.layers": 2}
    changes["start/random"] = {"policy.start": "random"}
    for size in (8, 32):
        changes[f"batch/{size}"] = {"data.batch_size": size}
    found = [Arm(name, changed(recipe, values)) for name, values in changes.items() if fnmatch(name, only)]
    if not found:
        raise RecipeError(f"no arm fits {only!r}", where="--only", fix=f"for instance {', '.join(list(changes)[:6])}")
    return found
