"""Did you mean: the nearest known name to a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like `name`, or None. Whole dotted paths are compared, then their last parts.

    A key at the wrong place (`rollout.n` for `worker.rollout.n`) is found by its ending.
    """
    names = list(known)
    ending = [other for other in names if other.endswith(f".{name}")]
    if len(ending) == 1:
        return ending[0]
    last = name.rsplit(".", 1)[-1]
    moved = [other for other in names if other.rsplit(".", 1)[-1] == last]
    if moved:
        return max(moved, key=lambda other: SequenceMatcher(None, name, other).ratio())
    whole = get_close_matches(name, names, n=1, cutoff=0.8)
    if whole:
        return whole[0]
    group = name.rpartition(".")[0]
    siblings = {other.rsplit(".", 1)[-1]: other for other in names if other.rpartition(".")[0] == group}
    close = get_close_matches(last, siblings, n=1, cutoff=cutoff)
    if close:
        return siblings[close[0]]
    anywhere = get_close_matches(name, names, n=1, cutoff=cutoff)
    return anywhere[0] if anywhere else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or an empty text."""
    found = nearest(name, known)
    return f"did you mean {found}?" if found else ""


def edits(left: str, right: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours between two texts (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(right, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
