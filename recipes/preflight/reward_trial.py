"""Tries a reward on a few rows as an engine calls it, in a process of its own, for `recipes.preflight.reward`."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from recipes.data.rewards import is_score, load_reward
from recipes.engines import weighted_reward
from recipes.engines.easyr1 import reward as easyr1_reward
from recipes.engines.reward_metrics import is_right
from recipes.errors import RecipeError
from recipes.preflight.child import PROGRESS, answer_with
from recipes.python_files import awaited, split_function

FUNCTION = {"verl": "compute_score", "easyr1": "compute_score_batch"}
SIGNATURE = {
    "verl": "compute_score(data_source, solution_str, ground_truth, extra_info=None)",
    "easyr1": "compute_score_batch(reward_inputs)",
}
SCORE_KEY = {"verl": "score", "easyr1": "overall"}
WHOLE_REWARD = ("overall", "reward")
"""EasyR1's and verl's filter keys that need no part of their own in the answer."""
BUDGET_S = 20.0
"""No further row is tried after so long: the rows that were tried show that the reward is slow."""
SLOW_S = 0.05
INVALID_RESPONSES = ("", "\u00e9\u4e2d \\frac{ <answer>")
"""Responses that no reward may accept or fail on: an empty one, and one of unfinished markup."""

FIX_ROWS = "rename the data source, mend the ground truth, or give a reward of your own with --reward_func"
FIX_MACHINE = (
    "give the reward what it misses here (a package, a sandbox, the service at sandbox_fusion_url in "
    "worker.reward.reward_function_kwargs, right arguments), or leave the rows that need it out of the data"
)
"""For a problem that names no row: something is missing on the machine, or an argument is wrong."""
_ROW = re.compile(r"row (\d+)\b")


@dataclass(frozen=True)
class TrialRow:
    """What a reward gets of a row, as the data have it; under EasyR1 `extra_info` has the solution alone."""

    data_source: Any
    ground_truth: Any
    extra_info: Any


@dataclass(frozen=True)
class Question:
    """A reward, and what to try it on.

    Attributes:
        location: file.py or file.py:function.
        kwargs: its further arguments.
        filter_key: the part of its answers by which dynamic sampling drops groups.
        files: a reward that judges by data source is asked about every row of these.
        columns: of source and truth in the files.
        of_the_recipe: whether it is not the user's own.
        parts: the functions of a weighted sum, each of which is tried by itself as well.
        shared: the arguments that they share.
    """

    location: str
    engine: str
    rows: list[TrialRow]
    kwargs: dict[str, Any] = field(default_factory=dict)
    filter_key: str = "overall"
    files: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    of_the_recipe: bool = False
    parts: list[str] = field(default_factory=list)
    shared: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """Remarks on a reward, or what is wrong with it: the fields of a RecipeError."""

    remarks: list[str] = field(default_factory=list)
    what: str = ""
    where: str = ""
    fix: str = ""


def try_reward(question: Question) -> list[str]:
    """Remarks on a reward.

    Raises:
        RecipeError: the first thing that the trainer could not use.
    """
    engine, location = question.engine, question.location
    path, named = split_function(location)
    name = named or FUNCTION[engine]
    module = load_reward(location)
    function = getattr(module, name, None)
    if not callable(function):
        have = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise RecipeError(
            f"the reward file has no function {name} (it has {', '.join(have) or 'none'})",
            where=path,
            fix=f"define {name}, or name another as file.py:function",
        )
    if question.parts:
        _try_parts(question)
    else:
        for file in question.files:
            _check_sources(module, file, question.columns, question.kwargs)
        _refuse_unread(unread_arguments(function, set(question.kwargs)), {path: function})
    trial = Trial(function, path, engine, question.kwargs, question.filter_key)
    remarks = trial.run(question.rows)
    if question.of_the_recipe:
        trial.refuse_other_data()
    return remarks


def _try_parts(question: Question) -> None:
    """Try each function of a weighted sum, as that calls it. Raises RecipeError for the first that it could not use."""
    tried: dict[str, Callable[..., Any]] = {}
    unread = set(question.shared)
    for location in question.parts:
        path, named = split_function(location)
        module = load_reward(location)
        function = getattr(module, named or FUNCTION["verl"], None)
        if not callable(function):
            raise RecipeError(
                f"the reward file has no function {FUNCTION['verl']}",
                where=path,
                fix="define it, or name another as file.py:function; several rewards judge one response at a time",
            )
        given = weighted_reward.arguments_of(function, question.shared)
        for file in question.files:
            _check_sources(module, file, question.columns, given)
        Trial(function, path, "verl", given).run([_opened(row) for row in question.rows])
        unread &= (set(question.shared) - set(given)) | unread_arguments(function, set(given))
        tried[location] = function
    _refuse_unread(unread, tried)


def _opened(row: TrialRow) -> TrialRow:
    """A row whose truth is out of the envelope in which EasyR1 hands on the data source."""
    source, truth = easyr1_reward.opened(row.ground_truth)
    return replace(row, data_source=source, ground_truth=truth) if source else row


def _refuse_unread(unread: set[str], tried: dict[str, Callable[..., Any]]) -> None:
    if unread:
        signatures = [f"{function.__name__}{inspect.signature(function)}" for function in tried.values()]
        raise RecipeError(
            f"nothing in {', '.join(function.__name__ for function in tried.values())} reads "
            f"{', '.join(sorted(unread))}, which worker.reward.reward_function_kwargs gives",
            where=", ".join(tried),
            fix=f"use its own arguments: {'; '.join(signatures)}",
        )


def unread_arguments(function: Callable[..., Any], names: set[str]) -> set[str]:
    """Named arguments that only `**kwargs` takes, where neither the function nor one it hands them to reads those."""
    parameters = inspect.signature(function).parameters.values()
    rest = names - {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}
    keyword = next((each.name for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD), None)
    if not rest or keyword is None or not inspect.isfunction(function):
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == keyword]
    handed = [
        call.func.id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if any(each.arg is None and each.value in reads for each in call.keywords)
    ]
    if len(handed) < len(reads):
        return set()
    called = [inspect.unwrap(function).__globals__.get(name) for name in handed]
    return set.intersection(rest, *(unread_arguments(each, rest) if callable(each) else set() for each in called))


def _check_sources(module: ModuleType, file: str, columns: list[str], kwargs: dict[str, Any]) -> None:
    """Ask a reward that judges by data source, through its `check_sources`, whether it can judge every row."""
    check = getattr(module, "check_sources", None)
    problems = check(_truths(file, columns), **kwargs) if callable(check) else []
    if problems:
        row = _ROW.match(problems[0])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecipeError(
            f"the reward cannot judge this data: {problems[0]}{more}",
            where=(_line_of_row(file, int(row[1])) if row else "") + file,
            fix=FIX_ROWS if row else FIX_MACHINE,
        )


def _line_of_row(file: str, row: int) -> str:
    """`line 31 of my.jsonl; ` for a row, counted from 1, that was converted from a user's file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        leaves = {opened.schema.column(index).path for index in range(len(opened.schema))}
        if not {"extra_info.file", "extra_info.line"} <= leaves:
            return ""
        rows = opened.read(["extra_info.file", "extra_info.line"]).slice(row - 1, 1).to_pylist()
    return "".join(f"line {each['extra_info']['line']} of {each['extra_info']['file']}; " for each in rows)


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


