"""Numbers of a report by their JSON pointer, in one format wherever they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FORMATS: dict[str, Callable[[Any], str]] = {
    "percent": lambda value: f"{100 * value:.1f}%",
    "points": lambda value: f"{100 * value:+.1f} points",
    "bare_points": lambda value: f"{100 * value:+.1f}",
    "signed": lambda value: f"{value:+.3f}",
    "decimal": lambda value: f"{value:.3f}",
    "tokens": lambda value: f"{value:.1f}",
    "signed_tokens": lambda value: f"{value:+.1f}",
    "count": lambda value: f"{value:,}",
    "rounded": lambda value: f"{value:.0f}",
    "p_value": lambda value: f"{value:.2g}",
    "seconds": lambda value: f"{value:.1f} s",
}
# The style of an interval's ends beside a value of some style.
INTERVAL_STYLES = {"points": "bare_points"}
ABSENT = "–"


def lookup(report: Any, pointer: str) -> Any:
    """The value at a pointer such as `/models/base/hash`; None where any part is None or missing."""
    value = report
    for part in pointer.split("/")[1:]:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def show(report: Any, pointer: str, style: str) -> str:
    """The formatted value at a pointer; a dash where there is none."""
    value = lookup(report, pointer)
    return ABSENT if value is None else FORMATS[style](value)
