"""What a player needs of a screen, whether it is a page in Chromium or an Android device."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from recipes.tasks.number_game.looks import Look
from recipes.tasks.number_game.rules import Deal


class ScreenLost(Exception):
    """The screen went away: a device dropped out, a browser died. What it was playing can be played elsewhere."""


class TapLost(Exception):
    """A tap changed nothing on the screen, after a second try."""


class Outcome(NamedTuple):
    """What a tap on a card did, seen on the screen or in the page: the game's own `verdict` (right or wrong)."""

    verdict: str
    seen: str  # "page" or "pixels"


class Screen(Protocol):
    """One screen, used by one thread.

    Its methods raise `ScreenLost` where it went away, `TapLost` where a tap did nothing, and `RecipeError` for what a
    user can mend, such as a page that does not load.
    """

    name: str

    def open(self, deals: list[Deal], look: Look) -> None:
        """Load the page with these rounds and wait until the first one can be played."""

    def screenshot(self) -> bytes:
        """The screen as PNG."""

    def choose(self, position: int) -> Outcome:
        """Tap a card and wait for the page's feedback."""

    def advance(self) -> None:
        """Tap on to the next round, or to the final score, and wait for it."""

    def deal(self) -> Deal | None:
        """The round on the screen as the page itself states it; None where it cannot be asked."""

    def score(self) -> int | None:
        """The score as the page itself states it; None where it cannot be asked."""

    def close(self) -> None:
        """Free what it holds; never raises for a screen that is gone."""
