"""The data of a recipe: read, counted, split and filtered; the embedded workload is made where it is missing."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from recipes.errors import RecipeError
from recipes.paths import data_dir
from recipes.pointer_selector import workload
from recipes.pointer_selector.candidates import METHODS, SCORES, SPLITS
from recipes.pointer_selector.config import DataConfig, FilterConfig, PointerRecipe, SplitConfig
from recipes.pointer_selector.data import PointerData, read_data
from recipes.pointer_selector.workload import FrozenModel

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Prepared:
    """What training and evaluation take.

    Attributes:
        parts: train (filtered), validation and test.
        model: the frozen model, or None.
        report: counts over everything that was read.
        dropped: what the filters took out of the training part, by reason.
    """

    parts: dict[str, PointerData]
    model: FrozenModel | None
    report: Report
    dropped: dict[str, int]


@dataclass(frozen=True)
class Files:
    """Where the data lies."""

    candidates: Path
    queries: Path
    examples: Path
    model: Path | None
    embedded: bool


def files(data: DataConfig) -> Files:
    """The recipe's files; those of the embedded workload where it names none.

    Raises:
        RecipeError: candidates without embeddings, or the other way round.
    """
    if data.candidates is None and data.query_embeddings is None:
        folder = data_dir("pointer_selector")
        table = folder / workload.FILES["embeddings"]
        return Files(folder / workload.FILES["candidates"], table, table, folder / workload.FILES["frozen_model"], True)
    if data.candidates is None or data.query_embeddings is None:
        missing = "data.candidates" if data.candidates is None else "data.query_embeddings"
        raise RecipeError(f"{missing} is not set, but the other one is", where=missing, fix="give both, or neither")
    queries = Path(data.query_embeddings)
    examples = Path(data.candidate_embeddings) if data.candidate_embeddings else queries
    return Files(
        Path(data.candidates), queries, examples, Path(data.frozen_model) if data.frozen_model else None, False
    )


def prepare(recipe: PointerRecipe) -> Prepared:
    """Read, check, split and filter. Makes the embedded workload first if it is not there (about ten seconds)."""
    paths = files(recipe.data)
    if paths.embedded:
        made = workload.manifest(paths.candidates.parent)
        if made is None:
            workload.build(paths.candidates.parent, recipe.workload)
        elif made["workload"] != recipe.workload.model_dump():
            raise RecipeError(
                "the workload that lies there was made with other settings",
                where=str(paths.candidates.parent),
                fix="remove the folder, set ARTIFACTS_DIR, or take the keys under workload back",
            )
    data = read_data(paths.candidates, paths.queries, paths.examples)
    _require_one_size(data, recipe.policy.start)
    counted = report(data)
    parts = by_split(data, recipe.data.split)
    train, dropped = filtered(_of_shots(parts["train"], recipe.data), recipe.data.filters)
    parts["train"] = _some_queries(train, recipe.data)
    model = FrozenModel.load(paths.model) if paths.model else None
    return Prepared(parts, model, counted, dropped)


def _require_one_size(data: PointerData, start: str) -> None:
    if start == "similarity" and data.queries.width != data.examples.width:
        raise RecipeError(
            f"query {data.query_ids[0]!r} has {data.queries.width} features and the examples of its pool have "
            f"{data.examples.width}, so their similarity is not defined",
            where="policy.start=similarity",
            fix="give embeddings of one encoder, or set policy.start=random",
        )


def _of_shots(data: PointerData, config: DataConfig) -> PointerData:
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


def _some_queries(data: PointerData, config: DataConfig) -> PointerData:
    """`data.train_queries` of the queries, in the order of a hash of their ids, so that a few are among more."""
    if not config.train_queries:
        return data
    if config.train_queries > len(data):
        raise RecipeError(
            f"{config.train_queries} training queries were asked for, and there are {len(data)}",
            where="data.train_queries",
            fix=f"ask for at most {len(data)}; 0 takes all",
        )
    order = sorted(range(len(data)), key=lambda n: hashlib.sha256(data.query_ids[n].encode()).digest())
    return data.keep_queries(np.isin(np.arange(len(data)), order[: config.train_queries]))


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
        first = "" if self.first_single is None else f", the first in query {self.first_single!r}"
        listed = [
            ("queries / groups / candidates", f"{self.queries:,} / {self.groups:,} / {self.candidates:,}"),
            ("groups by shots", _listed(self.shots)),
            ("candidates by method", _listed(self.methods)),
            ("pool sizes", f"{self.pool_sizes[0]} to {self.pool_sizes[1]}"),
            ("correct candidates", share),
            ("queries without a correct one", f"{self.queries_without_correct:,}"),
            ("groups all right or all wrong", f"{self.groups_all_equal:,}"),
            ("groups with one candidate", f"{self.single_candidate_groups:,}{first}"),
            ("repeated sequences / sets", f"{self.duplicate_sequences:,} / {self.duplicate_sets:,}"),
        ]
        listed += [
            (f"{name} (0/5/25/50/75/95/100%)", "  ".join(f"{q:.3g}" for q in values))
            for name, values in self.scores.items()
        ]
        return listed + [(f"skipped: {reason}", f"{count:,}") for reason, count in self.skipped.items()]

    def as_dict(self) -> dict:
        return asdict(self)


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
    """Candidates that repeat a sequence of their query, and those that repeat a set in another order."""

    def repeated(pointers: np.ndarray) -> int:
        return int((~_first_of_kind(data.candidate_query, pointers)).sum())

    sequences = repeated(data.pointers)
    return sequences, repeated(np.sort(data.pointers, axis=1)) - sequences


def _first_of_kind(queries: np.ndarray, pointers: np.ndarray) -> np.ndarray:
    """[M], true where no earlier candidate of the query has the same row of `pointers`."""
    first = np.zeros(len(queries), bool)
    first[np.unique(np.column_stack([queries, pointers]), axis=0, return_index=True)[1]] = True
    return first


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
        kept = np.flatnonzero(keep)
        repeated = kept[~_first_of_kind(data.candidate_query[kept], data.pointers[kept])]
        dropped["repeated sequences"] = len(repeated)
        keep[repeated] = False
    result = data.keep_candidates(keep)
    alive = np.isin(np.arange(len(data)), result.candidate_query)
    if (lost := int((~alive).sum())) > 0:
        dropped["queries left without candidates"] = lost
    if config.require_positive:
        right = np.isin(np.arange(len(data)), result.candidate_query[result.scores["vqa_correct"] > 0])
        dropped["queries without a correct candidate"] = int((alive & ~right).sum())
        alive &= right
    if not alive.any():
        raise RecipeError(
            "the filters leave no query", where="data.filters", fix=f"loosen them; they dropped {dropped}"
        )
    return result.keep_queries(alive), dropped
