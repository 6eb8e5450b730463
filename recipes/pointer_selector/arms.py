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
    "quality": {"reward.mode": "quality", "reward.alpha": 1.0},
}
KL = (0.05, 0.1, 0.2)

REPORTED: Mapping[str, Any] = {
    "rce.lr": 1e-5,
    "rce.tau_start": 2.0,
    "rce.tau_end": 0.5,
    "reward.mode": "combined",
    "reward.alpha": 0.2,
    "grpo.lr": 1e-5,
    "grpo.level": "sequence",
    "grpo.advantage": "zscore",
    "grpo.kl.beta": 0.1,
    "grpo.kl.over": "logged",
}
"""The settings that this method is usually reported with."""


def arms(recipe: PointerRecipe, only: str = "*") -> list[Arm]:
    """The arms around a recipe whose name fits `only` (patterns with `|` between them), the most wanted first.

    Besides the factors there are the controls: RCE alone; RCE for as many epochs as both phases have together, without
    which a gain could be mere training time; RCE at GRPO's learning rate with sharper weights, without which it could
    be mere tuning; GRPO without a warm-up; and the settings that the method is usually reported with.
    """
    both = recipe.rce.epochs + recipe.grpo.epochs
    alone = {"grpo.epochs": 0}
    long = {**alone, "rce.epochs": both}
    tuned = {**long, "rce.lr": 1e-3, "rce.tau_start": 0.2, "rce.tau_end": 0.05}
    changes: dict[str, Mapping[str, Any]] = {
        "main/RCE": alone,
        "main/RCE + GRPO": {},
        "main/RCE, as many epochs": long,
        "main/RCE, as many epochs, tuned": tuned,
        "main/RCE, as many epochs, tuned, sharper": {**tuned, "rce.tau_start": 0.05, "rce.tau_end": 0.02},
        "main/GRPO without warm-up": {"rce.epochs": 0, "grpo.epochs": both},
    }
    changes |= {f"KL over policy/{beta:g}": {"grpo.kl.over": "policy", "grpo.kl.beta": beta} for beta in KL}
    changes |= {f"GRPO reward/{name}": reward for name, reward in REWARDS.items()}
    changes |= {f"RCE reward/{name}": {**alone, **reward} for name, reward in REWARDS.items()}
    changes["reported/RCE"] = {**REPORTED, **alone}
    changes["reported/RCE + GRPO"] = REPORTED
    changes |= {f"GRPO lr/{rate:g}": {"grpo.lr": rate} for rate in (1e-5, 1e-4, 3e-4, 1e-3)}
    changes |= {f"GRPO epochs/{epochs}": {"grpo.epochs": epochs} for epochs in (5, 10, 20)}
    changes |= {f"RCE lr/{rate:g}": {**alone, "rce.lr": rate} for rate in (1e-5, 1e-4, 3e-4, 1e-3)}
    changes["KL over logged/0.1"] = {"grpo.kl.over": "logged", "grpo.kl.beta": 0.1}
    changes["KL over policy/adaptive"] = {"grpo.kl.over": "policy", "grpo.kl.beta": 0.1, "grpo.kl.adaptive": True}
    changes |= {f"advantage/{kind}": {"grpo.advantage": kind} for kind in ("zscore", "rank", "mean")}
    changes |= {f"ratio/{level}": {"grpo.level": level} for level in ("sequence", "step")}
    changes["curriculum/best 3 in the first third"] = {"grpo.curriculum.early_share": 0.34}
    changes["backbone/frozen in GRPO"] = {"grpo.freeze_backbone": True}
    changes["layers/2"] = {"policy.layers": 2}
    changes["start/random"] = {"policy.start": "random"}
    patterns = only.split("|")
    chosen = {name: values for name, values in changes.items() if any(fnmatch(name, each) for each in patterns)}
    found = [Arm(name, changed(recipe, values)) for name, values in chosen.items()]
    if not found:
        raise RecipeError(f"no arm fits {only!r}", where="--only", fix=f"for instance {', '.join(list(changes)[:6])}")
    return found
