"""A reward function in any form that an engine calls, for one response or many; `contract` reads its answers.

| form | called as | answers |
|---|---|---|
| verl's | `compute_score(data_source=, solution_str=, ground_truth=, extra_info=)`, plain or async | number or dict |
| TRL's | `f(prompts=, completions=, **columns)`, lists of one, plain or async | list with a number or None |
| EasyR1's batch | `compute_score(reward_inputs)` | list of dicts with `overall` |
| EasyR1's sequential | `compute_score(reward_input)`, `REWARD_TYPE = "sequential"` in its file | dict with `overall` |
"""

import asyncio
import inspect
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from recipes.errors import RecipeError
from recipes.rewards.contract import ADVICE, Answer, Contract, RewardError
from recipes.rewards.loading import SIGNATURES, find_function, load_reward

VERL, BATCH, SEQUENTIAL = "verl", "batch", "sequential"
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
EASYR1_LENGTH = "easyr1_length"
"""Argument of a weighted sum, which hands EasyR1's `response_length` on to rewards of EasyR1's forms."""


@dataclass(frozen=True, slots=True)
class Call:
    """One response to judge."""

    data_source: str
    response: str
    ground_truth: Any
    extra_info: Any = None
    length: int | None = None  # tokens of the response, for EasyR1's forms; if None, they get the number of characters
    row: Any = None  # the row's id, for messages; None where it is not known


class RewardFunction:
    """A reward function of one of the forms above with its further arguments; its answers are checked."""

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, Any] | None = None, *, sequential: bool = False
    ) -> None:
        self.function = function
        self.arguments = dict(arguments or {})
        parameters = inspect.signature(function).parameters
        self._of_trl = "completions" in parameters
        self._named = None if any(each.kind is each.VAR_KEYWORD for each in parameters.values()) else set(parameters)
        self._needed = [name for name, each in parameters.items() if each.default is each.empty and each.kind in NAMED]
        self._takes_length = EASYR1_LENGTH in parameters
        sequential = sequential or getattr(function, "__globals__", {}).get("REWARD_TYPE") == SEQUENTIAL
        self.form = VERL if self._of_trl else _form(function, self.arguments, sequential)
        self.contract = Contract(function, "score" if self.form == VERL else "overall")
        self.is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        if self.is_async and self.form != VERL:
            raise RecipeError(
                f"{getattr(function, '__name__', 'the reward')} is async, and takes no single response of verl's form",
                where=self.contract.place,
                fix="leave async out, or take data_source, solution_str, ground_truth and extra_info",
            )

    def score(self, call: Call) -> Answer:
        """The answer for one response. Raises RewardError where the reward raises or breaks the contract."""
        return self.score_all([call])[0]

    def score_all(self, calls: Sequence[Call]) -> list[Answer]:
        """The answers for several responses, in their order; an async reward judges them at the same time."""
        if calls and self.form == BATCH:
            return self._batch(calls)
        if self.is_async:
            return awaited(self._gathered(calls))
        return [self._one(call) for call in calls]

    def score_as(self, engine: str, calls: Sequence[Call]) -> list[Answer]:
        """The answers as in training: verl calls a reward outside of the main thread, where `signal.alarm` raises."""
        if engine == "verl" and not self.is_async:
            return awaited(asyncio.to_thread(self.score_all, calls))
        return self.score_all(calls)

    async def score_async(self, call: Call) -> Answer:
        """The answer of an async function of verl's or TRL's form, awaited in the caller's event loop."""
        with self._errors_of(call):
            return self._read(await self.function(**self._of_verl(call)), call)

    async def _gathered(self, calls: Sequence[Call]) -> list[Answer]:
        return await asyncio.gather(*map(self.score_async, calls))

    def _one(self, call: Call) -> Answer:
        with self._errors_of(call):
            if self.form == VERL:
                return self._read(self.function(**self._of_verl(call)), call)
            return self._read(self.function(_input(call), **self.arguments), call)

    def _batch(self, calls: Sequence[Call]) -> list[Answer]:
        try:
            results = self.function([_input(call) for call in calls], **self.arguments)
        except Exception as error:
            raise self._failure(calls, error) from error
        if not isinstance(results, list | tuple) or len(results) != len(calls):
            what = f"the reward returned {type(results).__name__}, not a list with one dict a response"
            where = f"{self.contract.where(calls[0].response)}, and {len(calls) - 1} more"
            raise RewardError(what, where=where, fix=ADVICE.format(key="overall"))
        answers = []
        for result, call in zip(results, calls, strict=True):
            with self._errors_of(call):
                answers.append(self._read(result, call))
        return answers

    def _failure(self, calls: Sequence[Call], error: Exception) -> RewardError:
        """The error of a batch; it names the first response that alone raises the same."""
        for call in calls if len(calls) > 1 else ():
            try:
                with self._errors_of(call):
                    self.function([_input(call)], **self.arguments)
            except RewardError as alone:
                if type(alone.__cause__) is type(error):  # a reward that compares responses may fail otherwise for one
                    return alone
        failed = self.contract.raised(error, calls[0].response)
        if len(calls) == 1:
            return failed.of_row(calls[0].row)
        rows = ", ".join(dict.fromkeys(str(call.row) for call in calls if call.row is not None))
        where = f"{failed.where}, or one of {len(calls) - 1} more{rows and f'; rows {rows}'}"
        return RewardError(failed.what, where=where, fix=failed.fix)

    def _read(self, result: Any, call: Call) -> Answer:
        if self._of_trl:
            result = result.tolist() if hasattr(result, "tolist") else result
            if not isinstance(result, list | tuple) or len(result) != 1:
                what = f"the reward returned {result!r}, and one of TRL's form a list with a number for each completion"
                fix = "return a list with as many numbers as completions; None where it does not apply"
                raise RewardError(what, where=self.contract.where(call.response), fix=fix)
            result = 0.0 if result[0] is None else result[0]  # None means not applicable
        return self.contract.read(result, call.response)

    @contextmanager
    def _errors_of(self, call: Call) -> Iterator[None]:
        """Add the function, the response and the row to errors that the block raises."""
        try:
            yield
        except RewardError as error:  # it already names the reward, one of several
            raise error.of_row(call.row) from error.__cause__
        except Exception as error:
            raise self.contract.raised(error, call.response).of_row(call.row) from error

    def _of_verl(self, call: Call) -> dict[str, Any]:
        if self._of_trl:
            given = _as_trl(call)
            for name in self._needed:
                if name not in given and name not in self.arguments:
                    what = f"the reward takes {name}, and no row has it: rows have {', '.join(given)}"
                    fix = f"give {name} a default, or the data a column of that name"
                    raise RewardError(what, where=self.contract.where(call.response), fix=fix)
            return {name: given[name] for name in given if not self._named or name in self._named} | self.arguments
        given = {"data_source": call.data_source, "solution_str": call.response, "ground_truth": call.ground_truth}
        if self._takes_length:
            given[EASYR1_LENGTH] = call.length
        return {**given, "extra_info": call.extra_info, **self.arguments}