def gold_answers(row: TrialRow) -> list[str]:
    """Return the gold answers of a row as a policy would state them; none where only a program could meet the truth.

    A worked solution may lack the marker that a reward reads, so that the truth is tried as well.
    """
    truth = row.ground_truth
    solution = (row.extra_info or {}).get("solution")
    stated = [str(solution)] if solution else []
    try:
        value = json.loads(truth) if isinstance(truth, str) and truth[:1] in "[{" else truth
    except ValueError:
        value = truth
    if isinstance(value, dict) and set(value) == {"data_source", "ground_truth"}:
        return stated + gold_answers(TrialRow(None, value["ground_truth"], None))
    if isinstance(value, list):
        value = value[0] if value and isinstance(value[0], str | int | float) else None
    return stated if value is None or isinstance(value, dict) else [*stated, str(value)]


GOLD_RESPONSES = ("{}", "<think>so</think>\n<answer>{}</answer>", "The answer is \\boxed{{{}}}.", "#### {}")
"""The usual ways to write an answer down."""


class Trial:
    """The calls of one reward function, and what they gave.

    Args:
        function: the reward.
        path: its file, for messages.
        engine: the engine whose call is made.
        kwargs: further arguments.
        filter_key: the part of the answers by which dynamic sampling drops groups.
    """

    def __init__(
        self, function: Callable[..., Any], path: str, engine: str, kwargs: dict[str, Any], filter_key: str = "overall"
    ) -> None:
        self.function, self.path, self.engine, self.kwargs = function, path, engine, kwargs
        self.filter_key, self.where = filter_key, f"{path}, {getattr(function, '__name__', FUNCTION[engine])}"
        self.scores: list[float] = []
        self.seconds: list[float] = []
        self.gold_is_better: dict[str, list[bool]] = {}  # data source -> of each row
        self.gold_is_right: list[bool] = []  # of each row with a gold answer
        self.without_gold: set[str] = set()
        self._keys: set[str] | None = None

    def run(self, rows: list[TrialRow]) -> list[str]:
        """Try every row, as long as time allows. Returns remarks; raises RecipeError for what no trainer could use."""
        begin = time.monotonic()
        for row in rows:
            gold = [form.format(answer) for answer in gold_answers(row) for form in GOLD_RESPONSES]
            judged = {response: self._judge(row, response) for response in (*INVALID_RESPONSES, *gold)}
            scores = {response: score for response, (score, _) in judged.items()}
            self.scores += scores.values()
            source = str(row.data_source or "the data")
            if gold:
                better = max(scores[response] for response in gold) > scores[""]
                self.gold_is_better.setdefault(source, []).append(better)
                self.gold_is_right.append(any(judged[response][1] for response in gold))
            else:
                self.without_gold.add(source)
            if time.monotonic() - begin > BUDGET_S:
                break
        return self._remarks()

    def _remarks(self) -> list[str]:
        remarks, varies = [], len(set(self.scores)) > 1
        if len(self.scores) > 1 and not varies:
            remarks.append(
                f"the reward gave {self.scores[0]:g} to each of {len(self.scores)} responses, right, wrong and empty "
                "ones: where all responses of a group score the same, nothing is learned"
            )
        for source, rows in sorted(self.gold_is_better.items()):
            if varies and not all(rows):
                remarks.append(
                    f"the gold answer scores no more than an empty response in {rows.count(False)} of {len(rows)} rows "
                    f"of {source}: does the reward read another form of answer?"
                )
        remarks += [
            f"no gold answer of {source} could be tried: a field `solution` with a right response would allow it"
            for source in sorted(self.without_gold - set(self.gold_is_better))
        ]
        later = self.seconds[1:]  # the first call may import something
        if later and sum(later) / len(later) > SLOW_S:
            each = 1000 * sum(later) / len(later)
            remarks.append(f"the reward takes {each:.0f} ms a call, more than {1000 * SLOW_S:.0f} ms")
        return remarks

    def refuse_other_data(self) -> None:
        """Raise where the reward of a recipe gives most gold answers of these rows less than full marks."""
        wrong = self.gold_is_right.count(False)
        if 2 * wrong > len(self.gold_is_right):
            raise RecipeError(
                f"{wrong} of {len(self.gold_is_right)} gold answers get no full marks: the reward is for other data",
                where=self.where,
                fix="give a reward for this data, --reward_func my_reward.py, or use examples/custom_task/train.sh",
            )

    def _judge(self, row: TrialRow, response: str) -> tuple[float, bool]:
        """The score of a response, and whether it is right."""
        print(f"{PROGRESS}the response {response[:60]!r}", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        result = self._call(row, response)
        self.seconds.append(time.perf_counter() - begin)
        score, keys = checked(result, self.engine, f"{self.where}, for the response {response[:60]!r}")
        have = keys or {"acc"}  # verl's name for a score that is no dict
        # On verl, `recipes.engines.samplers` finds the accuracy under any of its names.
        always = {*WHOLE_REWARD, *(("accuracy", "acc") if self.engine == "verl" else ())}
        if self.filter_key not in {*have, *always}:
            raise RecipeError(
                f"algorithm.filter_key is {self.filter_key!r}, which the reward's answer does not have: {sorted(have)}",
                where=self.where,
                fix="return it, or set algorithm.filter_key to one of these, or to overall: the whole reward",
            )
        # EasyR1 averages each key where it is; verl stacks them.
        if self.engine == "verl" and self._keys not in (None, keys):
            raise RecipeError(
                f"the reward answers with different keys: {sorted(keys ^ self._keys)} are not in every answer",
                where=self.where,
                fix="put the same keys into every answer; the trainer stacks them",
            )
        self._keys = keys
        return score, is_right({**result, "score": score} if isinstance(result, dict) else score)

    def _call(self, row: TrialRow, response: str) -> Any:
        if self.engine == "easyr1":
            entry = {"response": response, "response_length": len(response), "ground_truth": row.ground_truth}
            positional, named = [[entry]], self.kwargs
        else:
            positional, named = [], {**vars(row), "solution_str": response, **self.kwargs}
        self._check_signature(positional, named)
        try:
            result = self.function(*positional, **named)
            if self.engine == "easyr1":
                return result[0] if isinstance(result, list) and len(result) == 1 else result
            return awaited(result) if inspect.iscoroutinefunction(self.function) else result
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if Path(frame.filename).name == Path(self.path).name]
            place = f"{self.path}:{lines[-1]}" if lines else self.path
            raise RecipeError(
                f"the reward raises {type(error).__name__}: {error}",
                where=f"{place}, for the response {response[:60]!r}",
                fix="mend it; a reward must judge any text",
            ) from error

    def _check_signature(self, positional: list[Any], named: dict[str, Any]) -> None:
        if self.engine == "easyr1" and inspect.iscoroutinefunction(self.function):
            what, fix = "is async, and EasyR1 does not wait for it", "make it a plain function"
            raise RecipeError(f"{FUNCTION['easyr1']} {what}", where=self.where, fix=fix)
        signature = inspect.signature(self.function)
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            name = getattr(self.function, "__name__", "the reward")
            raise RecipeError(
                f"{name}{signature} cannot be called as the trainer calls it: {error}",
                where=self.path,
                fix=f"define {SIGNATURE[self.engine]}",
            ) from error


