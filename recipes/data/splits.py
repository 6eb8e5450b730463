"""Held-out splits: the rows that validate, and those that share a prompt or an image with them."""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, compress

MOST_VALIDATION = 500
"""Most validation rows of one data source: further rows cost time at every validation and tell little more."""

_WIDE = {0xFF01 + offset: 0x21 + offset for offset in range(94)}
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")


def _as_read(text: str) -> str:
    """A text apart from what a reader does not see: case, blanks, composed letters, full width, zero-width signs."""
    text = unicodedata.normalize("NFC", _UNSEEN.sub("", text.translate(_WIDE))).casefold()
    return re.sub(" (?=[?!;:])", "", " ".join(text.split()))


class Prompts:
    """The prompts of many rows, of which some are held out for validation.

    Two prompts are the same if their messages, as `_as_read` has them, and the bytes of their images are the same.
    """

    def __init__(self, seed: int) -> None:
        self._salt = seed.to_bytes(8, "little")
        self._sources: list[str] = []
        self._prompts: list[int] = []
        self._keys: list[list[int]] = []  # for each row the fingerprints of its images; without images, of its text

    def add(self, data_source: str, texts: Iterable[str], images: Sequence[bytes] = ()) -> int:
        """Take in a row: its data source, its messages' contents, its encoded images. Returns a hash of its prompt."""
        text = "\0".join(map(_as_read, texts)).encode("utf-8", "surrogatepass")
        keys = [self._fingerprint(image) for image in images]
        prompt = self._fingerprint(text + b"\0" + b"".join(key.to_bytes(8, "little") for key in keys))
        self._sources.append(data_source)
        self._prompts.append(prompt)
        self._keys.append(keys or [prompt])
        return prompt

    def _fingerprint(self, data: bytes) -> int:
        """A 64-bit hash of the data, salted with the seed."""
        return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=self._salt).digest(), "little")

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def different(self) -> int:
        """Number of different prompts."""
        return len(set(self._prompts))

    def sources(self, mask: Iterable[bool]) -> Counter[str]:
        """Numbers of the rows where `mask` is true, by data source."""
        return Counter(compress(self._sources, mask))

    def keys(self, mask: Iterable[bool]) -> set[int]:
        """Fingerprints of the rows where `mask` is true: of their images, or of the prompt where there are none."""
        return set(chain.from_iterable(compress(self._keys, mask)))

    def shared_with(self, others: set[int]) -> list[bool]:
        """For each row, whether its prompt or one of its images is in `others`, a result of `keys`."""
        return [not others.isdisjoint(keys) for keys in self._keys]

    def held_out(self, share: float) -> list[bool]:
        """For each row, whether it is held out for validation.

        Rows of a source with the same prompt form a group. Rows with images are grouped by image instead; of several
        images of a row, the one that occurs in most rows counts. Groups are held out in the order of their
        fingerprints, up to `share` of the source's groups and `share` of its rows, and up to `MOST_VALIDATION` of
        either; a group larger than what is still allowed is skipped. If none fits, the smallest group is held out. From
        a source with a single group nothing is held out.
        """
        held = Counter(key for keys in self._keys for key in set(keys))
        group_of_row = [max(keys, key=lambda key: (held[key], -key)) for keys in self._keys]

        def some(count: int) -> int:
            return min(MOST_VALIDATION, max(1, round(share * count)))

        rows: defaultdict[str, Counter[int]] = defaultdict(Counter)  # data source -> group -> rows
        for source, group in zip(self._sources, group_of_row, strict=True):
            rows[source][group] += 1
        chosen: set[tuple[str, int]] = set()
        for source, groups in rows.items():
            most_groups, room = min(some(len(groups)), len(groups) - 1), some(groups.total())
            taken: list[int] = []
            for group in sorted(groups):
                if len(taken) < most_groups and groups[group] <= room:
                    taken.append(group)
                    room -= groups[group]
            if not taken and most_groups:
                taken = [min(groups, key=lambda group: (groups[group], group))]
            chosen.update((source, group) for group in taken)
        return [each in chosen for each in zip(self._sources, group_of_row, strict=True)]
