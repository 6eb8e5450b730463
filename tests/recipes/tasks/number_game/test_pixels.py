"""Reading screenshots: broken PNGs, sizes that fit, cards, buttons and verdicts."""

import io

import pytest
from PIL import Image

from recipes.tasks.number_game.collect import BrokenPNG, fitted, size


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
    assert width * height // 28**2 <= 756
    assert width / height == pytest.approx(screen[0] / screen[1], rel=0.2)
