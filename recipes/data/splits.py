"""Held-out splits: which problems and which rows belong to training and which to validation."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Shares in percent. RL training gets fewer than pretraining because each of its problems is sampled many times.
SHARES = {"pretrain": 50, "train": 30, "test": 20}


def bucket_of(key: str) -> str:
    """`pretrain`, `train` or `test`, by the SHA-256 of the key: the same on every machine and for every seed.

    Args:
        key: what makes a problem this problem, written in one way only.
    """
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    for name, share in SHARES.items():
        if point < share:
            return name
        point -= share
    raise AssertionError("the shares do not sum to 100")


MOST_VALIDATION = 500
"""Validation rows of one data source: more cost time at every validation and tell little more."""


class Prompts:
    """The prompts of many rows, as numbers: which rows repeat one another, and which must not be split.

    A prompt is its messages, without regard to case and blanks, and the bytes of its images. Rows with the same prompt
    are one group, and so are rows that share an image: a picture that was trained on says little in validation.
    """

    def __init__(self, seed: int) -> None:
        self._salt = seed.to_bytes(8, "little")
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._sources = array("L")  # of each row the number of its data source
        self._prompts = array("Q")  # of each row the fingerprint of its prompt
        self._keys = array("Q")  # of each row the fingerprints of its images, or that of its text where it has none
        self._counts = array("L")  # of each row how many keys it has

    def add(self, data_source: str, texts: Iterable[str], images: Sequence[bytes] = ()) -> None:
        """Take in a row: its data source, the contents of its messages, its encoded images."""
        if data_source not in self._numbers:
            self._numbers[data_source] = len(self._names)
            self._names.append(data_source)
        text = "\0".join(" ".join(content.casefold().split()) for content in texts).encode()
        keys = [self._fingerprint(image) for image in images]
        prompt = self._fingerprint(text + b"\0" + array("Q", keys).tobytes())
        self._sources.append(self._numbers[data_source])
        self._prompts.append(prompt)
        self._keys.extend(keys or [prompt])
        self._counts.append(len(keys) or 1)

    def _fingerprint(self, data: bytes) -> int:
        """64 bits of the data and the seed."""
        return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=self._salt).digest(), "little")

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def different(self) -> int:
        """Different prompts."""
        import numpy as np

        return len(np.unique(np.array(self._prompts)))

    def shared_with(self, other: Prompts) -> np.ndarray:
        """(rows,) booleans: whose prompt, or one of whose images, is in `other`."""
        import numpy as np

        hits = np.isin(np.array(self._keys), np.array(other._keys))
        starts = np.cumsum([0, *self._counts[:-1]])
        return np.logical_or.reduceat(hits, starts) if len(hits) else np.zeros(0, bool)

    def held_out(self, share: float) -> np.ndarray:
        """(rows,) booleans: which rows validate, chosen group by group, in the order of their fingerprints.

        Of each data source validate at most `share` of its rows and of its groups, at most `MOST_VALIDATION` of both.
        A source whose every group has more rows gives its smallest one; a source with one group alone gives none.
        """
        import numpy as np

        if not len(self):
            return np.zeros(0, bool)
        group, source = self._groups(), np.array(self._sources)
        codes, rows = np.unique(group * len(self._names) + source, return_counts=True)
        parts = zip(*(each.tolist() for each in (*divmod(codes, len(self._names)), rows)), strict=True)
        quota = _Quota([list(part) for _, part in groupby(parts, key=lambda part: part[0])], share)
        for members in quota.members:
            if not quota.room:
                break
            quota.take(members)
        for number in sorted(range(len(self._names)), key=self._names.__getitem__):  # not as the rows name them
            if not quota.taken_groups[number]:
                quota.take_smallest(number)
        return np.isin(group, list(quota.chosen))

    def _groups(self) -> np.ndarray:
        """(rows,) number of each row's group; groups are numbered in the order of their smallest key."""
        import numpy as np
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        unique, key = np.unique(np.array(self._keys), return_inverse=True)
        row = np.repeat(np.arange(len(self)), np.array(self._counts, dtype=np.int64))
        size = len(self) + len(unique)
        graph = coo_matrix((np.ones(len(row), bool), (row, len(self) + key)), shape=(size, size))
        _, labels = connected_components(graph, directed=False)
        of_key = labels[len(self) :]  # in ascending order of keys, so a group's first key is its smallest
        _, first = np.unique(of_key, return_index=True)
        rank = np.argsort(np.argsort(first))
        return rank[labels[: len(self)]]


class _Quota:
    """The groups chosen so far, and how many groups and rows of each data source may be chosen.

    Args:
        members: of each group, (group, data source, rows) for each of its data sources.
    """

    def __init__(self, members: Sequence[Sequence[tuple[int, int, int]]], share: float) -> None:
        self.members = members
        groups: Counter[int] = Counter()
        rows: Counter[int] = Counter()
        for _, source, count in chain.from_iterable(members):
            groups[source] += 1
            rows[source] += count

        def some(count: int) -> int:
            return min(MOST_VALIDATION, max(1, round(share * count)))

        self.groups = {source: min(some(count), count - 1) for source, count in groups.items()}
        self.rows = {source: some(count) for source, count in rows.items()}
        self.taken_groups: Counter[int] = Counter()
        self.taken_rows: Counter[int] = Counter()
        self.chosen: set[int] = set()
        self.room = {source for source, count in self.groups.items() if count}
        """Data sources of which more may be chosen."""

    def take(self, members: Sequence[tuple[int, int, int]], too_large_for: int | None = None) -> bool:
        """Choose a group if all its data sources have room for it; the one named may give more rows than its share."""
        for _, source, rows in members:
            too_many = self.taken_rows[source] + rows > self.rows[source] and source != too_large_for
            if too_many or self.taken_groups[source] >= self.groups[source]:
                return False
        for group, source, rows in members:
            self.chosen.add(group)
            self.taken_groups[source] += 1
            self.taken_rows[source] += rows
            if self.taken_groups[source] >= self.groups[source] or self.taken_rows[source] >= self.rows[source]:
                self.room.discard(source)
        return True

    def take_smallest(self, source: int) -> None:
        """Choose the group of a source with the fewest rows for which the other sources have room."""
        its = [members for members in self.members if any(each == source for _, each, _ in members)]
        for members in sorted(its, key=lambda members: sum(rows for _, _, rows in members)):
            if self.take(members, source):
                return
