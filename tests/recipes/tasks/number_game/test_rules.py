"""Deals, splits and looks; that the page judges and draws in the same way is for test_chromium.py."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import (
    LIGHTS,
    SCREENS,
    Look,
    Settings,
    balanced,
    cells,
    parse_deal,
    tokens,
    various,
)


@pytest.mark.parametrize("code", ["", "g", "g12", "g1234", "b123", "g120", "g112", "gabc", "123", "G123", "g１23"])
def test_what_is_no_deal_is_refused(code):
    with pytest.raises(RecipeError, match="no deal"):
        parse_deal(code)


def test_train_and_test_share_no_deal_and_leave_none_out():
    train, test = cells("train"), cells("test")
    assert ({len(deals) for deals in train.values()}, {len(deals) for deals in test.values()}) == ({134}, {34})
    both = [deal for split in (train, test) for deals in split.values() for deal in deals]
    assert len(set(both)) == len(both) == 3 * 9 * 8 * 7
    for (light, answer), deals in test.items():
        assert all((deal.light, deal.answer) == (light, answer) and parse_deal(deal.code) == deal for deal in deals)


@pytest.mark.parametrize("size", [1, 50, 306, 612])
def test_a_selection_is_balanced_and_no_deal_comes_twice_before_all_came_once(size):
    chosen = balanced("test", size, random.Random(3))
    counts = Counter((deal.light, deal.answer) for deal in chosen)
    assert max(counts.values()) - min(counts.get((light, p), 0) for light in LIGHTS for p in range(3)) <= 1
    assert set(chosen) <= {deal for deals in cells("test").values() for deal in deals}
    assert (len(chosen), max(Counter(chosen).values())) == (size, -(-size // 306))
    assert chosen == balanced("test", size, random.Random(3))


def test_every_screen_fits_the_prompt_and_looks_cover_every_option():
    assert all(w % 28 == h % 28 == 0 and w * h >= 262_144 and tokens(w, h) <= 756 for w, h in SCREENS)
    looks = [various(random.Random(seed), ("en", "zh"), SCREENS) for seed in range(200)]
    assert len({look.theme for look in looks}) == 6
    assert {(look.width, look.height) for look in looks} == set(SCREENS)
    assert various(random.Random(1), ("en",), SCREENS[:1], plain=True) == Look()


@pytest.mark.parametrize(
    "wrong", [{"train_size": 0}, {"languages": ("fr",)}, {"looks": "odd"}, {"screens": ((720, 1280),)}]
)
def test_settings_and_looks_that_make_no_sense(wrong):
    with pytest.raises(RecipeError):
        Settings(**wrong)
    with pytest.raises(RecipeError, match="theme='neon'"):
        Look(theme="neon")
