"""Reading screenshots: broken PNGs, sizes that fit, cards, buttons and verdicts."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageDraw

from recipes.tasks.number_game.pixels import (
    BrokenPNG,
    decoded,
    find_button,
    find_cards,
    fitted,
    size,
    verdict,
)
from recipes.tasks.number_game.rules import CHOICES, tokens


def encoded(picture, kind="PNG"):
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


WHOLE = encoded(Image.effect_noise((56, 84), 40))
OVERWRITTEN = WHOLE[:40] + b"\x00" * 40 + WHOLE[80:]


@pytest.mark.parametrize("data", [b"", WHOLE[:4], WHOLE[:-30], WHOLE[: len(WHOLE) // 2], OVERWRITTEN, b"<html>"])
def test_a_broken_png_is_noticed(data):
    with pytest.raises(BrokenPNG):
        fitted(data, 100)


@pytest.mark.parametrize("screen", [(720, 1280), (2400, 1080), (1440, 3120), (100, 3000), (561, 1009)])
def test_other_screens_are_scaled_to_whole_patches(screen):
    assert fitted(WHOLE, 6) is WHOLE
    width, height = size(fitted(encoded(Image.new("RGB", screen)), 756))
    assert width % 28 == height % 28 == 0
    assert tokens(width, height) <= 756
    assert width / height == pytest.approx(screen[0] / screen[1], rel=0.2)


@pytest.mark.parametrize("theme", CHOICES["theme"])
def test_cards_and_buttons_are_found_in_every_theme(phone, theme):
    drawn = phone("a")
    drawn.show(theme, ["g374"])
    cards = find_cards(drawn.draw(), theme)
    assert [card.centre for card in cards] == [(66, 394), (177, 394), (288, 394)]
    assert find_button(drawn.draw(), theme) is None
    drawn.tap(*cards[1].centre)
    after = drawn.draw()
    assert [verdict(after, card, theme) for card in cards] == [None, "right", None]
    assert (find_button(after, theme).centre, find_cards(after, theme)) == ((180, 665), None)


def test_shades_that_are_slightly_off_are_still_seen():
    picture = Image.new("RGB", (360, 600), (90, 90, 90))
    pen = ImageDraw.Draw(picture)
    for left in (20, 130, 240):
        pen.rectangle((left, 200, left + 89, 319), fill=(252, 255, 253))
    pen.rectangle((0, 0, 360, 20), fill=(255, 255, 255))  # a status bar of nearly the same colour
    assert len(find_cards(picture, "paper")) == 3
    assert decoded(encoded(picture)).size == (360, 600)
