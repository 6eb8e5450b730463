"""The typed schema of a recipe: EasyR1's names and nesting, with verl's own keys in the same tree."""

from recipes.config.schema.recipe import BY_CONVERSION, LAUNCHERS, Recipe, template_text
from recipes.config.schema.worker import module_names, verl_loss
from recipes.settings import Leaf, Section, Setting, Source, key, leaves

__all__ = [
    "BY_CONVERSION",
    "LAUNCHERS",
    "Leaf",
    "Recipe",
    "Section",
    "Setting",
    "Source",
    "key",
    "leaves",
    "module_names",
    "template_text",
    "verl_loss",
]
