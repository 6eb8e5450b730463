"""Which records validate: a share of each data source's prompts, chosen by hash, so that no prompt is on both sides."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from recipes.tasks.custom.record import Record

MOST = 500
"""Validation prompts of one data source: more cost time at every validation and tell little more."""


def fingerprint(record: Record, seed: int) -> int:
    """64 bits of a prompt and the seed; the same prompt has the same number in every file."""
    text = "\0".join(content for _, content in record.messages)
    return int.from_bytes(blake2b(text.encode(), digest_size=8, salt=seed.to_bytes(8, "little")).digest(), "little")


@dataclass
class Survey:
    """What a first pass over the records finds.

    Attributes:
        seed: of the fingerprints.
        counts: records of each data source.
        prompts: fingerprints of each data source's prompts.
        most_images: of one record.
    """

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    prompts: dict[str, array] = field(default_factory=dict)
    most_images: int = 0

    def add(self, records: Iterable[Record]) -> Survey:
        """Take in records."""
        for record in records:
            self.counts[record.data_source] += 1
            self.prompts.setdefault(record.data_source, array("Q")).append(fingerprint(record, self.seed))
            self.most_images = max(self.most_images, len(record.images))
        return self

    @property
    def every_prompt(self) -> set[int]:
        """All fingerprints."""
        return {number for numbers in self.prompts.values() for number in numbers}

    def repeated(self) -> int:
        """Records whose prompt another record has, too: all but the first of each."""
        return self.counts.total() - len(self.every_prompt)

    def validation(self, share: float) -> set[int]:
        """Fingerprints of the prompts that validate: the smallest of each data source.

        A source with one prompt alone gives none, unless it is the only source: one that is trained on can be missed
        in validation, but not the other way round.
        """
        chosen: set[int] = set()
        for numbers in self.prompts.values():
            different = sorted(set(numbers))
            wanted = min(MOST, max(1, round(share * len(different))), len(different) - 1)
            chosen.update(different[:wanted])
        return chosen
