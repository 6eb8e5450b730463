"""What the tiny model is shown before GRPO: responses of careful, hasty and talkative players to real screenshots.

A careful player reads the lamp and the cards before answering and is right; a hasty one states the answer as asked and
guesses; a talkative one points at a card and states no answer. So the reward of a group differs, and GRPO has something
to find: that looking pays.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from recipes.tasks.number_game.prompt import gold_response
from recipes.tasks.number_game.rules import POSITIONS, RANKS, Deal

PLACES = ("left", "middle", "right")


@dataclass(frozen=True)
class Players:
    """Shares of the demonstrations; what is left of 1 is the talkative player's."""

    careful: float = 0.4
    hasty: float = 0.35


def careful(deal: Deal) -> str:
    """The lamp, the digits from left to right, the digit asked for, its place, the answer."""
    cards = ", ".join(map(str, deal.digits))
    chosen = f"{deal.digits[deal.answer]} is on the {PLACES[deal.answer]}"
    return f"{deal.light.capitalize()}: {cards}. {chosen}.\n{gold_response(deal.answer)}"


def talkative(position: int) -> str:
    """A card, but no answer."""
    return f"The {PLACES[position]} card."


def demonstration(deal: Deal, players: Players, rng: random.Random) -> str:
    """One player's response to a round."""
    drawn = rng.random()
    if drawn < players.careful:
        return careful(deal)
    guess = rng.choice(POSITIONS)
    return gold_response(guess) if drawn < players.careful + players.hasty else talkative(guess)


def phrases() -> Iterator[str]:
    """Texts that hold every clause of every demonstration."""
    for light in RANKS:
        for position in POSITIONS:
            digits = [4, 5, 6]
            wanted = digits.pop(RANKS[light])
            digits.insert(position, wanted)
            yield careful(Deal(light, (digits[0], digits[1], digits[2])))
    yield from map(talkative, POSITIONS)
