"""The reward function on real rows, before the trainer starts."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import numbers
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from recipes.config import Recipe, path_keys
from recipes.engines import easyr1
from recipes.errors import RecipeError
from recipes.paths import ROOT

KEY = {"verl": "score", "easyr1": "overall"}
SIGNATURE = {
    "verl": "compute_score(data_source, solution_str, ground_truth, extra_info=None)",
    "easyr1": "compute_score_batch(reward_inputs)",
}
WHOLE_REWARD = ("overall", "reward")
"""EasyR1's and verl's name of what needs no part of its own in the answer."""
BUDGET_S = 20.0
"""No further row is tried after so long: the rows that were tried tell that the reward is slow."""
SLOW_S = 0.05
INVALID_RESPONSES = ("", "\u00e9\u4e2d \\frac{ <answer>")
"""Responses that no reward may accept or fail on: an empty one, and one of unfinished markup."""


def answers(row: dict[str, Any]) -> list[str]:
    """The gold answers of a row as a policy would state them; none where only a program could meet the truth."""
    truth = row.get("ground_truth")
    solution = (row.get("extra_info") or {}).get("solution")
    if solution:
        return [str(solution)]
    try:
        value = json.loads(truth) if isinstance(truth, str) and truth[:1] in "[{" else truth
    except ValueError:
        value = truth
    if isinstance(value, dict) and set(value) == {"data_source", "ground_truth"}:
        return answers({"ground_truth": value["ground_truth"]})
    if isinstance(value, list):
        value = value[0] if value and isinstance(value[0], str | int | float) else None
    return [] if value is None or isinstance(value, dict) else [str(value)]


def golds(row: dict[str, Any]) -> list[str]:
    """Responses with the gold answer in the usual wrappings."""
    return [
        response
        for answer in answers(row)
        for response in (
            answer,
            f"<think>so</think>\n<answer>{answer}</answer>",
            f"The answer is \\boxed{{{answer}}}.",
            f"#### {answer}",
        )
    ]


@dataclass
class Trial:
    """What the calls gave.

    Attributes:
        function, name, path: the reward, its name, and its file, for messages.
        engine: whose call is made.
        kwargs: further arguments.
        filter_key: the part of the answers by which dynamic sampling drops groups.
        scores: every score.
        seconds: of every call; the first, which may import something, is not counted.
        better: data source -> whether a gold answer scored above an empty response, for each row.
        without_gold: data sources whose gold answer cannot be written down.
    """

    function: Callable[..., Any]
    name: str
    path: str
    engine: str
    kwargs: dict[str, Any]
    filter_key: str = "overall"
    scores: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    better: dict[str, list[bool]] = field(default_factory=dict)
    without_gold: set[str] = field(default_factory=set)
    _keys: set[str] | None = None

    def run(self, rows: list[dict[str, Any]]) -> list[str]:
        """Try every row, as long as time allows. Returns remarks; raises RecipeError for what no trainer could use."""
        begin = time.monotonic()
        for row in rows:
            self._row(row)
            if time.monotonic() - begin > BUDGET_S:
                break
        return [*self._constant(), *self._gold(), *self._slow()]

    def _row(self, row: dict[str, Any]) -> None:
        scores = {response: self._score(row, response) for response in (*INVALID_RESPONSES, *golds(row))}
        source = str(row.get("data_source") or "the data")
        if gold := golds(row):
            self.better.setdefault(source, []).append(max(scores[response] for response in gold) > scores[""])
        else:
            self.without_gold.add(source)
        self.scores += scores.values()

    def _score(self, row: dict[str, Any], response: str) -> float:
        print(f"trying the response {response[:60]!r}", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        result = self._call(row, response)
        self.seconds.append(time.perf_counter() - begin)
        where = f"{self.path}, {self.name}, for the response {response[:60]!r}"
        score, keys = checked(result, self.engine, where)
        self._can_filter(keys or {"acc"})  # verl's name for a score that is no dict
        if self._keys is not None and keys != self._keys:
            raise RecipeError(
                f"the reward answers with different keys: {sorted(keys ^ self._keys)} are not in every answer",
                where=f"{self.path}, {self.name}",
                fix="put the same keys into every answer; the trainer stacks them",
            )
        self._keys = None if self.engine == "easyr1" else keys  # EasyR1 averages each key where it is
        return score

    def _call(self, row: dict[str, Any], response: str) -> Any:
        if self.engine == "easyr1":
            entry = {"response": response, "response_length": len(response), "ground_truth": row["ground_truth"]}
            arguments: dict[str, Any] = {"reward_inputs": [entry]}
        else:
            arguments = {name: row[name] for name in ("data_source", "ground_truth", "extra_info")}
            arguments["solution_str"] = response
        self._fits(arguments)
        try:
            if self.engine == "easyr1":
                results = self.function(arguments["reward_inputs"], **self.kwargs)
                return results[0] if isinstance(results, list) and len(results) == 1 else results
            result = self.function(**arguments, **self.kwargs)
            return asyncio.run(result) if inspect.iscoroutinefunction(self.function) else result
        except Exception as error:  # allowed: whatever a user's reward raises is the user's to see
            raise RecipeError(
                f"the reward raises {type(error).__name__}: {error}",
                where=f"{self.path}{_line(error, self.path)}, for the response {response[:60]!r}",
                fix="mend it; a reward must judge any text",
            ) from error

    def _can_filter(self, keys: set[str]) -> None:
        if self.filter_key not in {*keys, *WHOLE_REWARD}:
            raise RecipeError(
                f"algorithm.filter_key is {self.filter_key!r}, which the reward's answer does not have: {sorted(keys)}",
                where=f"{self.path}, {self.name}",
                fix="return it, or set algorithm.filter_key to one of these, or to overall: the whole reward",
            )

    def _fits(self, arguments: dict[str, Any]) -> None:
        """The function can be called as the engine calls it."""
        if self.engine == "easyr1" and inspect.iscoroutinefunction(self.function):
            raise RecipeError(
                f"{self.name} is async, and EasyR1 does not wait for it",
                where=self.path,
                fix="make it a plain function",
            )
        positional = [arguments["reward_inputs"]] if self.engine == "easyr1" else []
        named = {} if positional else arguments
        try:
            inspect.signature(self.function).bind(*positional, **named, **self.kwargs)
        except TypeError as error:
            raise RecipeError(
                f"{self.name}{inspect.signature(self.function)} cannot be called as the trainer calls it: {error}",
                where=self.path,
                fix=f"define {SIGNATURE[self.engine]}",
            ) from error

    def _constant(self) -> list[str]:
        if len(self.scores) < 2 or len(set(self.scores)) > 1:
            return []
        return [
            f"the reward gave {self.scores[0]:g} to each of {len(self.scores)} responses, right, wrong and empty ones: "
            "where all responses of a group score the same, nothing is learned"
        ]

    def _gold(self) -> list[str]:
        remarks = []
        for source, rows in sorted(self.better.items()):
            if not all(rows) and len(set(self.scores)) > 1:
                remarks.append(
                    f"the gold answer scores no more than an empty response in {rows.count(False)} of {len(rows)} rows "
                    f"of {source}: does the reward read another form of answer?"
                )
        for source in sorted(self.without_gold - set(self.better)):
            remarks.append(
                f"no gold answer of {source} could be tried: a field `solution` with a right response would allow it"
            )
        return remarks

    def _slow(self) -> list[str]:
        if len(self.seconds) < 2 or (mean := sum(self.seconds[1:]) / (len(self.seconds) - 1)) <= SLOW_S:
            return []
        return [f"the reward takes {1000 * mean:.0f} ms a call, more than {1000 * SLOW_S:.0f} ms"]


def checked(result: Any, engine: str, where: str) -> tuple[float, set[str]]:
    """The score and the keys of an answer. Raises RecipeError for one that the trainer could not use."""
    key = KEY[engine]
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise RecipeError(
            "the reward answers with something to wait for, but is no async function: the trainer would not wait",
            where=where,
            fix="write `async def`",
        )
    if isinstance(result, dict):
        if key not in result:
            raise RecipeError(
                f"the reward's answer has no {key!r}: {sorted(map(str, result))}",
                where=where,
                fix=f"put the score under {key!r}",
            )
        score, keys = result[key], {str(name) for name in result}
    elif engine == "verl":
        score, keys = result, set()
    else:
        raise RecipeError(
            f"the reward answers with {type(result).__name__}, not one dict a response",
            where=where,
            fix="return a list of dicts",
        )
    if not isinstance(score, numbers.Real) or not math.isfinite(score):
        raise RecipeError(f"the reward's score is {score!r}, not a finite number", where=where, fix="return a float")
    if engine == "easyr1" and (odd := [name for name, value in result.items() if not _averaged(value)]):
        raise RecipeError(
            f"EasyR1 averages every key of the reward's answer, and {odd[0]!r} is {result[odd[0]]!r}, not a number",
            where=where,
            fix="leave it out, or return a number for each value that it has, such as reason/wrong: 1.0",
        )
    return float(score), keys


def _averaged(value: Any) -> bool:
    """Can NumPy's mean be taken of it? Of numbers and NumPy's scalars, not of text that looks like one."""
    if isinstance(value, (str, bytes)):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _line(error: BaseException, path: str) -> str:
    """`:12`, the last line of the reward's file that the error came through."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == Path(path).name
    ]
    return f":{frames[-1].lineno}" if frames else ""


ROWS_OF_A_SOURCE = 3
MOST_ROWS = 24
LIMIT_S = 60.0
ROWS_A_SECOND = 2000
"""Rows whose ground truth a reward that judges by data source is given time to read."""


def check_reward(recipe: Recipe) -> list[str]:
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
