"""Rounds: every deal there is, which of them are held out for testing, balanced selections, and the page's own draw."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from itertools import permutations

from recipes.tasks.number_game.rules import POSITIONS, RANKS, Deal

LIGHTS = tuple(RANKS)
# Deals of each cell (a light and an answer) that belong to the test split; a cell has 168.
HELD_OUT = 34


def all_deals() -> list[Deal]:
    """The 1,512 deals: three lights, and three different digits from 1 to 9 in every order."""
    return [Deal(light, digits) for light in LIGHTS for digits in permutations(range(1, 10), 3)]


def cells(split: str) -> dict[tuple[str, int], list[Deal]]:
    """(light, answer) -> the deals of that cell which belong to a split.

    A deal belongs to the same split on every machine and for every seed: the 34 of a cell whose codes have the
    smallest SHA-256 are held out. Train and test therefore share no triple of light, digits and order.

    Args:
        split: `train` or `test`.
    """
    found: dict[tuple[str, int], list[Deal]] = {(light, position): [] for light in LIGHTS for position in POSITIONS}
    for deal in all_deals():
        found[deal.light, deal.answer].append(deal)
    part = slice(HELD_OUT) if split == "test" else slice(HELD_OUT, None)
    return {cell: sorted(deals, key=_hash)[part] for cell, deals in found.items()}


def balanced(split: str, size: int, rng: random.Random) -> list[Deal]:
    """`size` deals of a split in random order, evenly over lights and answers.

    The nine cells differ by one deal at most, and so do the times that a cell's deals are used: none comes again
    before all have come once.
    """
    streams = {cell: _cycle(deals, rng) for cell, deals in cells(split).items()}
    order = rng.sample(list(streams), len(streams))
    chosen = [next(streams[order[index % len(order)]]) for index in range(size)]
    rng.shuffle(chosen)
    return chosen


def drawn(seed: int, rounds: int, order: str = "shuffled") -> list[Deal]:
    """The rounds that the page draws from a seed, for a driver that cannot read the page's state.

    Args:
        seed: 0 to 2**32 - 1.
        rounds: how many.
        order: the page's option of that name: shuffled, ascending or descending.
    """
    number = _mulberry32(seed)
    return [_draw(number, order) for _ in range(rounds)]


def _draw(number: Callable[[], float], order: str) -> Deal:
    light = LIGHTS[int(number() * 3)]
    pool = list(range(1, 10))
    digits = [pool.pop(int(number() * len(pool))) for _ in POSITIONS]
    if order != "shuffled":
        digits.sort(reverse=order == "descending")
    left, middle, right = digits
    return Deal(light, (left, middle, right))


def _mulberry32(seed: int) -> Callable[[], float]:
    """Numbers from 0 up to 1, as game.js makes them (Mulberry32, public domain, by Tommy Ettinger)."""
    state, mask = seed & 0xFFFFFFFF, 0xFFFFFFFF

    def number() -> float:
        nonlocal state
        state = (state + 0x6D2B79F5) & mask
        mixed = (state ^ (state >> 15)) * (state | 1) & mask
        mixed ^= mixed + ((mixed ^ (mixed >> 7)) * (mixed | 61) & mask) & mask
        return (mixed ^ (mixed >> 14)) / 2**32

    return number


def _cycle(deals: list[Deal], rng: random.Random) -> Iterator[Deal]:
    while True:
        yield from rng.sample(deals, len(deals))


def _hash(deal: Deal) -> bytes:
    return hashlib.sha256(deal.code.encode()).digest()
