"""`--name value` on the command line: every variable of the environment's table is an option too.

`ROLLOUT_N=8`, `--rollout_n 8` and `worker.rollout.n=8` set one key. There is no second table: an option is a variable's
name in small letters, or one of the short names that the variable lists (`--model` for MODEL_PATH).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from recipes.config.environment import VARIABLES, Variable
from recipes.config.suggest import edits
from recipes.errors import RecipeError

CONTROLS = ("hardware", "embedded")
"""Options that steer the launcher and are arguments too: `hardware=cpu`."""

FLAGS = ("dry_run", "help")
"""Options without a value; the launcher reads them before these."""


class Given(NamedTuple):
    """One setting of the command line: a dotted key, its text, and the words as they were typed."""

    key: str
    text: str
    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        """For messages."""
        kind = "option" if self.words[0].startswith("--") else "argument"
        return f"{kind} {' '.join(self.words)}"


@cache
def options() -> dict[str, Variable]:
    """Every option without its dashes, the usual name of each variable first."""
    return {
        name: variable
        for variable in VARIABLES
        for name in (*variable.options, *(name.lower() for name in variable.names))
    }


def usual_name(variable: Variable) -> str:
    """The option that the documentation uses."""
    return variable.options[0] if variable.options else variable.name.lower()


def read_words(words: Sequence[str]) -> Iterator[Given]:
    """Options and `key=value` arguments in their order; the keys are not checked here.

    Raises:
        RecipeError: an unknown option, one without a value, or an argument that is neither.
    """
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("--"):
            yield from _option(word, waiting)
            continue
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise RecipeError(
                f"the argument {word!r} is not key=value",
                where="arguments",
                fix="for instance trainer.max_steps=1, or --max_steps 1; a data file is --data FILE",
            )
        yield Given(key.strip(), text, (word,))


def _option(word: str, waiting: list[str]) -> Iterator[Given]:
    """One option; its value may be the next word."""
    typed, equals, text = word[2:].partition("=")
    name = typed.replace("-", "_").lower()
    known = options()
    if name not in known and name not in CONTROLS:
        meant = _meant(name)
        raise RecipeError(
            f"unknown option --{typed}",
            where="arguments",
            fix=f"did you mean --{meant}?" if meant else "see --help for every option; any other key is key=value",
        )
    if not equals:
        if not waiting or waiting[0].startswith("--"):
            raise RecipeError(f"the option --{typed} has no value", where="arguments", fix=f"write --{typed} VALUE")
        text = waiting.pop(0)
    words = (word,) if equals else (word, text)
    if name in CONTROLS:
        yield Given(name, text, words)
        return
    variable = known[name]
    for key in (variable.key, *variable.also):
        yield Given(key, text, words)


def _meant(name: str) -> str | None:
    """The option that `name` is a slip of, or a part of whose name it is."""
    names = [*options(), *CONTROLS, *FLAGS]
    distance, nearest = min((edits(name.replace("_", ""), other.replace("_", "")), other) for other in names)
    if distance <= max(1, len(name) // 4):
        return nearest
    parts = name.split("_")
    inside = [other for other in names if other.endswith(f"_{name}") or name in other.split("_") or other in parts]
    return inside[0] if inside else None
