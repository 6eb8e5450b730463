"""The data of a recipe: read, counted, split and filtered; the embedded workload is made where it is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import RecipeError
from recipes.paths import data_dir
from recipes.pointer_selector import workload
from recipes.pointer_selector.candidates import METHODS, SPLITS
from recipes.pointer_selector.config import DataConfig, FilterConfig, PointerRecipe, SplitConfig
from recipes.pointer_selector.dataset import PointerData, read_data
from recipes.pointer_selector.workload import FrozenModel

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Prepared:
    """Inputs of training and evaluation."""

    parts: dict[str, PointerData]  # train (filtered), validation and test
    model: FrozenModel | None
    counts: DataCounts  # of everything that was read
    dropped: dict[str, int]  # what the filters took out of the training part, by reason


def files(data: DataConfig) -> tuple[Path, Path, Path, Path | None]:
    """Return candidates, both tables, and the frozen model; the embedded workload's where the recipe names none.

    Raises:
        RecipeError: candidates without embeddings, or the other way round.
    """
    if _is_embedded(data):
        folder = data_dir("pointer_selector")
        candidates, table, answers = (folder / workload.FILES[n] for n in ("candidates", "embeddings", "frozen_model"))
        return candidates, table, table, answers
    if data.candidates is None or data.query_embeddings is None:
        missing = "data.candidates" if data.candidates is None else "data.query_embeddings"
        raise RecipeError(f"{missing} is not set, but the other one is", where=missing, fix="give both, or neither")
    examples = data.candidate_embeddings or data.query_embeddings
    model = Path(data.frozen_model) if data.frozen_model else None
    return Path(data.candidates), Path(data.query_embeddings), Path(examples), model


def _is_embedded(data: DataConfig) -> bool:
    return data.candidates is None and data.query_embeddings is None


def prepare(recipe: PointerRecipe) -> Prepared:
    """Read, check, split and filter. Makes the embedded workload first if it is not there (about ten seconds)."""
    candidates, queries, examples, model = files(recipe.data)
    if _is_embedded(recipe.data):
        folder = candidates.parent
        made = workload.manifest(folder) or workload.build(folder, recipe.workload)
        if made["workload"] != recipe.workload.model_dump():
            raise RecipeError(
                "the workload that lies there was made with other settings",
                where=str(folder),
                fix="remove the folder, set ARTIFACTS_DIR, or take the keys under workload back",
            )
    data = read_data(candidates, queries, examples)
    if recipe.policy.start == "similarity" and data.queries.width != data.examples.width:
        raise RecipeError(
            f"query {data.query_ids[0]!r} has {data.queries.width} features and the examples of its pool have "
            f"{data.examples.width}, so their similarity is not defined",
            where="policy.start=similarity",
            fix="give embeddings of one encoder, or set policy.start=random",
        )
    parts = by_split(data, recipe.data.split)
    train, dropped = filtered(_of_shots(parts["train"], recipe.data), recipe.data.filters)
    parts["train"] = some_queries(train, recipe.data.train_queries)
    return Prepared(parts, FrozenModel.load(model) if model else None, count(data), dropped)


def by_split(data: PointerData, config: SplitConfig) -> dict[str, PointerData]:
    """Return the three parts; a query's part does not depend on other queries, so that growing data keeps it.

    Raises:
        RecipeError: some queries name their split and others do not, or a part is empty.
    """
    named = data.split >= 0
    if named.any() and not named.all():
        query = data.query_ids[int(named.argmin())]
        raise RecipeError(
            f"query {query!r} names no split, unlike others", where="data.candidates", fix="name all or none"
        )
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
    kept = data.keep_candidates(wanted)
    return kept.keep_queries(np.isin(np.arange(len(kept)), kept.candidate_query))


def some_queries(data: PointerData, number: int) -> PointerData:
    """Keep so many queries, in the order of a hash of their ids, so that a few are among more; 0 keeps all."""
    if number > len(data):
        raise RecipeError(
            f"{number} training queries were asked for, and there are {len(data)}",
            where="data.train_queries",
            fix=f"ask for at most {len(data)}; 0 takes all",
        )
    order = sorted(range(len(data)), key=lambda n: hashlib.sha256(data.query_ids[n].encode()).digest())
    return data.keep_queries(np.isin(np.arange(len(data)), order[:number])) if number else data


def filtered(data: PointerData, config: FilterConfig) -> tuple[PointerData, dict[str, int]]:
    """Return the data after the filters, and what each of them dropped.

    Raises:
        RecipeError: nothing is left.
    """
    dropped: dict[str, int] = {}
    keep = np.ones(len(data.lengths), bool)
    if config.skip_fallback and data.fallback.any():
        dropped["candidates with a fallback reward"] = int(data.fallback.sum())
        keep &= ~data.fallback
    if config.drop_incorrect_below is not None:
        low = (data.scores["vqa_correct"] == 0) & (data.scores[config.score] < config.drop_incorrect_below)
        dropped[f"incorrect candidates with {config.score} < {config.drop_incorrect_below:g}"] = int((low & keep).sum())
        keep &= ~low
    if config.drop_repeated:
        kept = np.flatnonzero(keep)
        repeated = kept[_repeats(data.candidate_query[kept], data.pointers[kept])]
        dropped["repeated sequences"] = len(repeated)
        keep[repeated] = False
    result = data.keep_candidates(keep)
    alive = np.isin(np.arange(len(data)), result.candidate_query)
    if not alive.all():
        dropped["queries left without candidates"] = int((~alive).sum())
    if config.require_positive:
        right = np.isin(np.arange(len(data)), result.candidate_query[result.scores["vqa_correct"] > 0])
        dropped["queries without a correct candidate"] = int((alive & ~right).sum())
        alive &= right
    if not alive.any():
        fix = f"loosen them; they dropped {dropped}"
        raise RecipeError("the filters leave no query", where="data.filters", fix=fix)
    return result.keep_queries(alive), dropped


def _repeats(queries: np.ndarray, pointers: np.ndarray) -> np.ndarray:
    """Return [M], true where an earlier candidate of the query has the same row of `pointers`."""
    repeats = np.ones(len(queries), bool)
    repeats[np.unique(np.column_stack([queries, pointers]), axis=0, return_index=True)[1]] = False
    return repeats


@dataclass(frozen=True)
class DataCounts:
    """Count what a data set holds; linear in the number of candidates.

    A group is one query at one number of picks. Groups that are all right or all wrong teach nothing about correctness,
    groups of one candidate nothing at all. `scores` has the quantiles 0, 5, 25, 50, 75, 95 and 100% of each number.
    """

    queries: int
    groups: int
    candidates: int
    methods: dict[str, int]
    shots: dict[int, int]
    pool_sizes: tuple[int, int]
    correct_share: float | None
    queries_without_correct: int
    groups_all_equal: int
    single_candidate_groups: int
    first_single: str | None
    duplicate_sequences: int
    duplicate_sets: int
    scores: dict[str, list[float]]
    skipped: dict[str, int]

    def lines(self) -> list[tuple[str, str]]:
        """Return (what, value) pairs for a table."""

        def listed(counts: Mapping[Any, int]) -> str:
            return ", ".join(f"{kind}: {number:,}" for kind, number in counts.items())

        first = f", the first in query {self.first_single!r}" if self.first_single else ""
        return [
            ("queries / groups / candidates", f"{self.queries:,} / {self.groups:,} / {self.candidates:,}"),
            ("groups by shots", listed(self.shots)),
            ("candidates by method", listed(self.methods)),
            ("pool sizes", "{} to {}".format(*self.pool_sizes)),
            ("correct candidates", "unknown" if self.correct_share is None else f"{self.correct_share:.1%}"),
            ("queries without a correct one", f"{self.queries_without_correct:,}"),
            ("groups all right or all wrong", f"{self.groups_all_equal:,}"),
            ("groups with one candidate", f"{self.single_candidate_groups:,}{first}"),
            ("repeated sequences / sets", f"{self.duplicate_sequences:,} / {self.duplicate_sets:,}"),
            *(
                (f"{name} (0/5/25/50/75/95/100%)", "  ".join(f"{q:.3g}" for q in quantiles))
                for name, quantiles in self.scores.items()
            ),
            *((f"skipped: {reason}", f"{number:,}") for reason, number in self.skipped.items()),
        ]


def count(data: PointerData) -> DataCounts:
    """Return what a data set holds."""
    correct = data.scores["vqa_correct"]
    known = ~np.isnan(correct)
    starts = data.group_starts
    single = np.diff(starts) == 1
    pool_sizes = data.pool_sizes(np.arange(len(data)))
    lowest, highest = (f.reduceat(correct, starts[:-1]) for f in (np.minimum, np.maximum))
    right = np.unique(data.candidate_query[correct > 0])
    sequences = int(_repeats(data.candidate_query, data.pointers).sum())
    shots, groups = np.unique(data.group_shots, return_counts=True)
    methods, made = np.unique(data.method, return_counts=True)
    return DataCounts(
        queries=len(data),
        groups=len(single),
        candidates=len(correct),
        methods={METHODS[method]: int(number) for method, number in zip(methods, made, strict=True)},
        shots={int(s): int(number) for s, number in zip(shots, groups, strict=True)},
        pool_sizes=(int(pool_sizes.min()), int(pool_sizes.max())),
        correct_share=float(correct[known].mean()) if known.any() else None,
        queries_without_correct=len(data) - len(right) if known.any() else 0,
        groups_all_equal=int((lowest == highest).sum()),
        single_candidate_groups=int(single.sum()),
        first_single=data.query_ids[data.group_query[single.argmax()]] if single.any() else None,
        duplicate_sequences=sequences,
        duplicate_sets=int(_repeats(data.candidate_query, np.sort(data.pointers, axis=1)).sum()) - sequences,
        scores={
            name: np.nanquantile(values, QUANTILES).round(6).tolist()
            for name, values in data.scores.items()
            if not np.isnan(values).all()
        },
        skipped=dict(data.skipped),
    )
