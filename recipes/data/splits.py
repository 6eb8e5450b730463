"""Held-out splits: which problems and which rows belong to training and which to validation."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

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
    """The prompts of many rows: which rows repeat one another, and which rows must stay in one split.

    A prompt is its messages, without regard to case and blanks, and the bytes of its images. Rows with the same prompt
    are one group, and so are rows that share an image: a picture that was trained on says little in validation.
    """

    def __init__(self, seed: int) -> None:
        self._salt = seed.to_bytes(8, "little")
        self._sources: list[str] = []
        self._prompts: list[int] = []
        self._keys: list[list[int]] = []  # of each row the fingerprints of its images, or that of its text
        self._parents: dict[int, int] = {}  # a forest of keys: a tree is a group, its root the smallest key

    def add(self, data_source: str, texts: Iterable[str], images: Sequence[bytes] = ()) -> None:
        """Take in a row: its data source, the contents of its messages, its encoded images."""
        text = "\0".join(" ".join(content.casefold().split()) for content in texts).encode()
        keys = [self._fingerprint(image) for image in images]
        prompt = self._fingerprint(text + b"\0" + b"".join(key.to_bytes(8, "little") for key in keys))
        self._sources.append(data_source)
        self._prompts.append(prompt)
        self._keys.append(keys or [prompt])
        roots = [self._root(key) for key in self._keys[-1]]
        for root in roots:
            self._parents[root] = min(roots)

    def _fingerprint(self, data: bytes) -> int:
        """64 bits of the data and the seed."""
        return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=self._salt).digest(), "little")

    def _root(self, key: int) -> int:
        parent = self._parents.setdefault(key, key)
        while parent != key:
            self._parents[key] = self._parents[parent]  # shorten the way for the next search
            key, parent = parent, self._parents[parent]
        return key

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def different(self) -> int:
        """Different prompts."""
        return len(set(self._prompts))

    def shared_with(self, other: Prompts) -> list[bool]:
        """Of each row, whether its prompt or one of its images is in `other`."""
        return [any(key in other._parents for key in keys) for keys in self._keys]

    def held_out(self, share: float) -> list[bool]:
        """Of each row, whether it validates; chosen group by group, in the order of their smallest fingerprints.

        Of each data source validate at most `share` of its rows and of its groups, at most `MOST_VALIDATION` of both.
        If every group of a source exceeds that share, its smallest one validates; a source with one group gives none.
        """
        group_of_row = [self._root(keys[0]) for keys in self._keys]
        rows: defaultdict[int, Counter[str]] = defaultdict(Counter)  # group -> data source -> rows
        for group, source in zip(group_of_row, self._sources, strict=True):
            rows[group][source] += 1

        def some(count: int) -> int:
            return min(MOST_VALIDATION, max(1, round(share * count)))

        every_group = Counter(source for sources in rows.values() for source in sources)
        most_groups = {source: min(some(count), count - 1) for source, count in every_group.items()}
        most_rows = {source: some(count) for source, count in Counter(self._sources).items()}
        chosen: set[int] = set()
        groups_taken: Counter[str] = Counter()
        rows_taken: Counter[str] = Counter()

        def take(group: int, too_large_for: str | None = None) -> bool:
            """Choose a group if its data sources have room; the one named may give more rows than its share."""
            for source, count in rows[group].items():
                too_many = rows_taken[source] + count > most_rows[source] and source != too_large_for
                if too_many or groups_taken[source] >= most_groups[source]:
                    return False
            chosen.add(group)
            groups_taken.update(rows[group].keys())
            rows_taken.update(rows[group])
            return True

        for group in sorted(rows):
            take(group)
        for source in sorted(every_group):
            if not groups_taken[source]:
                its = sorted(group for group in rows if source in rows[group])
                any(take(group, source) for group in sorted(its, key=lambda group: rows[group].total()))
        return [group in chosen for group in group_of_row]
