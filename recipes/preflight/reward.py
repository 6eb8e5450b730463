"""The reward function on real rows, before the start: called as an engine calls it, in a process of its own."""

import dis
import inspect
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from statistics import fmean
from types import ModuleType
from typing import Any, cast

from recipes.config import Recipe
from recipes.config.rewards import functions, is_own, is_weighted, reward_call, shown_reward
from recipes.data.rows import place_of, read_rows, row_count
from recipes.engines.columns import answer_column
from recipes.engines.worked_answers import last_text
from recipes.errors import RecipeError, did_you_mean
from recipes.preflight import data_files
from recipes.preflight.child import PROGRESS, ask
from recipes.rewards import easyr1 as easyr1_reward
from recipes.rewards import weighted
from recipes.rewards.contract import Answer, is_right
from recipes.rewards.function import Call, RewardFunction, load_function, with_turns
from recipes.rewards.loading import find_function, load_reward
from recipes.rewards.metrics import filter_metric

ROWS_OF_A_SOURCE = 3
MOST_ROWS = 24
LIMIT_S = 300.0
"""Seconds until the first response is judged; on a slow machine imports take a minute."""
RESPONSE_LIMIT_S = 60.0
"""Seconds that a reward may take for a response, for one that never returns."""
ROWS_A_SECOND = 2000
"""Rows a second that a reward has to check through `check_sources`; they extend the time limit."""


def check_reward(recipe: Recipe) -> list[str]:
    """Raise where the reward fails at import, cannot be called, or answers with something that is not a score.

    Returns remarks: a constant score, a gold answer that scores no more than an empty response, slow calls.
    """
    key = "worker.reward.reward_function"
    if reward_call(recipe) is None:
        return [f"{key} is null: rewards of {recipe.engine} judge, if it has one for the rows' data source"]
    return ask(
        trial,
        recipe,
        limit_s=LIMIT_S + row_count(recipe) / ROWS_A_SECOND,
        step_limit_s=RESPONSE_LIMIT_S,
        where=f"{shown_reward(recipe)}; {key}: {recipe.source_of(key)}",
        fix="mend the reward: it must return, not exit, in a time in proportion to the response's length",
    )


def trial(recipe: Recipe) -> list[str]:
    """Try a recipe's reward on its data, and each function of a weighted reward; runs in a child process.

    Returns remarks. Raises RecipeError for the first thing that the trainer could not use: the reward, or an answer.
    """
    call = reward_call(recipe)
    assert call is not None
    location, arguments = call
    engine, judges = recipe.engine, [call]
    if is_weighted(recipe):  # `rewards/weighted.py` calls its parts by verl's names
        engine, shared = "verl", recipe.worker.reward.reward_function_kwargs
        judges = [
            (part, weighted.arguments_of(find_function(load_reward(part), part), shared)) for part in functions(recipe)
        ]
    files = [key.path for key in data_files.files(recipe)]
    columns = ["data_source", "reward_model"] if recipe.engine == "verl" else [answer_column(recipe)]
    notes: dict[str, str] = {}
    read: list[set[str] | None] = []
    for part, named in judges:
        module = load_reward(part)
        load_function(part, named, engine, module)  # raises for a function that no engine can call
        # EasyR1's entry of the rewards here hands its arguments on to verl's.
        read.append(_arguments_read(find_function(module, part, engine if is_own(recipe) else "verl")))
        for file in files:
            truths = ((str(row.get("data_source", "")), _truth(row, recipe)) for row in read_rows(file, columns))
            notes = _check_sources(module, file, truths, named) | notes
    key, known = "worker.reward.reward_function_kwargs", {name for names in read for name in names or ()}
    unread = sorted(recipe.value(key).keys() - known) if None not in read else []
    if unread:
        fix = did_you_mean(unread[0], known) or "leave it out"
        raise recipe.error(f"nothing in the reward reads its argument {unread[0]}", fix, key)
    rows = [_call(row, recipe) for row in _rows_by_source(files, ["data_source", "extra_info", *columns])]
    filter_key = recipe.algorithm.filter_key if recipe.algorithm.online_filtering else "overall"
    tried = try_reward(location, recipe.engine, rows, arguments, filter_key, ours=not is_own(recipe))
    return [f"{truth} {text}" for text, truth in notes.items()] + tried


def _arguments_read(function: Callable[..., Any]) -> set[str] | None:
    """The arguments that a reward's function names; None where it, or a decorator, may read others through its `**`."""
    if hasattr(function, "__wrapped__"):
        return None
    parameters = inspect.signature(function).parameters.values()
    others = {each.name for each in parameters if each.kind is each.VAR_KEYWORD}
    code = getattr(function, "__code__", None)
    if not others or code is None:
        return None if others else {each.name for each in parameters}
    read = {each.argval for each in dis.get_instructions(code) if isinstance(each.argval, str)}
    return None if read & {*others, "locals", "vars", "eval"} else {each.name for each in parameters} - others


