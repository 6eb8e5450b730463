"""The cards of a screenshot, found by their colour, for lessons that look at one card."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL.Image import Image
from scipy.ndimage import find_objects, label

from recipes.tasks.number_game.chromium import PAGE

TOLERANCE = 6  # of a channel's 255
NARROWEST = 0.12  # card, as a share of the screenshot's shorter side
ALIGNMENT = 4  # pixels by which the places of cards in one row may be rounded


class Box(NamedTuple):
    """A rectangle in pixels; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int


@cache
def face_colour(theme: str) -> tuple[int, ...]:
    """Return the colour of a theme's cards, (red, green, blue), from the page's own style sheet."""
    style = PAGE.with_name("style.css").read_text(encoding="utf-8")
    rule = r"^body \{" if theme == "paper" else rf'^\[data-theme="{theme}"\] \{{'
    return tuple(bytes.fromhex(re.findall(rule + r"[^}]*--face: #(\w{6})", style, re.MULTILINE)[0]))


def find_cards(picture: Image, theme: str) -> list[Box] | None:
    """Return the three cards from left to right, none of them chosen yet; None where they are not to be seen."""
    pixels = np.asarray(picture.convert("RGB"), dtype=np.int16)
    areas, _ = label((np.abs(pixels - np.array(face_colour(theme))) <= TOLERANCE).all(axis=2))
    boxes = [Box(x.start, y.start, x.stop, y.stop) for y, x in find_objects(areas)]
    boxes = [box for box in boxes if box.right - box.left >= NARROWEST * min(picture.size)]
    for one in boxes:
        row = [box for box in boxes if max(abs(one.top - box.top), abs(one.bottom - box.bottom)) <= ALIGNMENT]
        if len(row) == 3:
            return sorted(row)
    return None
