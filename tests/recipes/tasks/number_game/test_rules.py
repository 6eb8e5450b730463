"""Deals and splits; that the page judges in the same way is for test_chromium.py."""

import random
from collections import Counter

import pytest

from recipes.tasks.number_game.rules import LIGHTS, balanced, cells, parse_deal
from tests.mistakes import mistake


@pytest.mark.parametrize("code", ["", "g", "g12", "g1234", "b123", "g120", "g112", "gabc", "123", "G123", "g１23"])
def test_what_is_no_deal_is_refused(code):
    mistake(lambda: parse_deal(code))


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
