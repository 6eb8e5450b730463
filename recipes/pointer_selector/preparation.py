"""The data of a recipe: read, counted, split and filtered; the embedded workload is made where it is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import RecipeError
from recipes.files import sha256
from recipes.paths import data_dir
from recipes.pointer_selector import workload
from recipes.pointer_selector.candidates import read_data
from recipes.pointer_selector.config import DataConfig, FilterConfig, PointerRecipe, SplitConfig
from recipes.pointer_selector.dataset import SPLITS, PointerData
from recipes.pointer_selector.workload import FrozenModel

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Prepared:
    """Inputs of training and evaluation."""

    parts: dict[str, PointerData]  # train (filtered), validation and test
    model: FrozenModel | None
    counts: dict[str, Any]  # of everything that was read
    dropped: dict[str, int]  # what the filters took out of the training part, by reason
    digest: str  # of the files


def prepare(recipe: PointerRecipe) -> Prepared:
    """Read, check, split and filter. Makes the embedded workload first if it is not there (about ten seconds).

    Raises:
        RecipeError: candidates without embeddings or the other way round, or data that the recipe cannot be trained on.
    """
    config, model = recipe.data, None
    if config.candidates is None and config.query_embeddings is None:
        files, model = workload.prepare(data_dir("pointer_selector"), recipe.workload)
    elif config.candidates is None or config.query_embeddings is None:
        missing = "data.candidates" if config.candidates is None else "data.query_embeddings"
        raise RecipeError(f"{missing} is not set, but the other one is", where=missing, fix="give both, or neither")
    else:
        examples = config.candidate_embeddings or config.query_embeddings
        files = Path(config.candidates), Path(config.query_embeddings), Path(examples)
    data = read_data(*files)
    parts = by_split(data, config.split)
    train, dropped = filtered(_of_shots(parts["train"], config), config.filters)
    parts["train"] = some_queries(train, config.train_queries)
    digest = hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()
    return Prepared(parts, model, count(data), dropped, digest)


def by_split(data: PointerData, config: SplitConfig) -> dict[str, PointerData]:
    """Return the three parts; a query's part does not depend on other queries, so that growing data keeps it.

    Raises:
        RecipeError: some queries name their split and others do not, or a part is empty.
    """
    named = data.split >= 0
    if named.any() and not named.all():
        query = data.query_ids[int(named.argmin())]
        what = f"query {query!r} names no split, unlike others"
        raise RecipeError(what, where="data.candidates", fix="name all or none")
    labels = data.split if named.all() else np.array([_hashed(query, config) for query in data.query_ids])
    parts = {name: data.keep_queries(labels == number) for number, name in enumerate(SPLITS)}
    for name, part in parts.items():
        if not len(part):
            what = f"no query is left for {name} among {len(data)}"
            raise RecipeError(what, where="data.split", fix="give more queries, or a larger share")
    return parts


def _hashed(query_id: str, config: SplitConfig) -> int:
    digest = hashlib.sha256(f"{config.seed}:{query_id}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < config.test_share:
        return SPLITS.index("test")
    return SPLITS.index("validation" if position < config.test_share + config.validation_share else "train")


def _of_shots(data: PointerData, config: DataConfig) -> PointerData:
    """Return sequences of the numbers of picks that are trained on."""
    wanted = data.lengths <= config.shot_num if config.shot_mode == "up_to" else data.lengths == config.shot_num
    longest = int(data.lengths.max())
    if not wanted.any() or (config.shot_mode == "up_to" and longest < config.shot_num):
        raise RecipeError(
            f"no logged sequence has {config.shot_num} picks; the longest has {longest}",
            where="data.shot_num",
            fix=f"set SHOT_NUM={longest}, or log longer sequences",
        )
    return data.keep_candidates(wanted).with_candidates()


def some_queries(data: PointerData, number: int) -> PointerData:
    """Keep so many queries, in the order of a hash of their ids, so that a few are among more; 0 keeps all."""
    if number > len(data):
        what = f"{number} training queries were asked for, and there are {len(data)}"
        raise RecipeError(what, where="data.train_queries", fix=f"ask for at most {len(data)}; 0 takes all")
    order = sorted(range(len(data)), key=lambda n: hashlib.sha256(data.query_ids[n].encode()).digest())
    return data.keep_queries(np.isin(np.arange(len(data)), order[:number])) if number else data


def filtered(data: PointerData, config: FilterConfig) -> tuple[PointerData, dict[str, int]]:
    """Return the data without repeated sequences and what the filters name, and how much each of them dropped.

    Raises:
        RecipeError: nothing is left.
    """
    dropped: dict[str, int] = {}
    if config.drop_incorrect_below is not None:
        low = (data.scores["vqa_correct"] == 0) & (data.scores[config.score] < config.drop_incorrect_below)
        dropped[f"incorrect candidates with {config.score} < {config.drop_incorrect_below:g}"] = int(low.sum())
        data = data.keep_candidates(~low)
    repeated = _repeats(data.candidate_query, data.pointers)
    dropped["repeated sequences"] = int(repeated.sum())
    data = data.keep_candidates(~repeated)
    if config.require_positive:
        right = np.isin(np.arange(len(data)), data.candidate_query[data.scores["vqa_correct"] > 0])
        dropped["queries without a correct candidate"] = int((~right).sum())
        data = data.keep_queries(right)
    result = data.with_candidates()
    if lost := len(data) - len(result):
        dropped["queries left without candidates"] = lost
    if not len(result):
        raise RecipeError(
            "the filters leave no query", where="data.filters", fix=f"loosen them; they dropped {dropped}"
        )
    return result, dropped


def _repeats(queries: np.ndarray, pointers: np.ndarray) -> np.ndarray:
    """Return [M], true where an earlier candidate of the query has the same row of `pointers`."""
    repeats = np.ones(len(queries), bool)
    repeats[np.unique(np.column_stack([queries, pointers]), axis=0, return_index=True)[1]] = False
    return repeats


def count(data: PointerData) -> dict[str, Any]:
    """Count what a data set holds.

    Groups that are all right or all wrong teach nothing about correctness, groups of one candidate nothing at all.
    `scores` has the quantiles 0, 5, 25, 50, 75, 95 and 100% of each number.
    """
    correct = data.scores["vqa_correct"]
    known = ~np.isnan(correct)
    starts = data.group_starts[:-1]
    single = np.diff(data.group_starts) == 1
    pool_sizes = data.pool_sizes(np.arange(len(data)))
    sequences = int(_repeats(data.candidate_query, data.pointers).sum())
    sets = int(_repeats(data.candidate_query, np.sort(data.pointers, axis=1)).sum())
    shots, methods = (np.unique(values, return_counts=True) for values in (data.lengths[starts], data.method))
    return {
        "queries": len(data),
        "groups": len(single),
        "candidates": len(correct),
        "methods": dict(zip(methods[0].tolist(), methods[1].tolist(), strict=True)),
        "shots": dict(zip(shots[0].tolist(), shots[1].tolist(), strict=True)),
        "pool_sizes": [int(pool_sizes.min()), int(pool_sizes.max())],
        "correct_share": float(correct[known].mean()) if known.any() else None,
        "queries_without_correct": len(data) - len(np.unique(data.candidate_query[correct > 0])) if known.any() else 0,
        "groups_all_equal": int((np.minimum.reduceat(correct, starts) == np.maximum.reduceat(correct, starts)).sum()),
        "single_candidate_groups": int(single.sum()),
        "first_single": data.query_ids[data.group_query[single.argmax()]] if single.any() else None,
        "duplicate_sequences": sequences,
        "duplicate_sets": sets - sequences,
        "scores": {
            name: np.nanquantile(values, QUANTILES).round(6).tolist()
            for name, values in data.scores.items()
            if not np.isnan(values).all()
        },
        "skipped": data.skipped,
    }


def lines(counts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (what, value) pairs of `count` for a table."""

    def listed(values: Mapping[Any, int]) -> str:
        return ", ".join(f"{kind}: {number:,}" for kind, number in values.items())

    first, correct = counts["first_single"], counts["correct_share"]
    return [
        ("queries / groups / candidates", " / ".join(f"{counts[k]:,}" for k in ("queries", "groups", "candidates"))),
        ("groups by shots", listed(counts["shots"])),
        ("candidates by method", listed(counts["methods"])),
        ("pool sizes", "{} to {}".format(*counts["pool_sizes"])),
        ("correct candidates", "unknown" if correct is None else f"{correct:.1%}"),
        ("queries without a correct one", f"{counts['queries_without_correct']:,}"),
        ("groups all right or all wrong", f"{counts['groups_all_equal']:,}"),
        (
            "groups with one candidate",
            f"{counts['single_candidate_groups']:,}" + (f", the first in query {first!r}" if first else ""),
        ),
        ("repeated sequences / sets", f"{counts['duplicate_sequences']:,} / {counts['duplicate_sets']:,}"),
        *(
            (f"{name} (0/5/25/50/75/95/100%)", "  ".join(f"{q:.3g}" for q in quantiles))
            for name, quantiles in counts["scores"].items()
        ),
        *((f"skipped: {reason}", f"{number:,}") for reason, number in counts["skipped"].items()),
    ]
