"""When a number or a value that a program returned counts as the expected one."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

EXACT = 2.0**52  # floats above have no fractions, and may stand for several integers
TOLERANCE = 1e-6  # of floats, absolute and relative to the expected one
MAX_EXPONENT = 5000  # of a Decimal; as a fraction one of 10 ** 9 would fill the memory
LESS_THAN_A_WHOLE = 0.5  # but never as much as this, so that different integers are different


def close(ours: Any, theirs: Any) -> bool:
    """Are these finite numbers equal within the tolerance?"""
    size = min(max(1.0, abs(theirs)), 1 / TOLERANCE)  # beyond which less than a whole is the smaller bound
    return abs(ours - theirs) <= TOLERANCE * size and abs(ours - theirs) < LESS_THAN_A_WHOLE


def same_value(value: Any, expected: Any) -> bool:
    """Is a return value the expected JSON?

    Tuples count as lists, keys as text; integers are exact, floats within the tolerance where a float is expected, and
    True is no number.
    """
    if isinstance(value, dict):
        return isinstance(expected, dict) and _same_items(value, expected)
    if isinstance(value, (list, tuple)):
        same_length = isinstance(expected, list) and len(value) == len(expected)
        return same_length and all(map(same_value, value, expected))
    if isinstance(value, str) or isinstance(expected, str):
        return isinstance(value, str) and isinstance(expected, str) and str.__eq__(value, expected)
    if isinstance(value, (bool, type(None))) or isinstance(expected, (bool, type(None))):
        return value is expected
    if isinstance(expected, (list, dict)) or not _is_number(value):
        return False
    if not isinstance(expected, float) or not (math.isfinite(expected) and abs(value) < math.inf):
        return bool(value == expected)
    if isinstance(value, float) and max(abs(value), abs(expected)) < EXACT:
        return close(value, expected)
    return close(Fraction(value), Fraction(expected))


def _is_number(value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite() and abs(value.adjusted()) < MAX_EXPONENT
    return isinstance(value, (int, float, Fraction))


def _same_items(items: Any, expected: dict[str, Any]) -> bool:
    named = {key if isinstance(key, str) else _json_key(key): item for key, item in items.items()}
    if len(items) != len(expected) or named.keys() != expected.keys():
        return False
    return all(same_value(item, expected[key]) for key, item in named.items())


def _json_key(key: Any) -> str:
    """The key that JSON has for a key that is no text."""
    constants = {None: "null", True: "true", False: "false"}
    return constants[key] if key is None or isinstance(key, bool) else repr(key)
