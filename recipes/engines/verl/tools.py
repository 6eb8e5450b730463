"""A recipe's tools: a Python file that is loaded by path, and calls of its functions that are limited and never raise.

A tool is a function with types and a docstring in Google's form, marked by verl's `function_tool`; where the file marks
none, every public function that it defines is a tool, or those of `__all__`. verl's own loop has no limit of time, and
runs tools in the threads that tokenise.
"""

import asyncio
import functools
import inspect
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from pydantic import TypeAdapter, ValidationError, validate_call

from recipes.config import Recipe
from recipes.errors import RecipeError, abbreviated
from recipes.files import json_sha256, sha256
from recipes.rewards.identity import own_files
from recipes.rewards.loading import load_reward

VARIABLE = "RECIPES_TOOLS"
"""Environment variable by which the trainer's processes get `ToolSettings`, as JSON."""
AT_ONCE = 64
"""Most calls of a process that run at the same time; the others wait, and their time has not begun."""
MOST_HANGING = 256
"""Calls that go on beyond their time, whose threads Python cannot end, with which a process calls no tool any more."""
CUT = "... (cut)"
PARAMETERS = "function.parameters.properties."
"""Place of a tool's parameters in its schema."""
UNREADABLE = ""
"""Name of a call that a parser found and could not read; its arguments say why."""


@dataclass(frozen=True)
class ToolSettings:
    """The keys of `worker.rollout` for tools."""

    file: str
    format: str
    max_turns: int
    seconds: float
    characters: int


def tool_settings(recipe: Recipe) -> ToolSettings | None:
    """The recipe's settings; None where it has no tools. Raises RecipeError where a call could not be answered."""
    rollout = recipe.worker.rollout
    if rollout.tools and rollout.max_turns < 2:
        raise recipe.error("with one turn no call is run", "set MAX_TURNS to 2 or more", "worker.rollout.max_turns")
    limits = (rollout.max_turns, rollout.tool_seconds, rollout.max_tool_characters)
    return ToolSettings(rollout.tools, rollout.tool_format, *limits) if rollout.tools else None


def environment(recipe: Recipe) -> dict[str, str]:
    """The variable that `given` reads."""
    settings = tool_settings(recipe)
    return {VARIABLE: json.dumps(asdict(settings))} if settings else {}


def given() -> ToolSettings:
    """The settings that the launcher gave this process."""
    return ToolSettings(**json.loads(os.environ[VARIABLE]))


def load_tools(file: str) -> list[Any]:
    """The tools of a file, as verl's `FunctionTool`s in the order of their names, whose `fn` checks its arguments.

    Raises RecipeError for a file that is missing, fails at import or has no tool, and a function without types or text.
    """
    return _loaded(file, file_digest(file))


@functools.cache  # a file beside it is imported once, and marks its tools then
def _loaded(file: str, digest: str) -> list[Any]:
    from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, function_tool

    FUNCTION_TOOL_REGISTRY.clear()  # verl refuses a second tool of the same name, even another file's
    module = load_reward(file, "tools'")
    if not FUNCTION_TOOL_REGISTRY:
        own, listed = module.__name__, getattr(module, "__all__", None)
        for name in [name for name in vars(module) if name[0] != "_"] if listed is None else listed:
            given = getattr(module, name, None)
            if not (listed or isinstance(given, functools.partial) or getattr(given, "__module__", "") == own):
                continue  # imported
            if inspect.isroutine(given):  # functools.cache's are, too
                _made(name, given, file, function_tool(name))
            elif listed or (callable(given) and not inspect.isclass(given)):
                what, fix = f"{name} is no function, but {abbreviated(given)}", "write it as one (def)"
                fix += ", or take it out of __all__" if listed else ", or begin its name with _"
                raise RecipeError(what, where=file, fix=fix)
    tools = [FUNCTION_TOOL_REGISTRY[name] for name in sorted(FUNCTION_TOOL_REGISTRY)]
    FUNCTION_TOOL_REGISTRY.clear()
    for tool in tools:
        shown = tool.tool_schema.function
        tool.name, tool.fn = shown.name, _made(tool.name, tool.fn, file, functools.partial(_validated, shown))
    if not tools:
        raise RecipeError("the tools' file has no public function", where=file, fix="define one")
    return tools


def _made(name: str, function: Callable[..., Any], file: str, made: Callable[..., Any]) -> Any:
    try:
        return made(function)
    except Exception as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        said, named = " ".join(str(error).split()), ""
        place = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else ""
        if place.startswith(PARAMETERS):  # verl's schema, in which a parameter has a type
            named = place.removeprefix(PARAMETERS).partition(".")[0]
            said = f"its parameter {named} has a type that a schema cannot name, such as Any"
        what = f"the function {name} can be no tool: {said}"
        fix = "give each parameter a type and a line `name: text` under Args:, return str, or begin the name with _"
        fix = f"give {named} one of str, int, float, bool, list, dict, Literal[...] or an Enum" if named else fix
        raise RecipeError(what, where=f"{file}:{code.co_firstlineno}" if code else file, fix=fix) from error


