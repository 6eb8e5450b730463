"""Which multisets of numbers are pretrained on, trained on by RL, or held out: none is in two of these."""

from __future__ import annotations

from collections.abc import Sequence

from recipes.tasks.buckets import SHARES, bucket_of

__all__ = ["SHARES", "bucket"]


def bucket(numbers: Sequence[int]) -> str:
    """The bucket of a multiset of numbers: `pretrain`, `train` or `test`. Neither order nor target plays a part."""
    return bucket_of(",".join(map(str, sorted(numbers))))
