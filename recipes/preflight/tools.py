"""The tools before the start: each is called, and a whole conversation is rendered, read back and compared."""

import ast
import asyncio
import doctest
import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from recipes.config import Recipe, path_keys
from recipes.config.names import template_arguments
from recipes.data.lengths import chat_tokenizer
from recipes.data.rows import place_of, read_rows
from recipes.engines.verl.tools import Tools, load_tools, schemas_of, tool_settings
from recipes.engines.worked_answers import TOOL_CALLS, messages_of
from recipes.errors import RecipeError
from recipes.model_files import local_model, model_config
from recipes.preflight.child import ask
from recipes.preflight.model import QUESTION, fast_tokenizer, given_template, stop_tokens
from recipes.written import written

LIMIT_S = 300.0
"""Seconds until every tool has answered; on a slow machine imports take a minute."""
MOST_ROWS = 64
"""Rows in which calls are looked for."""
ANSWER = "1357924680"
"""Text of a tool in the conversation that is rendered."""
TEMPLATE = "write what the template lacks into the system prompt, or take another by data.override_chat_template"

_SCHEMAS: dict[str, list[dict[str, Any]]] = {}
"""File of tools -> their schemas, once a child process has told; the next would import verl again."""

Example = tuple[str, dict[str, Any]]
"""Name of a tool, and arguments that it takes."""


def check_tools(recipe: Recipe) -> list[str]:
    """Return each tool as the model sees it, and its example's answer.

    Raises RecipeError where a tool cannot be loaded or its example fails, or where the model's template, the parser and
    the loop do not agree on a conversation with a call.
    """
    settings, rollout = tool_settings(recipe), recipe.worker.rollout
    if settings is None:
        return []
    refused = {"worker.rollout.limit_images": rollout.limit_images, "trainer.patches": not recipe.trainer.patches}
    for key in (key for key, is_set in refused.items() if is_set):
        what = f"tools do not go with {key}={recipe.value(key)}"
        raise recipe.error(what, "leave one of the two out", "worker.rollout.tools", key)
    lines, _SCHEMAS[settings.file] = _ask(try_tools, recipe, recipe=recipe)
    return lines


def calls_without_tools(recipe: Recipe) -> list[str]:
    """A remark on worked answers that call tools, where the recipe names none, in verl's keys either."""
    if recipe.worker.rollout.tools or any("multi_turn" in name for name in recipe.verl):
        return []
    infos = [row.get("extra_info") for row in _first_rows(recipe, ["extra_info"])]
    given = [info.get("solution") for info in infos if isinstance(info, dict)]  # EasyR1's may be a text
    calling = sum(any(turn.get(TOOL_CALLS) for turn in messages_of(each)) for each in given if isinstance(each, list))
    what = f"{calling} of the first {len(given)} solutions call tools, which no prompt shows; --tools FILE names them"
    return [what] if calling else []


