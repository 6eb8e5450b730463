"""The reward file, tried on real rows in a process of its own before the trainer starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

from recipes.config import Recipe, path_keys
from recipes.engines import easyr1
from recipes.errors import RecipeError
from recipes.paths import ROOT

ROWS_OF_A_SOURCE = 3
MOST_ROWS = 24
LIMIT_S = 60.0
ROWS_A_SECOND = 2000
"""Rows whose ground truth a reward that judges by data source is given time to read."""


def inspect(recipe: Recipe) -> list[str]:
    """Raise where the reward fails at import, cannot be called, or answers with something that is not a score.

    Returns:
        Remarks: a constant score, a gold answer that scores no more than an empty response, slow calls.
    """
    reward = recipe.worker.reward
    if reward.reward_function is None:
        return []
    where = f"worker.reward.reward_function, from {recipe.source_of('worker.reward.reward_function')}"
    files = [
        key.path for key in path_keys(recipe) if key.kind == "data" and not key.on_hub and Path(key.path).is_file()
    ]
    rows, count = by_source(files)
    truth = recipe.data.answer_key if recipe.engine == "easyr1" else "reward_model.ground_truth"
    location, arguments = reward.reward_function, reward.reward_function_kwargs
    if recipe.engine == "easyr1":
        location, arguments = easyr1.reward(recipe)
    question = {
        "location": location,
        "engine": recipe.engine,
        "kwargs": arguments,
        "rows": [_plain(row, recipe) for row in rows],
        "files": files,
        "columns": ["data_source", truth] if recipe.engine == "verl" else [truth],
        "filter_key": recipe.algorithm.filter_key if recipe.algorithm.online_filtering else "overall",
    }
    limit = LIMIT_S + count / ROWS_A_SECOND
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "recipes.preflight.reward_worker"],
            input=json.dumps(question, default=str),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RecipeError(
            f"the reward took more than {limit:.0f} s for {len(rows)} rows; last, it was {_last_try(error.stderr)}",
            where=where,
            fix="see why it does not come back; it should take time in proportion to the response's length",
        ) from error
    return _judged(answer, reward.reward_function, where)


def by_source(files: list[str]) -> tuple[list[dict[str, Any]], int]:
    """The first rows of every data source, in turn, without images; and how many rows there are."""
    import pyarrow.parquet as pq

    found: dict[str, list[dict[str, Any]]] = {}
    total = 0
    for file in files:
        with pq.ParquetFile(file) as opened:
            columns = [name for name in opened.schema_arrow.names if name not in ("images", "prompt", "problem")]
            for batch in opened.iter_batches(4096, columns=columns):
                total += batch.num_rows
                sources = batch.column("data_source").to_pylist() if "data_source" in columns else [""] * batch.num_rows
                seen: Counter[str] = Counter({source: len(rows) for source, rows in found.items()})
                for index, source in enumerate(sources):
                    if seen[source] < ROWS_OF_A_SOURCE:
                        seen[source] += 1
                        found.setdefault(source, []).extend(batch.slice(index, 1).to_pylist())
    in_turn = [row for rank in zip_longest(*found.values()) for row in rank if row is not None]
    return in_turn[:MOST_ROWS], total


def _last_try(said: str | bytes | None) -> str:
    """What the worker was at when it was stopped."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    tries = [line for line in text.splitlines() if line.startswith("trying the response ")]
    return tries[-1] if tries else "starting"


def _judged(answer: subprocess.CompletedProcess[str], location: str, where: str) -> list[str]:
    said = next((line for line in answer.stdout.splitlines() if line.startswith('{"verdict"')), None)
    if said is None:
        lines = [line for line in answer.stderr.strip().splitlines() if not line.startswith("trying the response ")]
        last = lines[-1:] or [f"exit code {answer.returncode}"]
        raise RecipeError(
            f"the reward ended its process: {last[0]}", where=f"{location} ({where})", fix="mend the reward file"
        )
    verdict = json.loads(said)
    if verdict["verdict"] == "wrong":
        raise RecipeError(verdict["what"], where=f"{verdict['where']} ({where})", fix=verdict["fix"])
    return list(verdict["remarks"])


def _plain(row: dict, recipe: Recipe) -> dict:
    """What a reward sees of a row, without images."""
    if recipe.engine == "easyr1":
        solution = (row.get("extra_info") or {}).get("solution")
        return {
            "data_source": row.get("data_source"),
            "ground_truth": row.get(recipe.data.answer_key),
            "extra_info": {"solution": solution},
        }
    reward_model = row.get("reward_model") or {}
    return {
        "data_source": row.get("data_source"),
        "ground_truth": reward_model.get("ground_truth"),
        "extra_info": row.get("extra_info"),
    }
