"""Which questions a report shows: some of every kind, chosen by a fixed lot and not by their place in the file."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Hashable
from itertools import chain, zip_longest

PER_KIND = 60
# What changed sides between two models is what a comparison is read for.
CHANGED = ("won", "lost")
PER_CHANGED_KIND = 300


class Picker:
    """`offer` every question with its outcome and reasons, then take `rows`; holds row numbers only."""

    def __init__(self) -> None:
        self._heaps: dict[Hashable, list[tuple[int, int]]] = {}

    def offer(self, row: int, outcome: str, reasons: tuple[str, ...]) -> None:
        """One question; rare kinds are kept whole, common ones by lot."""
        lot = int.from_bytes(hashlib.sha256(str(row).encode()).digest()[:6], "big")
        heap = self._heaps.setdefault((outcome, reasons), [])
        heapq.heappush(heap, (-lot, row))
        if len(heap) > (PER_CHANGED_KIND if outcome in CHANGED else PER_KIND):
            heapq.heappop(heap)

    def rows(self, most: int) -> list[int]:
        """At most `most` rows, in the file's order: those that changed sides first, then of every kind in turn."""
        kinds = {kind: [row for _, row in sorted(heap, reverse=True)] for kind, heap in self._heaps.items()}
        changed = [rows for (outcome, _), rows in kinds.items() if outcome in CHANGED]
        others = [rows for (outcome, _), rows in kinds.items() if outcome not in CHANGED]
        turns = chain(_in_turn(changed), _in_turn(others))
        return sorted(row for row, _ in zip(turns, range(most), strict=False))


def _in_turn(kinds: list[list[int]]) -> list[int]:
    return [row for turn in zip_longest(*kinds) for row in turn if row is not None]
