"""What a candidate file holds: counts a user should see before training, and the filters that follow from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from recipes.errors import RecipeError
from recipes.pointer_selector.config import FilterConfig
from recipes.pointer_selector.data import PointerData
from recipes.pointer_selector.records import METHODS, SCORES

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Report:
    """Counts over a data set.

    Attributes:
        queries, groups, candidates: how many; a group is one query at one number of picks.
        methods: candidates by how they were made.
        shots: groups by number of picks.
        pool_sizes: smallest and largest pool.
        correct_share: share of candidates that the frozen model answered right with; None where nothing says.
        queries_without_correct: queries none of whose candidates is right.
        groups_all_equal: groups whose candidates are all right or all wrong, which teach nothing about correctness.
        single_candidate_groups: groups with one candidate, which teach nothing at all.
        first_single: the query of the first of them.
        duplicate_sequences: candidates that repeat an earlier sequence of their group.
        duplicate_sets: candidates that repeat an earlier set of examples in another order.
        scores: quantiles 0, 5, 25, 50, 75, 95 and 100% of each number, where present.
        skipped: what reading left out, by reason.
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

    def rows(self) -> list[tuple[str, str]]:
        """(what, value) pairs for a table."""
        share = "unknown" if self.correct_share is None else f"{self.correct_share:.1%}"
        listed = [
            ("queries / groups / candidates", f"{self.queries:,} / {self.groups:,} / {self.candidates:,}"),
            ("groups by shots", _listed(self.shots)),
            ("candidates by method", _listed(self.methods)),
            ("pool sizes", f"{self.pool_sizes[0]} to {self.pool_sizes[1]}"),
            ("correct candidates", share),
            ("queries without a correct one", f"{self.queries_without_correct:,}"),
            ("groups all right or all wrong", f"{self.groups_all_equal:,}"),
            ("groups with one candidate", f"{self.single_candidate_groups:,}{_named(self.first_single)}"),
            ("repeated sequences / sets", f"{self.duplicate_sequences:,} / {self.duplicate_sets:,}"),
        ]
        listed += [
            (f"{name} (0/5/25/50/75/95/100%)", "  ".join(f"{q:.3g}" for q in values))
            for name, values in self.scores.items()
        ]
        return listed + [(f"skipped: {reason}", f"{count:,}") for reason, count in self.skipped.items()]

    def as_dict(self) -> dict:
        return asdict(self)


def _named(query: str | None) -> str:
    return "" if query is None else f", the first in query {query!r}"


def _listed(counts: dict) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())


def report(data: PointerData) -> Report:
    """Count everything in `Report`; linear in the number of candidates."""
    correct = data.scores["vqa_correct"]
    known = ~np.isnan(correct)
    sizes = np.diff(data.group_starts)
    pool_sizes = data.pool_size(np.arange(len(data)))
    lowest, highest = (f.reduceat(correct, data.group_starts[:-1]) for f in (np.minimum, np.maximum))
    right = np.zeros(len(data), bool)
    np.logical_or.at(right, data.candidate_query[known], correct[known] > 0)
    sequences, sets = _repeats(data)
    return Report(
        queries=len(data),
        groups=len(sizes),
        candidates=len(correct),
        methods={
            name: int((data.method == number).sum())
            for number, name in enumerate(METHODS)
            if (data.method == number).any()
        },
        shots={int(shots): int((data.group_shots == shots).sum()) for shots in np.unique(data.group_shots)},
        pool_sizes=(int(pool_sizes.min()), int(pool_sizes.max())),
        correct_share=float(correct[known].mean()) if known.any() else None,
        queries_without_correct=int((~right).sum()) if known.any() else 0,
        groups_all_equal=int((lowest == highest).sum()),
        single_candidate_groups=int((sizes == 1).sum()),
        first_single=data.query_ids[data.group_query[(sizes == 1).argmax()]] if (sizes == 1).any() else None,
        duplicate_sequences=sequences,
        duplicate_sets=sets,
        scores={
            name: np.nanquantile(data.scores[name], QUANTILES).round(6).tolist()
            for name in SCORES
            if not np.isnan(data.scores[name]).all()
        },
        skipped=dict(data.skipped),
    )


def _repeats(data: PointerData) -> tuple[int, int]:
    def extra(pointers: np.ndarray) -> int:
        keyed = np.column_stack([data.candidate_query, pointers])
        return len(keyed) - len(np.unique(keyed, axis=0))

    sequences = extra(data.pointers)
    return sequences, extra(np.sort(data.pointers, axis=1)) - sequences


def filtered(data: PointerData, config: FilterConfig) -> tuple[PointerData, dict[str, int]]:
    """The data after the filters, and what each of them dropped.

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
        keyed = np.column_stack([data.candidate_query, data.pointers])
        first = np.zeros(len(keep), bool)
        first[np.unique(keyed, axis=0, return_index=True)[1]] = True
        dropped["repeated sequences"] = int((~first & keep).sum())
        keep &= first
    result = data.keep_candidates(keep)
    alive = np.zeros(len(data), bool)
    alive[result.candidate_query] = True
    if (lost := int((~alive).sum())) > 0:
        dropped["queries left without candidates"] = lost
    if config.require_positive:
        right = np.zeros(len(data), bool)
        right[result.candidate_query[result.scores["vqa_correct"] > 0]] = True
        dropped["queries without a correct candidate"] = int((alive & ~right).sum())
        alive &= right
    if not alive.any():
        raise RecipeError(
            "the filters leave no query", where="data.filters", fix=f"loosen them; they dropped {dropped}"
        )
    return result.keep_queries(alive), dropped
