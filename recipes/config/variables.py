"""Environment variables, `--options` and `key=value` arguments: one table, variable -> key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import NamedTuple

from pydantic import PositiveFloat, TypeAdapter, ValidationError

from recipes.config.layers import Name, parse
from recipes.config.schema import Leaf, Recipe, Setting, Source, leaves
from recipes.errors import RecipeError


@dataclass(frozen=True)
class Variable:
    """A variable that sets `key` and the keys in `also`. Names in `synonyms` and `options` are separated by blanks.

    Attributes:
        synonyms: other names of the variable, which set the same keys.
        options: short names on the command line, besides --name and --synonym in small letters; the first is the usual.
        several: whether an option takes all words up to the next option or key.
    """

    name: str
    key: str
    synonyms: str = ""
    also: tuple[str, ...] = ()
    options: str = ""
    several: bool = False

    @property
    def names(self) -> list[str]:
        return [self.name, *self.synonyms.split()]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.also)


def _variables_of_recipes() -> Iterator[Variable]:
    """The variables that the recipe's keys declare; one that two keys declare sets both."""
    keys: dict[str, list[Leaf]] = {}
    for leaf in leaves(Recipe).values():
        if leaf.info.variable:
            keys.setdefault(leaf.info.variable.split()[0], []).append(leaf)
    for name, (leaf, *others) in keys.items():
        synonyms = leaf.info.variable.partition(" ")[2]
        yield Variable(
            name, leaf.path, synonyms, tuple(each.path for each in others), leaf.info.option, leaf.takes_list
        )


VARIABLES: tuple[Variable, ...] = tuple(_variables_of_recipes())

CONTROLS = {
    "HARDWARE": "cpu or gpu: the hardware file to use; default: gpu if the machine has one",
    "EMBEDDED": "1 or 0: use the recipe's tiny model, its data and sizes; default: 1 without a GPU, unless you give a "
    "model",
    "RAY_WAIT_MINUTES": "minutes to wait for the GPUs of the other machines; default: 10",
    "CHROMIUM": "path of Chromium, for the number game's page; default: the one on the search path",
    "DRY_RUN": "1: print the resolved recipe, the trainer's command and the accounting, and stop",
    "EASYR1_HOME": "folder with EasyR1's source; default: .easyr1, which scripts/setup_env.sh easyr1 clones",
    "ARTIFACTS_DIR": "folder for everything a run makes; default: artifacts",
    "MAX_ROLLOUT_KL": "nats a token that vLLM may differ from the trainer on prompts with images; default: 0.02",
    "WATCHDOG_MINUTES": "minutes without output and work before a run is given up, longer by what it measured; "
    "default: 5",
}
"""Variables that steer the launcher and set no key -> what they do."""


def variable_names(variables: Iterable[Variable] = VARIABLES) -> set[str]:
    """Every variable that is read: those of the table with their synonyms, and the launcher's own."""
    return {name for variable in variables for name in variable.names} | set(CONTROLS)


def variable_settings(environ: Mapping[str, str], variables: Sequence[Variable] = VARIABLES) -> list[Setting]:
    """The settings that the environment makes, as text; an empty variable counts as unset."""
    return [
        Setting(key, environ[name], Source("environment", f"variable {name}={environ[name]}"), name)
        for variable in variables
        for name in variable.names
        if environ.get(name, "").strip()
        for key in variable.keys
    ]


def not_read(environ: Mapping[str, str], variables: Sequence[Variable] = VARIABLES) -> tuple[str, ...]:
    """One note that lists the variables that are set but not read and resemble one that is read; empty if none."""
    known = variable_names(variables)
    strangers = {name: text for name, text in environ.items() if name not in known and text.strip()}
    meant = {name: resembling(name, known, type(parse(text)) is not str) for name, text in strangers.items()}
    likely = [f"{name} (did you mean {' or '.join(others[:2])}?)" for name, others in meant.items() if others]
    return (f"set, but not read: {', '.join(likely)}",) if likely else ()


def resembling(name: str, known: Iterable[str], is_number: bool = True) -> list[str]:
    """The known names that `name` may have been meant for, the likeliest first; underscores separate words.

    A known name is likely if `name` is a misspelling of it, or consists of some of its words. Where the value is text,
    the first words must also be equal: MODEL suggests MODEL_PATH, and PATH does not. For numbers and truth values
    `name` may consist of any words of the known name.
    """
    words = name.upper().split("_")
    slip = SLIP if len(name) > SHORT else SLIP_OF_SHORT
    likeness: dict[str, float] = {}
    for other in known:
        parts = other.upper().split("_")
        ratio = SequenceMatcher(None, name.upper(), other.upper()).ratio()
        if ratio > slip or (set(words) < set(parts) and (is_number or words[0] == parts[0])):
            likeness[other] = ratio
    return sorted(likeness, key=lambda other: (-likeness[other], other))


