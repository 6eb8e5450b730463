"""The contract of a reward's answer: a finite score, its parts, and the accuracy that it states.

A response is any `str`, the empty one too; a ground truth is what its row has. A reward answers with a finite number,
or with a dict that has a finite score (`score`; in EasyR1's own form `overall`) and the same keys each time. Accuracy
is the value under `acc` or `accuracy`, in [0, 1], and never derived from the score; a reward that states none is
measured by its mean score. Training, validation and evaluation read every answer through `Contract`.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from recipes.errors import RecipeError, abbreviated

ACCURACY = ("acc", "accuracy")
"""Names of the accuracy: verl's, by which it logs `val-core/<source>/acc/mean@<n>`, and EasyR1's."""
SHOWN = 80
"""Most characters of a response in a message."""
SAME = 1e-6
"""Scores that differ by less are equal: sums such as 0.1 + 0.2 + 0.7 differ in their last bits, in float32 by 1e-7."""
RIGHT = 1.0 - SAME
"""Least accuracy of a right response: rounding leaves a sum such as 0.7 + 0.2 + 0.1 a little below 1, or above."""
MOST = 1e18
"""Largest score: its square, of which a group's deviation is made, is finite in float32."""
ADVICE = "return a finite number, or a dict with a finite {key!r} and the same keys for every response"


class RewardError(RecipeError):
    """An answer that breaks the contract, or a reward that raised; on one line, since trainers log it so."""

    def __str__(self) -> str:
        return f"{self.what} ({self.where}); {self.fix}"

    def of_row(self, row: Any) -> RewardError:
        """The same error, with `row <id>` at the beginning of its `where`; unchanged if the id is not known."""
        return self if row is None else RewardError(self.what, where=f"row {row}, {self.where}", fix=self.fix)


@dataclass(frozen=True, slots=True)
class Answer:
    """A reward's answer for one response."""

    score: float  # the score that training uses
    accuracy: float | None  # the accuracy that the reward states, in [0, 1]; None where it states none
    parts: dict[str, Any] = field(default_factory=dict)  # all else, NumPy's and torch's scalars as Python's

    @property
    def value(self) -> float:
        """The accuracy, or the score of a reward that states none."""
        return self.score if self.accuracy is None else self.accuracy

    @property
    def stated(self) -> dict[str, float]:
        """The accuracy under both names, where one is stated."""
        return {} if self.accuracy is None else dict.fromkeys(ACCURACY, self.accuracy)

    def as_verl(self) -> dict[str, Any]:
        """The answer as verl takes it: `score`, the accuracy, and the parts."""
        parts = {name: value for name, value in self.parts.items() if name != "reward"}  # verl's own name of the score
        return {**parts, **self.stated, "score": self.score}


def as_number(value: Any) -> float | None:
    """A real number of at most `MOST`, NumPy's and torch's scalars among them, as a float; None for anything else."""
    plain = _plain(value)
    value = plain[0] if plain is not value and isinstance(plain, list) and len(plain) == 1 else plain
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except (OverflowError, ValueError):
        return None
    return number if abs(number) <= MOST else None


def stated_accuracy(parts: Mapping[str, Any]) -> float | None:
    """The accuracy that a reward's answer, or a line of a dump, states; None where it states none.

    Raises ValueError where it is no number in [0, 1], or `acc` and `accuracy` differ.
    """
    stated: list[float] = []
    for name in (name for name in ACCURACY if name in parts):
        value = as_number(parts[name])
        if value is None or not -SAME <= value <= 1.0 + SAME:
            raise ValueError(f"{name} is {parts[name]!r}, not a number in [0, 1]")
        stated.append(1.0 if is_right(value) else max(value, 0.0))
    if stated and max(stated) - min(stated) > SAME:
        raise ValueError(f"acc is {parts['acc']!r} and accuracy {parts['accuracy']!r}: state one accuracy")
    return stated[0] if stated else None


def is_right(accuracy: float | None) -> bool | None:
    """Return whether the accuracy is 1, so that the response is right; None where the reward states none."""
    return None if accuracy is None else accuracy >= RIGHT


class Contract:
    """Reads the answers of one reward function, and requires that all have the same keys.

    Args:
        function: its file and line appear in messages.
        key: the key of the score in a dict: `score`, where a plain number will do too, or `overall`.
    """

    def __init__(self, function: Callable[..., Any], key: str = "score") -> None:
        plain = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
        code = getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)
        self._file = getattr(code, "co_filename", type(function).__name__)
        self.place = f"{self._file}:{getattr(code, 'co_firstlineno', 0)} {getattr(function, '__name__', '')}"
        """The file, line and name of the function."""
        self._key = key
        self._keys: dict[str, set[str]] = {}
        self.one_kind = True
        """A part is a number always or a text always: verl averages it, and a text among numbers ends a validation."""
        self._texts: dict[str, bool] = {}  # name of a part -> whether it is a text

    def read(self, result: Any, response: str) -> Answer:
        """The answer for a response. Raises RewardError where it breaks the contract."""
        if not isinstance(result, Mapping):
            if self._key != "score" or as_number(result) is None:
                raise self._error(f"the reward returned {abbreviated(result)}", response)
            result = {self._key: result}
        if self._key not in result:
            raise self._error(f"the reward returned no {self._key!r}, but {sorted(map(str, result))}", response)
        if (score := as_number(result[self._key])) is None:
            what = f"the reward's {self._key!r} is {abbreviated(result[self._key])}, not a finite number"
            raise self._error(what, response)
        try:
            accuracy = stated_accuracy(result)
        except ValueError as error:
            raise self._error(f"the reward's {error}", response) from None
        keys = set(map(str, result))
        if missing := self._keys.setdefault("all", keys) ^ keys:  # atomic: verl calls in several threads
            raise self._error(f"the reward's answers have {sorted(missing)} sometimes, and sometimes not", response)
        parts = {str(name): _plain(value) for name, value in result.items() if name not in {self._key, *ACCURACY}}
        for name, value in parts.items():
            if not isinstance(value, str | None) and (not isinstance(value, int | float) or as_number(value) is None):
                what = f"the reward's {name!r} is {abbreviated(value)}, neither a finite number, a text nor None"
                raise self._error(what, response, f"return {name} as one of these, or leave it out")
            is_text = isinstance(value, str)
            if self.one_kind and value is not None and self._texts.setdefault(name, is_text) != is_text:
                what = f"the reward's {name!r} is {abbreviated(value)}; a text here and a number there, or the reverse"
                raise self._error(what, response, f"return {name} as a number always, or as a text always")
        return Answer(score, accuracy, parts)

    def raised(self, error: BaseException, response: str) -> RewardError:
        """The error for a reward that raised instead of answering."""
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == self._file]
        what = f"the reward raised {type(error).__name__}: {' '.join(str(error).split())}"
        where = self.where(response, f"{self._file}:{lines[-1]}" if lines else "")
        return RewardError(what, where=where, fix="a reward must judge any text: mend it")

    def _error(self, what: str, response: str, fix: str = "") -> RewardError:
        return RewardError(what, where=self.where(response), fix=fix or ADVICE.format(key=self._key))

    def where(self, response: str, place: str = "") -> str:
        """The place of an error: `place`, by default the reward function's, and the beginning of the response."""
        return f"{place or self.place}, response {response[:SHOWN]!r}"


def _plain(value: Any) -> Any:
    """A value of NumPy or torch as Python's own; what cannot be turned into one stays."""
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):
        return value.tolist()
    return value