def _validated(schema: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its arguments checked; transformers calls an Enum, a bare list, a date, a path an object."""
    signature = inspect.signature(function, eval_str=True)
    if unnamed := [each.name for each in signature.parameters.values() if each.kind is each.POSITIONAL_ONLY]:
        raise TypeError(f"a model gives arguments by name, and {', '.join(unnamed)} takes none")
    returned = signature.return_annotation
    if (get_origin(returned) or returned) in (int, float, bool, list, dict, tuple, set, None):
        raise TypeError(f"a model reads a text, and it returns {inspect.formatannotation(returned)}")
    plain = inspect.isfunction(function) or inspect.ismethod(function)  # pydantic takes no others
    called: Any = validate_call(function if plain else functools.wraps(function)(lambda **named: function(**named)))
    if objects := {name: each for name, each in schema.parameters.properties.items() if each.type == "object"}:
        known = TypeAdapter(called).json_schema()
        for name, shown in objects.items():
            found = known["properties"][name]
            found = next((each for each in found.get("anyOf", ()) if each.get("type") != "null"), found)
            found = known["$defs"][found["$ref"].rpartition("/")[2]] if "$ref" in found else found
            shown.type, shown.enum = found.get("type", "object"), found.get("enum")
    return called


def schemas_of(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The tools as a chat template gets them, in OpenAI's form."""
    return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]


class ToolAnswer(NamedTuple):
    """The text that the model reads after a call, and whether the call failed."""

    text: str
    failed: bool


class Tools:
    """Calls the tools of `load_tools`; each call answers with a text in bounded time, whatever the tool does."""

    def __init__(self, tools: Sequence[Any], settings: ToolSettings) -> None:
        self.settings, self.schemas = settings, schemas_of(tools)
        self.kinds = [tool.tool_schema for tool in tools]
        self._functions = {tool.name: tool.fn for tool in tools}
        self._threads = ThreadPoolExecutor(AT_ONCE, "tool")
        self._late: set[threading.Thread] = set()  # changed in place: many threads call

    def call(self, name: str, arguments: str) -> Future[ToolAnswer]:
        """Begin a call; `arguments` is a JSON object, as the model wrote it. The future never raises."""
        return self._threads.submit(self._answer, name, arguments)

    def _answer(self, name: str, arguments: str) -> ToolAnswer:
        text, failed = self._outcome(name, arguments)
        text, most = text.encode(errors="replace").decode(), self.settings.characters  # half a pair is no character
        if len(text) > most:
            text = text[: max(0, most - len(CUT))] + CUT
        return ToolAnswer(text, failed)

    def _outcome(self, name: str, arguments: str) -> tuple[str, bool]:
        if name == UNREADABLE:
            return f"Error: this call cannot be read: {arguments}", True
        if name not in self._functions:
            return f"Error: there is no tool {name}; the tools are {', '.join(self._functions)}", True
        try:
            named = json.loads(arguments)
        except (ValueError, TypeError, RecursionError) as error:
            return f"Error: the arguments of {name} are no JSON: {error}", True
        if not isinstance(named, dict):
            return f"Error: the arguments of {name} are {arguments}, not a JSON object", True
        self._late.difference_update([each for each in [*self._late] if not each.is_alive()])
        if len(self._late) >= MOST_HANGING:
            return f"Error: {name} is called no more: {len(self._late)} calls did not end", True
        done: list[tuple[str, bool]] = []
        # `daemon`: a thread that never ends does not keep the process from ending
        function, seconds = self._functions[name], min(self.settings.seconds, threading.TIMEOUT_MAX)
        thread = threading.Thread(target=lambda: done.append(_outcome(name, function, named, seconds)), daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._late.add(thread)
            return f"Error: {name} gave no answer within {self.settings.seconds:g} s", True
        return done[0] if done else (f"Error: {name} raised an error that has no text", True)


def _outcome(name: str, function: Callable[..., Any], named: dict[str, Any], seconds: float) -> tuple[str, bool]:
    """The text that a call returns, or why it fails, and whether it failed."""
    try:
        result = function(**named)
        if inspect.isawaitable(result):
            result = asyncio.run(asyncio.wait_for(result, seconds + 1))  # so that its thread ends
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return f"Error: the arguments do not fit {name}: {problems}", True
    except BaseException as error:  # noqa: BLE001 SystemExit too: a tool never ends a run
        return f"Error: {name} raised {type(error).__name__}: {error}", True
    if not isinstance(result, str):
        return f"Error: {name} returned {type(result).__name__}, not a text", True
    return result, False


def file_digest(file: str) -> str:
    """A digest of a tools' file and of the files beside it that it loads. Raises RecipeError where there is none."""
    if not Path(file).is_file():
        raise RecipeError(f"there is no file {file}", where="worker.rollout.tools", fix="name a Python file")
    return json_sha256([sha256(each) for each in own_files(Path(file))])
