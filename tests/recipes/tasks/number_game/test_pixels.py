"""Reading screenshots: broken PNGs, sizes that fit, cards, buttons and verdicts."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageDraw

from recipes.tasks.number_game.rules import CHOICES, tokens
from recipes.tasks.number_game.screens import (
    BrokenPNG,
    as_png,
    colours,
    decoded,
    find_button,
    find_cards,
    fitted,
    size,
    verdict,
)


def png(picture, kind="PNG"):
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


WHOLE = png(Image.effect_noise((56, 84), 40))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG",
        WHOLE[:-30],
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:40] + b"\x00" * 40 + WHOLE[80:],
        b"<html>no</html>",
    ],
    ids=["nothing", "signature", "end missing", "half", "overwritten", "html"],
)
def test_a_broken_png_is_noticed(data):
    with pytest.raises(BrokenPNG):
        decoded(data)
    with pytest.raises(BrokenPNG):
        fitted(data, 100)


def test_a_picture_that_fits_stays_as_it_is():
    assert fitted(WHOLE, 6) is WHOLE
    assert size(WHOLE) == (56, 84)


@pytest.mark.parametrize("screen", [(720, 1280), (1080, 2400), (2400, 1080), (1440, 3120), (100, 3000), (561, 1009)])
def test_other_screens_are_scaled_to_whole_patches(screen):
    width, height = size(fitted(png(Image.new("RGB", screen)), 756))
    assert width % 28 == height % 28 == 0
    assert tokens(width, height) <= 756
    assert width / height == pytest.approx(screen[0] / screen[1], rel=0.2)


def test_other_formats_become_png():
    picture = Image.new("RGB", (30, 40), (9, 8, 7))
    assert size(as_png(png(picture, "JPEG"))) == (30, 40)
    assert as_png(WHOLE) is WHOLE
    with pytest.raises(BrokenPNG):
        as_png(b"GIF89a")


@pytest.mark.parametrize("theme", CHOICES["theme"])
def test_cards_and_buttons_are_found_in_every_theme(phones, theme):
    phone = phones.DrawnPhone("a")
    phone.theme = theme
    phone.deals = [phones.parse_deal("g374")]
    cards = find_cards(decoded(phone.screencap()), theme)
    assert [card.centre for card in cards] == [(66, 394), (177, 394), (288, 394)]
    assert find_button(decoded(phone.screencap()), theme) is None
    phone.tap(*cards[1].centre)
    after = decoded(phone.screencap())
    assert [verdict(after, card, theme) for card in cards] == [None, "right", None]
    assert find_button(after, theme).centre == (180, 665)
    assert find_cards(after, theme) is None


def test_a_theme_has_four_different_colours():
    for theme in CHOICES["theme"]:
        assert len(set(colours(theme))) == 4


def test_shades_that_are_slightly_off_are_still_seen():
    picture = Image.new("RGB", (360, 600), (90, 90, 90))
    pen = ImageDraw.Draw(picture)
    for left in (20, 130, 240):
        pen.rectangle((left, 200, left + 89, 319), fill=(252, 255, 253))
    pen.rectangle((0, 0, 360, 20), fill=(255, 255, 255))  # a status bar of nearly the same colour
    assert len(find_cards(picture, "paper")) == 3
