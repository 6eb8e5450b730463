"""How a check words a mistake: the numbers, the layers that set them, and the nearest that would fit."""

from __future__ import annotations

from recipes.config.schema import Recipe
from recipes.errors import RecipeError


def problem(recipe: Recipe, what: str, fix: str, *keys: str) -> RecipeError:
    """The error for a mistake that lies in `keys`, with the layer that set each."""
    return RecipeError(what, where="; ".join(f"{key}: {recipe.source_of(key)}" for key in keys), fix=fix)


def nearest_divisors(number: int, of: int) -> list[int]:
    """The divisors of `of` next to `number`, below and above; one where there is only one."""
    divisors = [candidate for candidate in range(1, of + 1) if of % candidate == 0]
    below = [divisor for divisor in divisors if divisor <= number]
    above = [divisor for divisor in divisors if divisor > number]
    return below[-1:] + above[:1]


def nearest_multiples(number: int, of: int) -> list[int]:
    """The positive multiples of `of` next to `number`, below and above."""
    below = number // of * of
    return [multiple for multiple in (below, below + of) if multiple > 0]


def either(numbers: list[int]) -> str:
    """`4 or 8`."""
    return " or ".join(str(number) for number in numbers)
