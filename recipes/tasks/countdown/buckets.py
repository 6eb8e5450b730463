"""A fixed partition of number multisets, so that no multiset is in two of: pretraining, RL training, held-out test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

# Shares in percent. RL training gets fewer than pretraining because each of its problems is sampled many times.
SHARES = {"pretrain": 50, "train": 30, "test": 20}


def bucket(numbers: Sequence[int]) -> str:
    """The bucket of a multiset of numbers: `pretrain`, `train` or `test`.

    The order of the numbers does not matter; the target plays no part. The answer depends on nothing else, so it is the
    same on every machine and for every seed (SHA-256 of the sorted numbers, modulo 100).
    """
    key = ",".join(map(str, sorted(numbers)))
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    for name, share in SHARES.items():
        if point < share:
            return name
        point -= share
    raise AssertionError("the shares do not sum to 100")
