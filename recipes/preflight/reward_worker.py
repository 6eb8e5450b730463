"""Tries a reward file on a few rows: reads a question on standard input, prints one verdict. See `reward`."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from recipes.config.path_keys import split_function
from recipes.data.rewards import load_reward
from recipes.errors import RecipeError
from recipes.preflight.reward import Trial

DEFAULT_FUNCTION = {"verl": "compute_score", "easyr1": "compute_score_batch"}
OF_THE_ROWS = "rename the data source, mend the ground truth, or give a reward of your own with --reward_func"
OF_THE_REST = (
    "give the reward what it misses here (a package, a sandbox, the service at sandbox_fusion_url in "
    "worker.reward.reward_function_kwargs, right arguments), or leave the rows that need it out of the data"
)
"""For a problem that names no row: something is missing on the machine, or an argument is wrong."""
_ROW = re.compile(r"row (\d+)\b")


def try_reward(question: dict[str, Any]) -> list[str]:
    """Remarks on a reward. Raises RecipeError for the first thing that the trainer could not use."""
    engine, location = question["engine"], question["location"]
    path, named = split_function(location)
    name = named or DEFAULT_FUNCTION[engine]
    module = load_reward(location)
    function = getattr(module, name, None)
    if not callable(function):
        have = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise RecipeError(
            f"the reward file has no function {name} (it has {', '.join(have) or 'none'})",
            where=path,
            fix=f"define {name}, or name another as file.py:function",
        )
    for file in question["files"]:
        _knows_sources(module, file, question["columns"], question["kwargs"])
    trial = Trial(function, name, path, engine, question["kwargs"], question["filter_key"])
    return trial.run(question["rows"])


def _knows_sources(module: ModuleType, file: str, columns: list[str], kwargs: dict[str, Any]) -> None:
    """Ask a reward that judges by data source, through its `check_sources`, whether it can judge every row."""
    check = getattr(module, "check_sources", None)
    if not callable(check):
        return
    problems = check(_truths(file, columns), **kwargs)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecipeError(
            f"the reward cannot judge this data: {problems[0]}{more}",
            where=f"{_origin(file, problems[0])}{file}",
            fix=OF_THE_ROWS if _ROW.match(problems[0]) else OF_THE_REST,
        )


def _origin(file: str, problem: str) -> str:
    """`line 31 of my.jsonl; `, where a problem names a row that was converted from a user's file."""
    import pyarrow.parquet as pq

    named = _ROW.match(problem)
    with pq.ParquetFile(file) as opened:
        if named is None or not {"extra_info.file", "extra_info.line"} <= set(_leaves(opened)):
            return ""
        rows = opened.read(["extra_info.file", "extra_info.line"]).slice(int(named[1]) - 1, 1).to_pylist()
    return "".join(f"line {row['extra_info']['line']} of {row['extra_info']['file']}; " for row in rows)


def _leaves(opened: Any) -> list[str]:
    """Dotted names of a parquet file's columns."""
    return [opened.schema.column(index).path for index in range(len(opened.schema))]


def _truths(file: str, columns: list[str]) -> Iterator[tuple[str, Any]]:
    """(data source, ground truth) of every row; a name with a dot goes into a struct."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(4096, columns=columns):
            for row in batch.to_pylist():
                truth: Any = row
                for part in columns[-1].split("."):
                    truth = truth[part]
                yield str(row.get("data_source", "")), truth


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    printed = sys.stdout
    sys.stdout = sys.stderr  # a reward that prints must not spoil the verdict
    try:
        verdict: dict[str, Any] = {"verdict": "fine", "remarks": try_reward(question)}
    except RecipeError as error:
        verdict = {"verdict": "wrong", "what": error.what, "where": error.where, "fix": error.fix}
    print(json.dumps(verdict), file=printed, flush=True)


if __name__ == "__main__":
    main()
