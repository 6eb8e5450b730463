"""What a data set of the number game is made of, and the two presets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.deals import cells
from recipes.tasks.number_game.looks import CHOICES, PATCH, SCREENS


@dataclass(frozen=True)
class Settings:
    """Sizes and looks of a data set.

    Args:
        train_size, test_size: screenshots in each split. 1,152 is nine batches of 128 and 128 of each cell of light
            and answer, so that no deal comes twice; 288 is 32 of each cell.
        rounds: of an episode.
        languages: of the page, one drawn for each episode.
        looks: "various" draws theme, font, light position, lamps and digit size for each episode; "plain" is one look.
        screens: widths and heights in CSS pixels, one drawn for each episode; multiples of 28 are never resized.
    """

    train_size: int = 1152
    test_size: int = 288
    rounds: int = 10
    languages: tuple[str, ...] = ("en",)
    looks: str = "various"
    screens: tuple[tuple[int, int], ...] = SCREENS

    def __post_init__(self) -> None:
        for name, most in (("train_size", 10**6), ("test_size", 10**6), ("rounds", 100)):
            if not 1 <= getattr(self, name) <= most:
                raise RecipeError(f"{name}={getattr(self, name)}", where=name, fix=f"ask for 1 to {most:,}")
        if self.looks not in ("various", "plain"):
            raise RecipeError(f"looks={self.looks!r}", where="looks", fix="choose from various, plain")
        unknown = set(self.languages) - set(CHOICES["lang"])
        if unknown or not self.languages:
            raise RecipeError(f"languages={self.languages}", where="languages", fix="choose from en, zh")
        for width, height in self.screens:
            if width % PATCH or height % PATCH or min(width, height) < 5 * PATCH:
                raise RecipeError(
                    f"a screen of {width} x {height}", where="screens", fix="give multiples of 28, from 140 up"
                )

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self) | {"deals": {split: sum(map(len, cells(split).values())) for split in ("train", "test")}}


PRESETS = {
    "full": Settings(),
    # For a tiny model on CPUs: 140 x 224 pixels are 40 tokens. These files are in the repository: under a megabyte.
    "tiny": Settings(train_size=90, test_size=36, looks="plain", screens=((140, 224),)),
}