def checked(result: Any, engine: str, where: str) -> tuple[float, set[str]]:
    """The score and the keys of an answer. Raises RecipeError for one that the trainer could not use."""
    key = SCORE_KEY[engine]
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise RecipeError(
            "the reward answers with something to wait for, but is no async function: the trainer would not wait",
            where=where,
            fix="write `async def`",
        )
    if engine == "easyr1" and not isinstance(result, dict):
        what = f"the reward answers with {type(result).__name__}, not one dict a response"
        raise RecipeError(what, where=where, fix="return a list of dicts")
    values = result if isinstance(result, dict) else {}
    if isinstance(result, dict) and key not in result:
        what = f"the reward's answer has no {key!r}: {sorted(map(str, result))}"
        raise RecipeError(what, where=where, fix=f"put the score under {key!r}")
    score = values.get(key, result)
    if not is_score(score):
        raise RecipeError(f"the reward's score is {score!r}, not a finite number", where=where, fix="return a float")
    odd = [name for name, value in values.items() if engine == "easyr1" and not _is_number(value)]
    if odd:
        raise RecipeError(
            f"EasyR1 averages every key of the reward's answer, and {odd[0]!r} is {values[odd[0]]!r}, not a number",
            where=where,
            fix="leave it out, or return a number for each value that it has, such as reason/wrong: 1.0",
        )
    return float(score), set(map(str, values))


def _is_number(value: Any) -> bool:
    """Return whether NumPy's mean can be taken: of numbers and NumPy's scalars, not of text that looks like one."""
    try:
        return not isinstance(value, (str, bytes)) and float(value) is not None
    except (TypeError, ValueError):
        return False


def _verdict(question: Question) -> Verdict:
    try:
        return Verdict(try_reward(question))
    except RecipeError as error:
        return Verdict(what=error.what, where=error.where, fix=error.fix)


def main() -> None:
    """Answer `recipes.preflight.reward`."""
    answer_with(_verdict, Question)