def with_turns(extra_info: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row's `extra_info` with what verl's usual manager adds for a response: prompt and response are two turns."""
    return {"num_turns": 2, "rollout_reward_scores": {}, **(extra_info or {})}


def load_function(
    location: str, arguments: Mapping[str, Any] | None = None, engine: str = "verl", module: ModuleType | None = None
) -> RewardFunction:
    """The reward function at `file.py` or `file.py:name`, as an engine takes it; `module` is the file, once loaded."""
    module = module or load_reward(location)
    sequential = getattr(module, "REWARD_TYPE", "batch") == SEQUENTIAL
    found = RewardFunction(find_function(module, location, engine), arguments, sequential=sequential)
    found.contract.one_kind = engine == "verl"
    return found


def _form(function: Callable[..., Any], arguments: Mapping[str, Any], sequential: bool) -> str:
    signature = inspect.signature(function)
    of_verl = dict.fromkeys(("data_source", "solution_str", "ground_truth", "extra_info"))
    problems = []
    for positional, named, form in (((), of_verl, VERL), (([],), {}, SEQUENTIAL if sequential else BATCH)):
        try:
            signature.bind(*positional, **{**named, **arguments})
        except TypeError as error:
            problems.append(str(error))
        else:
            return form
    what = f"no engine can call {getattr(function, '__name__', 'the reward')}{signature}: {problems[0]}"
    fix = f"define {SIGNATURES}; worker.reward.reward_function_kwargs gives {sorted(arguments) or 'nothing'}"
    raise RecipeError(what, where=Contract(function).place, fix=fix)


def _input(call: Call) -> dict[str, Any]:
    length = len(call.response) if call.length is None else call.length
    return {"response": call.response, "response_length": length, "ground_truth": call.ground_truth}


def _as_trl(call: Call) -> dict[str, Any]:
    """TRL's arguments of a reward, lists of one; a completion is a list of messages where the prompt is one."""
    extra = call.extra_info
    if not isinstance(extra, Mapping) or "asked" not in extra:
        raise ValueError("a reward of TRL's form needs rows that the custom-task kit made, and verl: ENGINE=verl")
    prompt = json.loads(extra["asked"])
    completion = call.response if isinstance(prompt, str) else [{"role": "assistant", "content": call.response}]
    row = {"data_source": call.data_source, "ground_truth": None if call.ground_truth == "" else call.ground_truth}
    row |= {"solution": extra["solution"] or None, "id": extra["id"], **json.loads(extra["fields"] or "{}")}
    return {name: [value] for name, value in {**row, "prompts": prompt, "completions": completion}.items()}


Result = TypeVar("Result")
_loop: asyncio.AbstractEventLoop | None = None
_starting = threading.Lock()
THREAD = "async rewards"
"""Name of the thread whose event loop runs async rewards."""


def awaited(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of an async reward, or what it raises; several threads can wait at the same time.

    One event loop per process runs all of them, as in verl: a client that a reward keeps between its calls is bound to
    the loop of the first call. Raises RuntimeError in that loop's thread, which would deadlock.
    """
    if threading.current_thread().name == THREAD:
        coroutine.close()
        raise RuntimeError("an async reward awaits another one itself: `await` it there")
    waiting = asyncio.run_coroutine_threadsafe(coroutine, _started_loop())
    try:
        return waiting.result()
    except BaseException:  # Ctrl-C among them; cancelling a finished future does nothing
        waiting.cancel()
        raise


def _started_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(_loop,), name=THREAD, daemon=True).start()
        return _loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    while True:  # SystemExit in a reward stops the loop; its next round passes the exception to the caller
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def _forget_loop() -> None:
    global _loop, _starting
    _loop, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)  # a forked child has the loop object but not its thread