# Above these `difflib` ratios a name is a misspelling. Up to SHORT letters less is enough: LR and LRR have 0.8.
SLIP, SLIP_OF_SHORT, SHORT = 0.84, 0.79, 4


def is_on(environ: Mapping[str, str], name: str) -> bool | None:
    """Return whether a switch such as DRY_RUN or EMBEDDED is on; None where it is not set."""
    text = environ.get(name, "").strip()
    try:
        return TypeAdapter(bool).validate_python(text) if text else None
    except ValidationError as error:
        raise RecipeError(f"{name}={text} is neither on nor off", where=f"variable {name}", fix="use 1 or 0") from error


def positive_number(environ: Mapping[str, str], name: str, example: str) -> float | None:
    """The number in a variable; None where it is not set. Raises RecipeError for what is no positive number."""
    text = environ.get(name, "").strip()
    try:
        return TypeAdapter(PositiveFloat).validate_python(text) if text else None
    except ValidationError as error:
        raise RecipeError(f"{name}={text} is not a positive number", where=f"variable {name}", fix=example) from error


def dry_run(environ: Mapping[str, str]) -> bool:
    """Return whether DRY_RUN is on."""
    return bool(is_on(environ, "DRY_RUN"))


CONTROL_OPTIONS = ("hardware", "embedded", "gpus")
"""Options that steer the launcher and are arguments too: `hardware=cpu`."""


class Argument(NamedTuple):
    """One setting of the command line: a dotted key, its text, and the words as they were typed."""

    key: str
    text: str
    words: tuple[str, ...]


@cache
def options(variables: tuple[Variable, ...] = VARIABLES) -> dict[str, Variable]:
    """Option without its dashes -> its variable; the usual name of each variable comes first."""
    return {
        name: variable
        for variable in variables
        for name in (*variable.options.split(), *map(str.lower, variable.names))
    }


def usual_name(variable: Variable) -> str:
    """The option that the documentation uses."""
    return (variable.options or variable.name.lower()).split()[0]


def argument_settings(
    arguments: Sequence[str], name: Name, variables: tuple[Variable, ...] = VARIABLES
) -> list[Setting]:
    """The settings that arguments make, as text; `name` turns a key as it is typed into the key that it means.

    Raises RecipeError for an argument that is neither an option nor `key=value`, and for an unknown key.
    """
    settings = []
    for key, text, words in read_arguments(arguments, variables):
        source = Source("argument", f"{'option' if words[0].startswith('--') else 'argument'} {' '.join(words)}")
        path = key if key in CONTROL_OPTIONS else name(key, source)
        settings.append(Setting(path, text, source, words[0]))
    return settings


def read_arguments(words: Sequence[str], variables: tuple[Variable, ...] = VARIABLES) -> Iterator[Argument]:
    """Options and `key=value` arguments in their order; in either form a variable's name sets all the variable's keys.

    Dotted keys are not checked here. Raises RecipeError for an unknown option, one without a value, or an argument that
    is neither.
    """
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        is_option = word.startswith("--")
        typed, equals, text = word.removeprefix("--").partition("=")
        name = typed if is_option else typed.strip()
        variable = options(variables).get(name if is_option else name.lower())
        if is_option and variable is None and name not in CONTROL_OPTIONS:
            raise _unknown_option(name, variables)
        if not is_option and not (equals and name):
            example = "trainer.max_steps=1, or --max_steps 1; a data file is --data FILE"
            raise RecipeError(
                f"the argument {word!r} is not key=value",
                where="arguments",
                fix=f"for instance {example if variables is VARIABLES else f'{variables[0].key}=1'}",
            )
        texts = [text] if equals else _values_behind(word, variable, waiting)
        for path in variable.keys if variable else (name,):
            yield Argument(path, ",".join(texts), (word,) if equals else (word, *texts))


def _values_behind(option: str, variable: Variable | None, waiting: list[str]) -> list[str]:
    """Take an option's value from the waiting words; where it may have several, all up to the next option or key."""
    if not waiting or waiting[0].startswith("--"):
        raise RecipeError(f"the option {option} has no value", where="arguments", fix=f"write {option} VALUE")
    texts = [waiting.pop(0)]
    while variable and variable.several and waiting and not waiting[0].startswith("--") and "=" not in waiting[0]:
        texts.append(waiting.pop(0))
    return texts


def _unknown_option(name: str, variables: tuple[Variable, ...]) -> RecipeError:
    known = [*options(variables), *CONTROL_OPTIONS, "dry_run", "help"]
    meant = " or ".join(f"--{other}" for other in resembling(name.replace("-", "_"), known)[:3])
    fix = f"did you mean {meant}?" if meant else "see --help for every option; any other key is key=value"
    return RecipeError(f"unknown option --{name}", where="arguments", fix=fix)
