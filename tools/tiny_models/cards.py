"""The cards of a screenshot, found by their colour, for lessons that look at one card."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recipes.tasks.number_game.chromium import PAGE

if TYPE_CHECKING:
    from PIL.Image import Image

TOLERANCE = 6  # of a channel's 255
NARROWEST = 0.12  # card, as a share of the screenshot's shorter side
ALIGNMENT = 4  # pixels by which the places of cards in one row may be rounded


class Box(NamedTuple):
    """A rectangle in pixels; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """In pixels."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """In pixels."""
        return self.bottom - self.top


@cache
def face_colour(theme: str) -> tuple[int, ...]:
    """The colour of a theme's cards, (red, green, blue), from the page's own style sheet."""
    style = PAGE.with_name("style.css").read_text(encoding="utf-8")
    rule = r"^body \{" if theme == "paper" else rf'^\[data-theme="{theme}"\] \{{'
    found = re.search(rule + r"[^}]*--face: #(\w{6})", style, re.MULTILINE)
    assert found is not None
    return tuple(bytes.fromhex(found[1]))


def find_cards(picture: Image, theme: str) -> list[Box] | None:
    """The three cards from left to right, none of them chosen yet; None where they are not to be seen."""
    from scipy.ndimage import find_objects, label

    pixels = np.asarray(picture.convert("RGB"), dtype=np.int16)
    areas, _ = label((np.abs(pixels - np.array(face_colour(theme))) <= TOLERANCE).all(axis=2))
    boxes = [Box(x.start, y.start, x.stop, y.stop) for y, x in find_objects(areas)]
    boxes = [box for box in boxes if box.width >= NARROWEST * min(picture.size)]
    for box in boxes:
        row = [other for other in boxes if _in_one_row(box, other)]
        if len(row) == 3:
            return sorted(row)
    return None


def _in_one_row(box: Box, other: Box) -> bool:
    pairs = (box.top, other.top), (box.bottom, other.bottom), (box.width, other.width)
    return all(abs(a - b) <= ALIGNMENT for a, b in pairs)