def _rows_by_source(files: list[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """The first rows of every data source, in turn."""
    first: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in chain.from_iterable(read_rows(file, columns) for file in files):
        if len(of_source := first[str(row.get("data_source"))]) < ROWS_OF_A_SOURCE:
            of_source.append(row)
    in_turn = [row for rank in zip_longest(*first.values()) for row in rank if row is not None]
    return in_turn[:MOST_ROWS]


_TURNS = [
    {"role": "assistant", "content": '<tool_call>{"name": "f", "arguments": {}}</tool_call>'},
    {"role": "tool", "content": "#### 24", "failed": True},
    {"role": "assistant", "content": ""},
]
EXAMPLE = {"turns": _TURNS, "model_turns": 2, "tool_calls": 1, "failed_calls": 1, "ended": "answer"}
"""A reward's arguments for a response with a call (`recipes/dumps.py`)."""


def _call(row: dict[str, Any], recipe: Recipe) -> Call:
    """A reward's arguments for a row, without a response; gold answers need `extra_info` on EasyR1, too."""
    source, extra = cast("str", row.get("data_source")), row.get("extra_info")  # EasyR1's rows may have no source
    extra = extra if isinstance(extra, dict) else {}  # EasyR1's may be a text
    conversation = EXAMPLE if recipe.worker.rollout.tools else {}
    return Call(source, "", _truth(row, recipe), with_turns({**extra, **conversation}), row=extra.get("id"))


def _truth(row: dict[str, Any], recipe: Recipe) -> Any:
    """The ground truth of a row, as the engine reads it."""
    in_column = recipe.engine == "easyr1"
    return row.get(answer_column(recipe)) if in_column else (row.get("reward_model") or {}).get("ground_truth")


WHOLE_REWARD = ("overall", "reward")
"""EasyR1's and verl's filter keys that need no part of their own in the answer."""
BUDGET_S = 20.0
"""Seconds after which no further row is tried: the rows so far show that the reward is slow."""
SLOW_S = 0.05
INVALID_RESPONSES = ("", "\u00e9\u4e2d \\frac{ <answer>")
"""Wrong responses that every reward must judge without an error: an empty one, and one of unfinished markup."""

FIX_ROWS = "rename the data source, mend the ground truth, or give a reward of your own with --reward_func"
FIX_MACHINE = (
    "give the reward what it misses here (a package, a sandbox, right arguments in "
    "worker.reward.reward_function_kwargs), or leave the rows that need it out of the data"
)
"""The fix for a problem that names no row."""
_ROW = re.compile(r"row (\d+)\b")


def try_reward(
    location: str,
    engine: str,
    rows: list[Call],
    arguments: Mapping[str, Any] | None = None,
    filter_key: str = "overall",
    *,
    ours: bool = False,
) -> list[str]:
    """Remarks on a reward's answers to empty, broken and gold responses; `ours` is one of the repository.

    Raises RecipeError for the first answer that the trainer could not use, or where our reward does not fit the data.
    """
    function = load_function(location, arguments, engine)
    scores, seconds = list[float](), list[float]()
    full_marks: list[bool] = []  # of rows with gold answers and a stated accuracy: one is fully right
    is_better: dict[str, list[bool]] = defaultdict(list)  # data source -> gold scores more than an empty response
    poor: list[tuple[str, bool]] = []  # row of each worked answer, and whether another form of a gold answer earns more
    reasons: set[str] = set()  # why gold answers are not right, as our rewards say it
    begin = time.monotonic()
    for row in rows:
        gold = [form.format(answer) for answer in gold_answers(row) for form in GOLD_RESPONSES]
        judged = {}
        for response in (*INVALID_RESPONSES, *gold):
            called = time.perf_counter()
            judged[response] = _judge(function, engine, filter_key, row, response)
            seconds.append(time.perf_counter() - called)
        scores += [answer.score for answer in judged.values()]
        empty, answers = judged[""], [judged[response] for response in gold]
        if answers:
            is_better[str(row.data_source or "the data")].append(max(each.score for each in answers) > empty.score)
            info = row.extra_info or {}
            if gold[0] == last_text(info.get("solution")) and gold[0] not in gold_answers(row)[1:]:  # not the truth
                wrong = max(judged[response].score for response in INVALID_RESPONSES)
                place = place_of(info) or f"row {info.get('index') if row.row is None else row.row}"
                poor.append((place, _is_poor(answers, wrong)))
            if empty.accuracy is not None:
                full_marks.append(any(is_right(answer.accuracy) for answer in answers))
                reasons |= set() if full_marks[-1] else {str(answers[0].parts.get("reason", ""))}
        if time.monotonic() - begin > BUDGET_S:
            break
    wrong = full_marks.count(False)
    if ours and 2 * wrong > len(full_marks):
        hints = getattr(load_reward(location), "HINTS", {})
        why = ", ".join(hints.get(reason, reason) for reason in sorted(reasons)) or "wrong"
        raise RecipeError(
            f"{wrong} of {len(full_marks)} gold answers get no full marks ({why}): the reward is for other data",
            where=function.contract.place,
            fix="give a reward for this data, or name the data's own by --data_source or --reward_func, with "
            "examples/custom_task/train.sh",
        )
    remarks = _remarks(scores, is_better, seconds[1:])  # the first call may import something
    if worse := [place for place, is_poor in poor if is_poor]:
        what = f"{len(worse)} of {len(poor)} tried solutions earn less than the full score, the first in {worse[0]}"
        remarks.append(f"{what}: a wrong answer, or one in a form that the reward does not read")
    return remarks


def _is_poor(answers: list[Answer], wrong: float) -> bool:
    """Return whether the first answer is not right and another is: as they state it, or by the score of a `wrong` one.

    A right response may earn less than another by its form or its length.
    """
    rights = [each.score > wrong if each.accuracy is None else is_right(each.accuracy) for each in answers]
    return not rights[0] and any(rights)


def _judge(function: RewardFunction, engine: str, filter_key: str, row: Call, response: str) -> Answer:
    """The reward's answer. Raises RecipeError where the answer lacks the filter key."""
    print(f"{PROGRESS}the response {response[:60]!r}", file=sys.stderr, flush=True)
    if engine == "easyr1":
        item = {"response": response, "response_length": len(response), "ground_truth": row.ground_truth}
        answer = function.score(easyr1_reward.call_of(item, function.form))
        have, key = easyr1_reward.numbers("", answer), filter_key
    else:
        answer = function.score_as(engine, [replace(row, response=response)])[0]
        have = {name: value for name, value in answer.as_verl().items() if isinstance(value, int | float)}
        key = filter_metric(filter_key, have)
    if key not in {*have, *WHOLE_REWARD}:
        what = f"algorithm.filter_key is {filter_key!r}, which is no number of the reward's answer: {sorted(have)}"
        fix = "return it as a number, or set algorithm.filter_key to one of these, or to overall: the whole reward"
        raise RecipeError(what, where=function.contract.place, fix=fix)
    return answer


def _remarks(scores: list[float], is_better: dict[str, list[bool]], seconds: list[float]) -> list[str]:
    if is_better and len(set(scores)) == 1:
        remarks = [
            f"the reward gave {scores[0]:g} to each of {len(scores)} responses, right, wrong and empty ones: where all "
            "responses of a group score the same, nothing is learned"
        ]
    else:
        remarks = [
            f"the gold answer scores no more than an empty response in {rows.count(False)} of {len(rows)} rows of "
            f"{source}: does the reward read another form of answer?"
            for source, rows in sorted(is_better.items())
            if not all(rows)
        ]
    if seconds and (each := fmean(seconds)) > SLOW_S:
        remarks.append(f"the reward takes {1000 * each:.0f} ms a call, more than {1000 * SLOW_S:.0f} ms")
    return remarks


def _check_sources(
    module: ModuleType, file: str, truths: Iterator[tuple[str, Any]], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Ask a reward that judges by data source whether it can judge every row, by its `check_sources`.

    Returns its notes on truths, by its `note`: each once, with the first truth that it is about.
    """
    check, note = getattr(module, "check_sources", None), getattr(module, "note", None)
    notes: dict[str, str] = {}

    def noted() -> Iterator[tuple[str, Any]]:
        for source, truth in truths:
            if callable(note) and (found := note(source, truth)):
                notes.setdefault(*found)
            yield source, truth

    problems = check(noted(), **arguments) if callable(check) else []
    if problems:
        numbers = [int(named[1]) if (named := _ROW.match(problem)) else 0 for problem in problems]
        lines = {}  # of the user's file that the rows, counted from 1, were converted from
        for number, row in enumerate(islice(read_rows(file, ["extra_info"]), max(numbers)), 1):
            if number in numbers and (place := place_of(row.get("extra_info"))):
                lines[number] = f"{place}; "
        more = [lines.get(number, "") + problem for number, problem in zip(numbers[1:], problems[1:], strict=True)]
        what = "\n  ".join([f"the reward cannot judge this data: {problems[0]}", *more])
        raise RecipeError(what, where=lines.get(numbers[0], "") + file, fix=FIX_ROWS if numbers[0] else FIX_MACHINE)
    return notes


def gold_answers(row: Call) -> list[str]:
    """The gold answers of a row as a policy would state them; none where the truth is no plain answer.

    A worked solution may lack the marker that a reward reads, so the truth is tried as well.
    """
    _, truth = easyr1_reward.unwrapped(row.ground_truth)
    solution = last_text((row.extra_info or {}).get("solution"))
    stated = [solution] if solution else []
    try:
        value = json.loads(truth) if isinstance(truth, str) and truth[:1] in "[{" else truth
    except ValueError:
        value = truth
    if isinstance(value, list):
        is_plain = bool(value) and isinstance(value[0], str | int | float)
        stated += [str(value[0])] if is_plain else []
        value = truth if is_plain and isinstance(truth, str) else None  # [1, 2] may be an interval
    return stated if value in (None, "") or isinstance(value, dict) else [*stated, str(value)]


GOLD_RESPONSES = ("{}", "<think>so</think>\n<answer>{}</answer>", "The answer is \\boxed{{{}}}.", "#### {}")
"""The usual ways to write an answer down."""
