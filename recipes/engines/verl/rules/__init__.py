"""Keys that decide together: each rule reads a few keys of the recipe and gives a few of verl's."""

from __future__ import annotations

from recipes.engines.verl.rules import algorithm, networks, run
from recipes.engines.verl.rules.base import RULES, uses_critic

__all__ = ["RULES", "algorithm", "networks", "run", "uses_critic"]
