"""The `key=value` arguments of an official launcher, read from its shell text without running it."""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from recipes.config import yaml_io
from recipes.errors import RecipeError

_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.+?)\s*$")
_WITH_DEFAULT = re.compile(r"\$\{(\w+):-([^{}]*)\}")
_PLAIN = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_ARGUMENT = re.compile(r"^\+{0,2}([A-Za-z_][\w.]*)=(.*)$", re.DOTALL)
_TRAINER = re.compile(r"-m verl\.trainer\.main\w*\s")

_SUBSTITUTION = re.compile(r"\$\([^()]*\)")

BLANK = "\0"
"""Stands for a blank inside `$(...)`, which does not end a word."""
ENDS = "|>&;"
"""Characters that end the command, or send its output elsewhere."""
DEPTH = 20
"""Variables inside variables; more than a launcher has, and an end where one names itself."""


def arguments(text: str, where: str) -> dict[str, Any]:
    """Dotted key -> value. Variables that the launcher sets are filled in, by their default where one may override it.

    Others, such as $HOME, stay as they are. Raises RecipeError where the text starts no trainer of verl or EasyR1,
    or hands it an array.
    """
    joined = re.sub(r"\\\n", " ", text)
    variables: dict[str, str] = {}
    for line in joined.splitlines():
        trainer = _TRAINER.search(line)
        if trainer:
            return _parsed(_filled(line[trainer.end() :], variables), where)
        assigned = _ASSIGNMENT.match(re.sub(r"\s#.*$", "", line))
        if assigned:
            variables[assigned[1]] = _filled(assigned[2].strip("\"'"), variables)
    raise RecipeError("the launcher starts no trainer of verl or EasyR1", where=where)


def _filled(text: str, variables: dict[str, str]) -> str:
    """`${X}`, `$X` and `${X:-default}` replaced, innermost first, until nothing changes."""
    for _ in range(DEPTH):
        filled = _WITH_DEFAULT.sub(lambda match: variables.get(match[1], match[2]), text)
        filled = _PLAIN.sub(lambda match: variables.get(match[1] or match[2], f"${match[1] or match[2]}"), filled)
        if filled == text:
            break
        text = filled
    return text


def _parsed(command: str, where: str) -> dict[str, Any]:
    if "[@]" in command:
        raise RecipeError("the launcher keeps its arguments in arrays, which are not read", where=where)
    whole = _SUBSTITUTION.sub(lambda match: match[0].replace(" ", BLANK), command)
    lexer = shlex.shlex(whole, posix=True, punctuation_chars=ENDS)
    lexer.whitespace_split = True
    found: dict[str, Any] = {}
    for word in lexer:
        if set(word) <= set(ENDS):
            break
        match = _ARGUMENT.match(word.replace(BLANK, " "))
        if match is None:
            continue
        try:
            found[match[1]] = yaml_io.parse(match[2])
        except yaml.YAMLError as error:
            raise RecipeError(f"cannot read {word!r}", where=where) from error
    return found
