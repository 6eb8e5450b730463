"""The rules, in one place: what a light asks for, and how points are counted. The page is checked against them."""

from __future__ import annotations

from typing import NamedTuple

from recipes.errors import RecipeError

START, STEP = 100, 10
POSITIONS = (0, 1, 2)  # left, middle, right
# Rank of the digit that each light asks for, among the three in ascending order.
RANKS = {"green": 2, "red": 0, "yellow": 1}
LETTERS = {light[0]: light for light in RANKS}


class Deal(NamedTuple):
    """One round: the light that is on, and the digits on the cards from left to right."""

    light: str
    digits: tuple[int, int, int]

    @property
    def answer(self) -> int:
        """Position of the card that the light asks for."""
        return self.digits.index(sorted(self.digits)[RANKS[self.light]])

    @property
    def code(self) -> str:
        """`g374`: the light's first letter and the digits, as the page's option `deal` reads them."""
        return self.light[0] + "".join(map(str, self.digits))


def parse_deal(code: str) -> Deal:
    """The deal of a code such as `g374`.

    Raises:
        RecipeError: not a light and three different digits from 1 to 9.
    """
    digits = code[1:]
    if code[:1] not in LETTERS or len(digits) != 3 or len(set(digits)) != 3 or not set(digits) <= set("123456789"):
        raise RecipeError(
            f"{code!r} is no deal", where="deal", fix="a light (g, r, y) and three different digits: g374"
        )
    left, middle, right = map(int, digits)
    return Deal(LETTERS[code[0]], (left, middle, right))


def points(right: bool) -> int:
    """What a choice adds to the score."""
    return STEP if right else -STEP
