"""How a game looks: language, theme, font, layout, and a screen whose screenshot fits the prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from urllib.parse import urlencode

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import Deal

# The page's options and their values, as in game.js; the first is the page's default.
CHOICES: dict[str, tuple[str, ...]] = {
    "lang": ("en", "zh"),
    "theme": ("paper", "night", "forest", "candy", "slate", "contrast"),
    "font": ("sans", "serif", "mono", "narrow"),
    "light": ("top", "bottom"),
    "lamps": ("row", "column"),
    "size": ("regular", "large", "small"),
}
PATCH = 28  # pixels of a side that become one token in Qwen2.5-VL: patches of 14, merged two by two
# Qwen2.5-VL rounds a screen to multiples of 28 and makes one token of 28 x 28 pixels. 720 x 1280 would take 1,196,
# more than a prompt of 1,024 has room for; these take 448 to 748 and leave 276 or more for the text. Each is a multiple
# of 28 with more than 262,144 pixels, so no processor resizes it, and the model sees what was drawn.
SCREENS = ((560, 1008), (560, 1008), (448, 784), (616, 952), (476, 1036), (728, 728), (1008, 560))
DEFAULT_SCREEN = SCREENS[0]


@dataclass(frozen=True)
class Look:
    """The options of one episode; the values are those of `CHOICES`, sizes are CSS pixels of the screen."""

    lang: str = "en"
    theme: str = "paper"
    font: str = "sans"
    light: str = "top"
    lamps: str = "row"
    size: str = "regular"
    width: int = DEFAULT_SCREEN[0]
    height: int = DEFAULT_SCREEN[1]

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise RecipeError(
                    f"{name}={getattr(self, name)!r}", where=name, fix=f"choose from {', '.join(allowed)}"
                )

    def query(self) -> str:
        """The options as the page's address takes them."""
        return urlencode({name: getattr(self, name) for name in CHOICES})

    def facts(self) -> dict[str, str]:
        """For `extra_info` and results; `light` is the round's light there, so its place is `light_position`."""
        facts = {name: getattr(self, name) for name in CHOICES}
        return {"light_position": facts.pop("light"), "digit_size": facts.pop("size"), **facts}


def various(
    rng: random.Random, languages: Sequence[str], screens: Sequence[tuple[int, int]], *, plain: bool = False
) -> Look:
    """A look drawn at random, every option independently of the others; a plain one keeps the page's defaults."""
    chosen = {name: rng.choice(allowed) for name, allowed in CHOICES.items() if name != "lang" and not plain}
    width, height = rng.choice(list(screens))
    return Look(lang=rng.choice(list(languages)), width=width, height=height, **chosen)


def query(deals: Sequence[Deal], look: Look) -> str:
    """The address's query that shows these rounds in this look."""
    return f"deal={','.join(deal.code for deal in deals)}&{look.query()}"


def look_of(values: dict[str, object]) -> Look:
    """A look from a dict that may hold more."""
    return Look(**{field.name: values[field.name] for field in fields(Look) if field.name in values})


def tokens(width: int, height: int) -> int:
    """Tokens of a screenshot whose sides are multiples of 28 and which lies within min_pixels and max_pixels."""
    return -(-width // PATCH) * -(-height // PATCH)
