"""What a Countdown data set is made of, and the two presets."""

from __future__ import annotations

from dataclasses import dataclass

from recipes.errors import RecipeError
from recipes.tasks.countdown.buckets import SHARES
from recipes.tasks.countdown.solver import check_exact


@dataclass(frozen=True)
class Settings:
    """Problems of a data set; the defaults are those of the hub's `Jiayi-Pan/Countdown-Tasks-3to4`.

    Args:
        sizes: how many numbers a problem has; each size is equally likely. (The hub's set has 490,364 rows of 40.07
            bytes on average, 12 and 8 for each number: 49% of its problems have three numbers, 51% have four.)
        min_number, max_number: range of the numbers, both ends included.
        min_target, max_target: range of the target, both ends included.
        train_size, test_size: problems in each split.
        train_buckets, test_buckets: where the multisets of numbers of each split come from (see `buckets.py`).
    """

    sizes: tuple[int, ...] = (3, 4)
    min_number: int = 1
    max_number: int = 99
    min_target: int = 1
    max_target: int = 99
    train_size: int = 4096
    test_size: int = 512
    train_buckets: tuple[str, ...] = ("pretrain", "train")
    test_buckets: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        for low, high in (("min_number", "max_number"), ("min_target", "max_target")):
            if not 1 <= getattr(self, low) <= getattr(self, high):
                raise RecipeError(
                    f"{low}={getattr(self, low)} and {high}={getattr(self, high)} are not a range of numbers from 1 up",
                    where=f"{low}, {high}",
                    fix=f"1 <= {low} <= {high}",
                )
        for name in ("train_size", "test_size"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name}={getattr(self, name)} is not positive", where=name, fix="ask for 1 or more")
        if not self.sizes or len(set(self.sizes)) != len(self.sizes):
            raise RecipeError(f"sizes={self.sizes} is empty or repeats a size", where="sizes", fix="for instance 3,4")
        for size in self.sizes:
            check_exact(size, self.max_number, self.max_target)
        unknown = (set(self.train_buckets) | set(self.test_buckets)) - set(SHARES)
        if unknown or set(self.train_buckets) & set(self.test_buckets):
            raise RecipeError(
                f"train_buckets={self.train_buckets} and test_buckets={self.test_buckets} overlap or are not known",
                where="train_buckets, test_buckets",
                fix=f"choose different ones from {', '.join(SHARES)}",
            )


PRESETS = {
    "paper": Settings(),
    # The ranges that the tiny model was pretrained on; its pretraining had other multisets of numbers than both splits.
    "tiny": Settings(
        sizes=(3,), max_number=30, max_target=60, train_size=2048, test_size=256, train_buckets=("train",)
    ),
}
