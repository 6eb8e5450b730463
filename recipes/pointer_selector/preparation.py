"""The data of a recipe, read, checked, filtered and split; the embedded workload is made where it is missing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.errors import RecipeError
from recipes.paths import data_dir
from recipes.pointer_selector import workload
from recipes.pointer_selector.config import DataConfig, PointerRecipe, SplitConfig
from recipes.pointer_selector.data import PointerData, read_data
from recipes.pointer_selector.frozen_model import FrozenModel
from recipes.pointer_selector.inspection import Report, filtered, report
from recipes.pointer_selector.records import SPLITS


@dataclass(frozen=True)
class Prepared:
    """What training and evaluation take.

    Attributes:
        parts: train (filtered), validation and test.
        judge: the frozen model, or None.
        report: counts over everything that was read.
        dropped: what the filters took out of the training part, by reason.
    """

    parts: dict[str, PointerData]
    judge: FrozenModel | None
    report: Report
    dropped: dict[str, int]


@dataclass(frozen=True)
class Files:
    """Where the data lies."""

    candidates: Path
    queries: Path
    examples: Path
    judge: Path | None
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
    parts["train"] = _of_shots(parts["train"], recipe.data)
    parts["train"], dropped = filtered(parts["train"], recipe.data.filters)
    judge = FrozenModel.load(paths.judge) if paths.judge else None
    return Prepared(parts, judge, counted, dropped)


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
    return kept.keep_queries(_has_candidates(kept))


def _has_candidates(data: PointerData) -> np.ndarray:
    found = np.zeros(len(data), bool)
    found[data.candidate_query] = True
    return found


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
