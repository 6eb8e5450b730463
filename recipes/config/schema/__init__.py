"""The typed schema of a recipe: EasyR1's names and nesting, with verl's own keys in the same tree."""

from __future__ import annotations

from recipes.config.schema.field import KeyInfo, Leaf, Section, describe_type, leaves, sections
from recipes.config.schema.trainer import Recipe

__all__ = ["KeyInfo", "Leaf", "Recipe", "Section", "describe_type", "leaves", "sections"]
