"""Rules, deals, appearances and settings of the number game."""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any, NamedTuple
from urllib.parse import urlencode

from recipes.errors import RecipeError

START, STEP = 100, 10
POSITIONS = (0, 1, 2)  # left, middle, right
# Rank of the digit that each light asks for, among the three in ascending order.
RANKS = {"green": 2, "red": 0, "yellow": 1}
LETTERS = {light[0]: light for light in RANKS}


class Deal(NamedTuple):
    """One round: the light that is on, and the digits on the cards from left to right."""

    light: str
    digits: tuple[int, int, int]

    @property
    def answer(self) -> int:
        """Position of the card that the light asks for."""
        return self.digits.index(sorted(self.digits)[RANKS[self.light]])

    @property
    def code(self) -> str:
        """`g374`: the light's first letter and the digits, as the page's option `deal` reads them."""
        return self.light[0] + "".join(map(str, self.digits))


def parse_deal(code: str) -> Deal:
    """The deal of a code such as `g374`. Raises RecipeError where it is none."""
    if not re.fullmatch("[gry][1-9]{3}", code) or len(set(code)) != 4:
        raise RecipeError(f"{code!r} is no deal", where="deal", fix="a light (g, r, y) and three digits: g374")
    left, middle, right = map(int, code[1:])
    return Deal(LETTERS[code[0]], (left, middle, right))


def points(right: bool) -> int:
    """The points that a choice adds to the score."""
    return STEP if right else -STEP


LIGHTS = tuple(RANKS)
# Deals of each cell (a light and an answer) that belong to the test split; a cell has 168.
HELD_OUT = 34


def all_deals() -> list[Deal]:
    """The 1,512 deals: three lights, and three different digits from 1 to 9 in every order."""
    return [Deal(light, digits) for light in LIGHTS for digits in permutations(range(1, 10), 3)]


def cells(split: str) -> dict[tuple[str, int], list[Deal]]:
    """(light, answer) -> the deals of that cell which belong to a split, `train` or `test`.

    On every machine and for every seed the `HELD_OUT` of a cell whose codes have the smallest SHA-256 are of `test`.
    """
    every: dict[tuple[str, int], list[Deal]] = {(light, position): [] for light in LIGHTS for position in POSITIONS}
    for deal in all_deals():
        every[deal.light, deal.answer].append(deal)
    part = slice(HELD_OUT) if split == "test" else slice(HELD_OUT, None)

    def digest(deal: Deal) -> bytes:
        return hashlib.sha256(deal.code.encode()).digest()

    return {cell: sorted(deals, key=digest)[part] for cell, deals in every.items()}


def balanced(split: str, size: int, rng: random.Random) -> list[Deal]:
    """`size` deals of a split in random order: the same number of each (light, answer) cell, or one more.

    A cell repeats a deal only after using all its deals equally often.
    """

    def cycle(deals: list[Deal]) -> Iterator[Deal]:
        while True:
            yield from rng.sample(deals, len(deals))

    streams = {cell: cycle(deals) for cell, deals in cells(split).items()}
    order = rng.sample(list(streams), len(streams))
    chosen = [next(streams[order[index % len(order)]]) for index in range(size)]
    rng.shuffle(chosen)
    return chosen


# Options of the page that an episode's appearance sets, with their values as in game.js; the first is the default.
CHOICES: dict[str, tuple[str, ...]] = {
    "lang": ("en", "zh"),
    "theme": ("paper", "night", "forest", "candy", "slate", "contrast"),
    "font": ("sans", "serif", "mono", "narrow"),
    "light": ("top", "bottom"),
    "lamps": ("row", "column"),
    "size": ("regular", "large", "small"),
}
# With looks="held-out" these themes are drawn for the test split only, and the others for training only.
HELD_OUT_THEMES = ("forest", "slate")
PATCH = 28  # pixels of a side that become one token in Qwen2.5-VL: patches of 14, merged two by two
# Multiples of 28 with more than 262,144 pixels, which no processor resizes, of 448 to 748 tokens: a prompt of 1,024 has
# room for 276 or more of text. 720 x 1280 would take 1,196.
SCREENS = ((560, 1008), (560, 1008), (448, 784), (616, 952), (476, 1036), (728, 728), (1008, 560))
DEFAULT_SCREEN = SCREENS[0]


@dataclass(frozen=True)
class Appearance:
    """The options of one episode; the values are those of `CHOICES`, width and height are CSS pixels."""

    lang: str = "en"
    theme: str = "paper"
    font: str = "sans"
    light: str = "top"
    lamps: str = "row"
    size: str = "regular"
    width: int = DEFAULT_SCREEN[0]
    height: int = DEFAULT_SCREEN[1]

    def facts(self) -> dict[str, str]:
        """The options for `extra_info` and results; `light` becomes `light_position`: `light` is a colour there."""
        facts = {name: getattr(self, name) for name in CHOICES}
        return {"light_position": facts.pop("light"), "digit_size": facts.pop("size"), **facts}


def query(deals: Sequence[Deal], appearance: Appearance) -> str:
    """The address's query that shows these rounds in this appearance."""
    options = urlencode({name: getattr(appearance, name) for name in CHOICES})
    return f"deal={','.join(deal.code for deal in deals)}&{options}"


@dataclass(frozen=True)
class Settings:
    """Sizes and appearances of a data set."""

    train_size: int = 1152  # screenshots: nine batches of 128, and 128 of each cell, so that no deal comes twice
    test_size: int = 288  # 32 of each cell
    rounds: int = 10  # in an episode
    languages: tuple[str, ...] = ("en",)  # of the page, one drawn for each episode
    # "various" draws the appearance for each episode; in "held-out" no theme is in both splits; "plain" is the first
    # value of each option.
    looks: str = "various"
    screens: tuple[tuple[int, int], ...] = SCREENS  # widths and heights in CSS pixels, one drawn for each episode
    test_screens: tuple[tuple[int, int], ...] = ()  # screens of the test split; if empty, `screens`

    def appearance(self, split: str, rng: random.Random) -> Appearance:
        """The appearance of one episode of a split, every option drawn independently of the others."""
        choices = {name: allowed for name, allowed in CHOICES.items() if name != "lang" and self.looks != "plain"}
        if self.looks == "held-out":
            themes = CHOICES["theme"]
            choices["theme"] = tuple(each for each in themes if (each in HELD_OUT_THEMES) == (split == "test"))
        chosen = {name: rng.choice(allowed) for name, allowed in choices.items()}
        width, height = rng.choice(self.test_screens if split == "test" and self.test_screens else self.screens)
        return Appearance(lang=rng.choice(self.languages), width=width, height=height, **chosen)

    def facts(self) -> dict[str, Any]:
        """The settings, and the number of deals in each split, for the manifest."""
        return asdict(self) | {"deals": {split: sum(map(len, cells(split).values())) for split in ("train", "test")}}


PRESETS = {
    "full": Settings(),
    # For a tiny model on CPUs: 40 to 60 tokens. Testing has deals, themes and screens that training has not.
    "tiny": Settings(
        train_size=144,
        rounds=4,
        looks="held-out",
        screens=((140, 224), (168, 224), (168, 280)),
        test_screens=((140, 252), (168, 252)),
    ),
}
