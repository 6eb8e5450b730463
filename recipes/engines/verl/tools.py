"""A recipe's tools: a Python file that is loaded by path, and calls of its functions that are limited and never raise.

A tool is a function with types and a docstring in Google's form, marked by verl's `function_tool`; where the file marks
none, every public function that it defines is a tool. verl's own loop has no limit of time, and runs tools in the
threads that tokenise.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError, validate_call

from recipes.config import Recipe
from recipes.errors import RecipeError
from recipes.files import json_sha256, sha256
from recipes.rewards.identity import own_files
from recipes.rewards.loading import load_reward

VARIABLE = "RECIPES_TOOLS"
"""Environment variable by which the trainer's processes get `ToolSettings`, as JSON."""
AT_ONCE = 64
"""Most calls of a process that run at the same time; the others wait, and their time has not begun."""
MOST_HANGING = 256
"""Calls beyond their time, whose threads Python cannot end, after which a process calls no tool any more."""
CUT = "... (cut)"
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
    """The recipe's settings; None where it has no tools."""
    rollout = recipe.worker.rollout
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
    """The tools of a file, as verl's `FunctionTool`s in the order of their names.

    Raises RecipeError for a file that is missing, fails at import or has no tool, and a function without types or text.
    """
    from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY

    others = dict(FUNCTION_TOOL_REGISTRY)  # verl refuses a second tool of the same name, even another file's
    FUNCTION_TOOL_REGISTRY.clear()
    try:
        module = load_reward(file, "tools'")
        if not FUNCTION_TOOL_REGISTRY:
            for name, function in vars(module).items():
                if inspect.isfunction(function) and function.__module__ == module.__name__ and name[0] != "_":
                    _register(function, file)
        tools = [FUNCTION_TOOL_REGISTRY[name] for name in sorted(FUNCTION_TOOL_REGISTRY)]
    finally:
        FUNCTION_TOOL_REGISTRY.clear()
        FUNCTION_TOOL_REGISTRY.update(others)
    if not tools:
        raise RecipeError("the tools' file has no public function", where=file, fix="define one")
    return tools


def _register(function: Callable[..., Any], file: str) -> None:
    from verl.tools.function_tool import function_tool

    try:
        function_tool(function)
    except Exception as error:
        raise RecipeError(
            f"the function {function.__name__} can be no tool: {' '.join(str(error).split())}",
            where=f"{file}:{function.__code__.co_firstlineno}",
            fix="give each parameter a type and a line under Args: in the docstring, or begin the name with _",
        ) from error


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
        self._functions = {tool.name: validate_call(tool.fn) for tool in tools}
        self._threads = ThreadPoolExecutor(AT_ONCE, "tool")
        self._hanging = 0

    def call(self, name: str, arguments: str) -> Future[ToolAnswer]:
        """Begin a call; `arguments` is a JSON object, as the model wrote it. The future never raises."""
        return self._threads.submit(self._answer, name, arguments)

    def _answer(self, name: str, arguments: str) -> ToolAnswer:
        text, failed = self._outcome(name, arguments)
        most = self.settings.characters
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
        except (ValueError, TypeError) as error:
            return f"Error: the arguments of {name} are no JSON: {error}", True
        if not isinstance(named, dict):
            return f"Error: the arguments of {name} are {arguments}, not a JSON object", True
        if self._hanging >= MOST_HANGING:
            return f"Error: {name} is called no more: {self._hanging} calls did not end", True
        done: list[tuple[str, bool]] = []
        # `daemon`: a thread that never ends does not keep the process from ending
        thread = threading.Thread(target=lambda: done.append(_outcome(name, self._functions[name], named)), daemon=True)
        thread.start()
        thread.join(self.settings.seconds)
        if done:
            return done[0]
        self._hanging += 1
        return f"Error: {name} gave no answer within {self.settings.seconds:g} s", True


def _outcome(name: str, function: Callable[..., Any], named: dict[str, Any]) -> tuple[str, bool]:
    """The text that a call returns, or why it fails, and whether it failed."""
    try:
        result = function(**named)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return f"Error: the arguments do not fit {name}: {problems}", True
    except BaseException as error:  # noqa: BLE001 SystemExit too: a tool never ends a run
        return f"Error: {name} raised {type(error).__name__}: {error}", True
    if not isinstance(result, str):
        return f"Error: {name} returned {type(result).__name__}, not a text", True
    return result, False


async def _awaited(result: Any) -> Any:
    return await result


def file_digest(file: str) -> str:
    """A digest of a tools' file and of the files beside it that it loads."""
    return json_sha256([sha256(each) for each in own_files(Path(file))])