def _first_rows(recipe: Recipe, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The first `MOST_ROWS` rows of each data file that is on this machine."""
    files = [key.path for key in path_keys(recipe) if key.kind == "data" and Path(key.path).is_file()]
    return [row for file in files for row in islice(read_rows(file, columns, MOST_ROWS), MOST_ROWS)]


def prompt_schemas(recipe: Recipe) -> list[dict[str, Any]] | None:
    """The tools as the template of a prompt gets them; None where the recipe has none."""
    settings = tool_settings(recipe)
    if settings is not None and settings.file not in _SCHEMAS:
        _SCHEMAS[settings.file] = _ask(file_schemas, settings.file, recipe=recipe)
    return None if settings is None else _SCHEMAS[settings.file]


def _ask(function: Any, *arguments: Any, recipe: Recipe) -> Any:
    where = f"worker.rollout.tools: {recipe.source_of('worker.rollout.tools')}"
    fix = "mend the file: it must not exit or wait when it is imported"
    return ask(function, *arguments, limit_s=LIMIT_S, where=f"{recipe.worker.rollout.tools}; {where}", fix=fix)


def file_schemas(file: str) -> list[dict[str, Any]]:
    """The schemas of a file's tools; runs in a child process."""
    return schemas_of(load_tools(file))


def try_tools(recipe: Recipe) -> tuple[list[str], list[dict[str, Any]]]:
    """The lines of `check_tools`, and the tools' schemas; runs in a child process."""
    settings = tool_settings(recipe)
    assert settings is not None
    loaded = load_tools(settings.file)
    tools = Tools(loaded, settings)
    examples = [example for tool in loaded for example in documented(tool.name, tool.fn)]
    tried = [(f"example of {name}", (name, arguments)) for name, arguments in examples]
    lines = [f"tool {json.dumps(schema['function'], ensure_ascii=False)}" for schema in tools.schemas]
    if folder := fast_tokenizer(recipe):
        with refusals(str(recipe.data.override_chat_template or folder)):
            tried += [(f"solution of {row}", call) for row, call in render(recipe, tools, folder, examples)]
    for origin, (name, arguments) in tried:
        answer = tools.call(name, json.dumps(arguments)).result()
        if answer.failed:
            what = f"the call of {name} in the {origin}, {json.dumps(arguments)}, fails: {answer.text}"
            raise RecipeError(what, where=settings.file, fix=f"mend the tool, or the {origin}")
        lines.append(f"{name} {json.dumps(arguments, ensure_ascii=False)} answers {answer.text!r}")
    untried = {tool.name: None for tool in loaded} | dict(call for _, call in tried)
    names = [name for name, arguments in untried.items() if arguments is None]
    lines += [f"{name} is not tried: its docstring has no example, such as >>> {name}(...)" for name in names]
    return lines, tools.schemas


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Raise RecipeError for what a chat template raises; verl tries it with other messages then."""
    try:
        yield
    except RecipeError:
        raise
    except Exception as error:
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        what = f"the chat template refuses a conversation with tools: {type(first).__name__}: {first}"
        raise RecipeError(what, where=where, fix=f"let it take the role tool: {TEMPLATE}") from error


def documented(name: str, function: Any) -> list[Example]:
    """The calls of a tool in its docstring's examples, `>>> name("48/2")`. RecipeError: arguments are no literals."""
    found: list[Example] = []
    try:
        for example in doctest.DocTestParser().get_examples(inspect.getdoc(function) or ""):
            for call in ast.walk(ast.parse(example.source)):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") in (name, function.__name__):
                    values = [ast.literal_eval(each) for each in call.args]
                    named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
                    given = inspect.signature(function).bind(*values, **named).arguments
                    found.append((name, json.loads(json.dumps(given))))
    except (ValueError, TypeError, SyntaxError) as error:
        what = f"an example in the docstring of {name} is no call with literal arguments: {error}"
        raise RecipeError(what, where=name, fix=f"write it as >>> {name}(...), with texts and numbers") from error
    return found


def render(recipe: Recipe, tools: Tools, folder: Path, examples: Sequence[Example]) -> list[tuple[str, Example]]:
    """Check a conversation with a call on the first prompt of the data; return calls of worked answers, with rows."""
    from recipes.engines.verl.conversation import Rules

    model, lengths = recipe.worker.actor.model, (recipe.data.max_prompt_length, recipe.data.max_response_length)
    tokenizer = chat_tokenizer(str(folder), given_template(recipe), trust_remote_code=model.trust_remote_code)
    kind, arguments = model_config(local_model(model.model_path)).get("model_type"), template_arguments(recipe)
    rules = Rules(tokenizer, tools, *lengths, model_type=kind, template_arguments=arguments)
    rows = _first_rows(recipe, ["prompt", "extra_info"])
    of_data = _calls_of_data(rows, rules)
    calls: list[Example] = [*examples, *(call for _, call in of_data), (tools.schemas[0]["function"]["name"], {})]
    prompt, where = rows[0]["prompt"] if rows else [QUESTION], str(recipe.data.override_chat_template or folder)
    rules.check_shown(prompt, where)
    _check_conversation(prompt, calls[0], rules, stop_tokens(folder, {}), where)
    return of_data


def _calls_of_data(rows: Sequence[dict[str, Any]], rules: Any) -> list[tuple[str, Example]]:
    """The first call of each tool in worked answers that are conversations, with its row."""
    found: dict[str, tuple[str, Example]] = {}
    for row in rows:
        solution = (row.get("extra_info") or {}).get("solution")
        place = place_of(row.get("extra_info")) or "a row"
        for turn in messages_of(solution) if isinstance(solution, list) else []:
            calls = [call.get("function") or call for call in turn.get(TOOL_CALLS) or []]  # templates read both
            tokens = rules.tokenizer.encode(turn["content"], add_special_tokens=False)
            calls += map(dict, _read(rules, tokens) if turn["role"] == "assistant" else [])
            for call in calls:
                if not call.get("name") or "arguments" not in call:
                    fix = 'write {"function": {"name": ..., "arguments": {...}}}, or in worker.rollout.tool_format'
                    what = f"a call of a worked answer cannot be read: {call.get('arguments', call)}"
                    raise RecipeError(what, where=f"solution of {place}: {turn['content'][:60]!r}", fix=fix)
                example = call["name"], written(call["arguments"])  # servers write arguments as text
                found.setdefault(call["name"], (place, example))
    return list(found.values())


def _read(rules: Any, tokens: list[int]) -> list[Any]:
    return list(asyncio.run(rules.read(tokens))[1])


def _check_conversation(prompt: list[dict[str, str]], example: Example, rules: Any, ends: set[str], where: str) -> None:
    """Raise where a call, its answer and the next turn have other tokens in the loop than in the template."""
    from recipes.engines.verl.conversation import Conversation
    from recipes.engines.verl.tools import ToolAnswer

    name, arguments = example
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}

    def rendered(**turn: Any) -> list[int]:
        messages = [*prompt, {"role": "assistant", **turn}, {"role": "tool", "content": ANSWER}]
        return list(rules.builder._render_tokens(messages, add_generation_prompt=True, tools=rules.tools.schemas))

    conversation = Conversation(rules, prompt)
    begin = len(rules.render(prompt))
    whole = rendered(content="", tool_calls=[call])
    if name not in rules.tokenizer.decode(whole[begin:]):  # the template writes no calls: they stand in the text
        write = getattr(rules.parser, "write", None)
        if write is None:
            what = f"the chat template writes no calls, and the parser {rules.tools.settings.format} has no `write`"
            raise RecipeError(what, where=where, fix="give the parser write(name, arguments), which returns the text")
        whole = rendered(content=write(name, arguments))
    if ANSWER not in rules.tokenizer.decode(whole):
        raise RecipeError("the chat template drops a tool's answer", where=where, fix=f"the role is tool: {TEMPLATE}")
    stops = {rules.tokenizer.eos_token_id, *rules.tokenizer.convert_tokens_to_ids(sorted(ends))}
    rest = whole[begin:]
    turn = rest[: next((place + 1 for place, token in enumerate(rest) if token in stops), len(rest))]
    if [(each.name, written(each.arguments)) for each in _read(rules, turn) if each.name] != [example]:
        what = f"does not read back the call that the template writes: {rules.tokenizer.decode(turn)!r}"
        fix = "set worker.rollout.tool_format to the model's format of calls"
        raise RecipeError(f"the parser {rules.tools.settings.format} {what}", where=where, fix=fix)
    asyncio.run(conversation.hear(turn))
    if not conversation.ended:
        conversation.answer([ToolAnswer(ANSWER, False)])
    if conversation.ended:
        what = f"data.max_response_length {rules.response_length} has no room for a call and its answer"
        raise RecipeError(what, where="data.max_response_length", fix="set MAX_RESPONSE_LENGTH higher")
    if conversation.tokens != conversation.prompt + rest:
        both = conversation.tokens[len(conversation.prompt) :], rest
        texts = " and ".join(repr(rules.tokenizer.decode(tokens)) for tokens in both)
        what = f"a conversation as it is rolled out differs from the chat template: {texts}"
        raise RecipeError(what, where=where, fix=TEMPLATE)
