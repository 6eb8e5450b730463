"""Which problems of a task belong to pretraining, training and the test."""

import hashlib

# Shares in percent. RL training gets fewer than pretraining because each of its problems is sampled many times.
SHARES = {"pretrain": 50, "train": 30, "test": 20}


def bucket_of(key: str) -> str:
    """`pretrain`, `train` or `test`, by the SHA-256 of the key: the same on every machine and for every seed.

    Args:
        key: text that identifies a problem, in a canonical form.
    """
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    for name, share in SHARES.items():
        if point < share:
            return name
        point -= share
    raise AssertionError("the shares do not sum to 100")
