"""The id of a row: a question is known by it in every file that a run writes.

It stands in the column `id` and in `extra_info.id`. It comes from the row's content, so that the same row has the same
id in every build, or from the user's file, where that has ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

ID: Final = "id"
"""The column, and the key in `extra_info`."""
DIGITS = 20
"""Hexadecimal digits of an id from content: 80 bits, so that among a million rows no two meet (1e12 / 2^81)."""


def content_id(
    data_source: str, messages: Sequence[Mapping[str, str]], ground_truth: str, images: Sequence[bytes] = ()
) -> str:
    """Return the id of a row by its data source, messages, ground truth and the bytes of its images."""
    digest = hashlib.sha256()
    parts = [data_source, *(part for each in messages for part in (each["role"], each["content"])), ground_truth]
    for part in [part.encode("utf-8", "surrogatepass") for part in parts] + list(images):
        digest.update(len(part).to_bytes(8, "big") + part)  # the lengths keep ("ab", "c") and ("a", "bc") apart
    return digest.hexdigest()[:DIGITS]


class UniqueIds:
    """Makes ids unique within a file: the second row with an id gets `-2` behind it, the third `-3`."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}  # id -> the last number that was put behind it

    def unique(self, own: str) -> str:
        """Return the id that a row gets whose own is this one."""
        name = own
        while name in self._last:
            self._last[own] += 1
            name = f"{own}-{self._last[own]}"
        self._last[name] = 1
        return name
