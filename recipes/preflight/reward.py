"""The reward function on real rows, before the trainer starts; `reward_trial` runs it in a process of its own."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.config.rewards import functions, is_weighted, reward_call, shown_reward
from recipes.errors import RecipeError
from recipes.preflight import data_files
from recipes.preflight.child import ChildError, ask
from recipes.preflight.reward_trial import Question, TrialRow, Verdict

ROWS_OF_A_SOURCE = 3
MOST_ROWS = 24
LIMIT_S = 300.0
"""For a reward that never comes back; a slow machine imports for a minute before its first call."""
ROWS_A_SECOND = 2000
"""Rows whose ground truth a reward that judges by data source is given time to read."""
NOT_READ = ("images", "prompt", "problem")


def check_reward(recipe: Recipe) -> list[str]:
    """Raise where the reward fails at import, cannot be called, or answers with something that is not a score.

    Returns:
        Remarks: a constant score, a gold answer that scores no more than an empty response, slow calls.
    """
    call = reward_call(recipe)
    if call is None:
        return []
    where = f"worker.reward.reward_function: {recipe.source_of('worker.reward.reward_function')}"
    files = [key.path for key in data_files.files(recipe) if Path(key.path).is_file()]
    rows, count = rows_by_source(files)
    location, arguments = call
    columns = ["data_source", "reward_model.ground_truth"]
    if recipe.engine == "easyr1":
        columns = [recipe.data.answer_key]
    question = Question(
        location=location,
        engine=recipe.engine,
        kwargs=arguments,
        parts=functions(recipe) if is_weighted(recipe) else [],
        shared=recipe.worker.reward.reward_function_kwargs,
        rows=[_trial_row(row, recipe) for row in rows],
        files=files,
        columns=columns,
        of_the_recipe=not recipe.source_of("worker.reward.reward_function").by_user,
        filter_key=recipe.algorithm.filter_key if recipe.algorithm.online_filtering else "overall",
    )
    limit = LIMIT_S + count / ROWS_A_SECOND
    try:
        verdict = ask("recipes.preflight.reward_trial", question, Verdict, limit)
    except TimeoutError as error:
        raise RecipeError(
            f"the reward took more than {limit:.0f} s for {len(rows)} rows; last, it was {error}",
            where=where,
            fix="see why it does not come back; it should take time in proportion to the response's length",
        ) from error
    except ChildError as error:
        raise RecipeError(
            f"the reward ended its process: {error}",
            where=f"{shown_reward(recipe)} ({where})",
            fix="mend the reward file: it must return, and not exit",
        ) from error
    if verdict.what:
        raise RecipeError(verdict.what, where=f"{verdict.where} ({where})", fix=verdict.fix)
    return verdict.remarks


def rows_by_source(files: list[str]) -> tuple[list[dict[str, Any]], int]:
    """The first rows of every data source, in turn, without images; and how many rows there are."""
    import pyarrow.parquet as pq

    first: dict[str, list[dict[str, Any]]] = defaultdict(list)
    total = 0
    for file in files:
        with pq.ParquetFile(file) as opened:
            names = opened.schema_arrow.names
            total += opened.metadata.num_rows
            for batch in opened.iter_batches(4096, columns=[name for name in names if name not in NOT_READ]):
                sources = batch.column("data_source") if "data_source" in names else [None] * batch.num_rows
                for index, source in enumerate(map(str, sources)):
                    if len(first[source]) < ROWS_OF_A_SOURCE:
                        first[source] += batch.slice(index, 1).to_pylist()
    in_turn = [row for rank in zip_longest(*first.values()) for row in rank if row is not None]
    return in_turn[:MOST_ROWS], total


def _trial_row(row: dict[str, Any], recipe: Recipe) -> TrialRow:
    """Return what a reward gets of a row, and under EasyR1 the solution besides, for the trial's gold answers."""
    extra = row.get("extra_info")
    if recipe.engine == "easyr1":
        truth, extra = row.get(recipe.data.answer_key), {"solution": (extra or {}).get("solution")}
    else:
        truth = (row.get("reward_model") or {}).get("ground_truth")
    return TrialRow(row.get("data_source"), truth, extra)
