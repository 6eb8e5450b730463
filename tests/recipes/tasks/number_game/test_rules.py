"""Rules, deals, looks: what each light asks for, balance, and that train and test share nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import (
    LIGHTS,
    SCREENS,
    Deal,
    Look,
    all_deals,
    balanced,
    cells,
    drawn,
    parse_deal,
    points,
    query,
    tokens,
    various,
)


@pytest.mark.parametrize(
    ("code", "answer"),
    [("g374", 1), ("r374", 0), ("y374", 2), ("g123", 2), ("r987", 2), ("y987", 1), ("y195", 2), ("r519", 1)],
)
def test_each_light_asks_for_its_digit(code, answer):
    deal = parse_deal(code)
    assert deal.answer == answer
    assert deal.code == code


@pytest.mark.parametrize("code", ["", "g", "g12", "g1234", "b123", "g120", "g112", "gabc", "123", "G123", "g１23"])
def test_what_is_no_deal_is_refused(code):
    with pytest.raises(RecipeError, match="no deal"):
        parse_deal(code)


def test_points():
    assert (points(True), points(False)) == (10, -10)


def test_all_deals_are_each_there_once():
    deals = all_deals()
    assert len(deals) == len(set(deals)) == 3 * 9 * 8 * 7
    assert {deal.light for deal in deals} == {"green", "red", "yellow"}


def test_train_and_test_share_no_deal_and_leave_none_out():
    train, test = cells("train"), cells("test")
    assert {len(deals) for deals in train.values()} == {134}
    assert {len(deals) for deals in test.values()} == {34}
    both = [deal for split in (train, test) for deals in split.values() for deal in deals]
    assert len(set(both)) == len(both) == 1512
    for (light, answer), deals in test.items():
        assert all(deal.light == light and deal.answer == answer for deal in deals)


@pytest.mark.parametrize("size", [1, 9, 50, 288])
def test_a_selection_is_balanced_and_random(size):
    chosen = balanced("test", size, random.Random(3))
    assert len(chosen) == size
    counts = Counter((deal.light, deal.answer) for deal in chosen)
    assert max(counts.values()) - min(counts.get((light, p), 0) for light in LIGHTS for p in range(3)) <= 1
    assert set(chosen) <= {deal for deals in cells("test").values() for deal in deals}
    assert chosen != balanced("test", size, random.Random(4))
    assert chosen == balanced("test", size, random.Random(3))


def test_no_deal_comes_twice_before_all_came_once():
    assert max(Counter(balanced("test", 306, random.Random(0))).values()) == 1
    assert set(Counter(balanced("test", 612, random.Random(0))).values()) == {2}


def test_the_draw_of_a_seed_is_fixed():
    """Numbers from a run of the page, so that neither side can change alone."""
    assert [deal.code for deal in drawn(7, 3)] == ["g196", "r452", "r732"]
    assert [deal.digits for deal in drawn(7, 2, "ascending")] == [(1, 6, 9), (2, 4, 5)]
    assert [deal.digits for deal in drawn(7, 2, "descending")] == [(9, 6, 1), (5, 4, 2)]


def test_draws_are_even():
    counts = Counter(deal for seed in range(300) for deal in drawn(seed, 20))
    lights = Counter(deal.light for deal in counts.elements())
    assert all(abs(count - 2000) < 200 for count in lights.values())
    assert len(counts) > 1400


def test_every_screen_fits_the_prompt_and_is_never_resized():
    for width, height in SCREENS:
        assert width % 28 == height % 28 == 0
        assert 262_144 <= width * height <= 4_194_304
        assert tokens(width, height) <= 756
    assert tokens(720, 1280) == 26 * 46 == 1196


def test_looks_cover_every_option():
    looks = [various(random.Random(seed), ("en", "zh"), SCREENS) for seed in range(200)]
    assert {look.theme for look in looks} == {"paper", "night", "forest", "candy", "slate", "contrast"}
    assert {look.light for look in looks} == {"top", "bottom"}
    assert {(look.width, look.height) for look in looks} == set(SCREENS)
    assert various(random.Random(1), ("en",), SCREENS[:1], plain=True) == Look()


def test_the_address():
    deals = [Deal("green", (3, 7, 4)), Deal("red", (9, 5, 2))]
    expected = "deal=g374,r952&lang=zh&theme=night&font=sans&light=top&lamps=row&size=regular"
    assert query(deals, Look(lang="zh", theme="night")) == expected
    with pytest.raises(RecipeError, match="theme='neon'"):
        Look(theme="neon")
