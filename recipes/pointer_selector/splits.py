"""Train, validation and test by query: as the file says, or by a hash of the query's id."""

from __future__ import annotations

import hashlib

import numpy as np

from recipes.errors import RecipeError
from recipes.pointer_selector.config import SplitConfig
from recipes.pointer_selector.data import PointerData
from recipes.pointer_selector.records import SPLITS


def by_split(data: PointerData, config: SplitConfig) -> dict[str, PointerData]:
    """The three parts. A query's part does not depend on the other queries, so that growing data keeps it.

    Raises:
        RecipeError: some queries name their split and others do not, or a part is empty.
    """
    named = data.split >= 0
    if named.any() and not named.all():
        query = data.query_ids[int(np.flatnonzero(~named)[0])]
        raise RecipeError(
            f"query {query!r} names no split, unlike others", where="data.candidates", fix="name all or none"
        )
    labels = data.split if named.all() else np.array([_hashed(query, config) for query in data.query_ids])
    for number, name in enumerate(SPLITS):
        if not (labels == number).any():
            raise RecipeError(
                f"no query is left for {name} among {len(data)}",
                where="data.split",
                fix="give more queries, or a larger share",
            )
    return {name: data.keep_queries(labels == number) for number, name in enumerate(SPLITS)}


def _hashed(query_id: str, config: SplitConfig) -> int:
    digest = hashlib.sha256(f"{config.seed}:{query_id}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < config.test_share:
        return SPLITS.index("test")
    return SPLITS.index("validation" if position < config.test_share + config.validation_share else "train")
