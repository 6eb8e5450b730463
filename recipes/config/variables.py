"""Read settings from environment variables, `--options` and `key=value` arguments."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, PositiveFloat, TypeAdapter, ValidationError

from recipes.config.schema import Leaf, Recipe, Setting, Source, leaves
from recipes.errors import RecipeError, resembling
from recipes.settings import NATIVES, Name, flatten, open_leaf
from recipes.yaml_text import flow, parse, read

OTHERS = "other_names.yaml"


@cache
def table(file: str) -> dict[str, Any]:
    """A YAML file beside this module, on names and their effects."""
    return read(Path(__file__).parent / file)


CONTROLS: dict[str, str] = table("controls.yaml")
"""Variables that steer the launcher and the scripts and set no key -> what they do."""
VALUES: dict[str, tuple[Any, str]] = {
    "HARDWARE": (Literal["auto", "cpu", "gpu"], "cpu or gpu"),
    "TINY": (bool, "1 or 0"),
    "DRY_RUN": (bool, "1 or 0"),
    "RECIPES_FORK_WORKERS": (Literal["1", "0"], "1 or 0"),
    "RAY_WAIT_MINUTES": (Annotated[float, Field(ge=0, allow_inf_nan=False)], "minutes, such as 10"),
    "WATCHDOG_MINUTES": (PositiveFloat, "minutes above 0, such as 30"),
    "MAX_ROLLOUT_KL": (PositiveFloat, "nats a token above 0, such as 0.05, or inf"),
    "WANDB_MODE": (Literal["online", "offline", "shared", "disabled", "dryrun", "run"], "online, offline or disabled"),
}
"""Variable that sets no key -> the type of its value, and how an error names that; some are read late, or elsewhere."""


def variable_names(schema: type[BaseModel] = Recipe) -> set[str]:
    """Every variable that is read: those that keys declare, synonyms included, and the launcher's own."""
    return {name for leaf in leaves(schema).values() for name in leaf.info.variable.split()} | set(CONTROLS)


def variable_settings(environ: Mapping[str, str], schema: type[BaseModel] = Recipe) -> list[Setting]:
    """The settings that the environment makes, as text; an empty variable counts as unset."""
    return [
        Setting(path, environ[name], Source("environment", f"variable {name}={environ[name]}"), name)
        for path, leaf in leaves(schema).items()
        for name in leaf.info.variable.split()
        if environ.get(name, "").strip()
    ]


def not_read(environ: Mapping[str, str], schema: type[BaseModel] = Recipe) -> tuple[str, ...]:
    """One note that lists the variables that are set and not read, but that another launcher reads, or that resemble
    one that is read; empty if none."""
    known = variable_names(schema)
    launchers = {name: place for place, names in table(OTHERS)["launchers"].items() for name in names}
    likely = []
    for name, text in environ.items():
        if name in known or not text.strip():
            continue
        listed, known_options = known_elsewhere(name.lower()), options(schema)
        keys = known_options.get(name.lower()) or known_options.get(listed.removeprefix("--"), [])  # DATA: --data's
        named = list(dict.fromkeys(leaf.info.variable.split()[0] for leaf in keys))
        meant = named or [listed] * bool(listed) or resembling(name, known, type(parse(text)) is not str)
        if name in launchers:
            likely.append(f"{name} (of {launchers[name]})")
        elif meant:
            likely.append(f"{name} (did you mean {' or '.join(meant[:2])}?)")
    return (f"set, but not read: {', '.join(likely)}",) if likely else ()


def known_elsewhere(name: str) -> str:
    """The name here of another program's option or key; empty where none is listed."""
    return next((names[name] for names in table(OTHERS)["programs"].values() if name in names), "")


def check_controls(environ: Mapping[str, str]) -> None:
    """Raise RecipeError for a variable of `VALUES` with another value."""
    for name in VALUES:
        control(environ, name)


def control(environ: Mapping[str, str], name: str) -> Any:
    """The value of a variable of `VALUES`; None where it is not set. Raises RecipeError for another value."""
    (kind, meant), text = VALUES[name], environ.get(name, "").strip()
    try:
        return TypeAdapter(kind).validate_python(text) if text else None
    except ValidationError as error:
        what, fix = f"{name}={text} is no value of this variable", f"give {meant}, or leave it out"
        raise RecipeError(what, where=f"variable {name}", fix=fix) from error


CONTROL_OPTIONS = ("hardware", "tiny", "gpus")
"""Options that steer the launcher and are arguments too: `hardware=cpu`."""


class Argument(NamedTuple):
    """One setting of the command line: a dotted key, its text, and the words as they were typed."""

    key: str
    text: str
    words: tuple[str, ...]

    @property
    def setting(self) -> str:
        """The setting as `name=text`, under the name that was typed, for programs that take no options."""
        return f"{self.words[0].removeprefix('--').partition('=')[0]}={self.text}"


@cache
def options(schema: type[BaseModel] = Recipe) -> dict[str, list[Leaf]]:
    """Option without its dashes -> the keys that it sets; the usual name of each key comes first."""
    found: dict[str, list[Leaf]] = {}
    for leaf in leaves(schema).values():
        for name in dict.fromkeys(f"{leaf.info.option} {leaf.info.variable.lower()}".split()):
            found.setdefault(name, []).append(leaf)
    return found


def split_overlays(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the YAML files that stand before all other arguments from these; `config=FILE` is EasyR1's form."""
    words = list(dropwhile(_is_file, arguments))
    return [word.removeprefix("config=") for word in arguments[: len(arguments) - len(words)]], words


def _is_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) and "=" not in word.removeprefix("config=")


def argument_settings(arguments: Sequence[str], name: Name, schema: type[BaseModel] = Recipe) -> list[Setting]:
    """The settings that arguments make, as text; `name` turns a key as it is typed into the key that it means.

    Raises RecipeError for an argument that is neither an option nor `key=value`, and for an unknown key.
    """
    settings = []
    for key, text, words in read_arguments(arguments, schema):
        source = Source("argument", f"{'option' if words[0].startswith('--') else 'argument'} {' '.join(words)}")
        values = {key: text}
        is_group = key not in leaves(schema) and open_leaf(schema, key) in (None, *NATIVES)
        if is_group and text.lstrip().startswith("{"):  # `validation={n: 4}`
            tree = {key: parse(text)}
            values = {each: value if value is text else flow(value) for each, value in flatten(tree).items()}
        for each, value in values.items():
            path = each if each in CONTROL_OPTIONS else name(each, source)
            settings.append(Setting(path, value, source, words[0]))
    return settings


def read_arguments(words: Sequence[str], schema: type[BaseModel] = Recipe) -> Iterator[Argument]:
    """Yield options and `key=value` arguments in order; in both forms a variable's name sets all keys of the variable.

    Dotted keys are not checked here. Raises RecipeError for an unknown option, one without a value, or an argument that
    is neither.
    """
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        is_option = word.startswith("--")
        typed, equals, text = word.removeprefix("--").partition("=")
        name = typed if is_option else typed.strip()
        keys = options(schema).get(name if is_option else name.lower(), [])
        if is_option and not keys and name not in CONTROL_OPTIONS:
            raise _unknown_option(name, schema)
        if not is_option and not (equals and name):
            example = "trainer.max_steps=1, or --max_steps 1; a data file is --data FILE"
            fix = f"for instance {example if schema is Recipe else f'{next(iter(leaves(schema)))}=1'}"
            raise RecipeError(f"the argument {word!r} is not key=value", where="arguments", fix=fix)
        texts = [text] if equals else _values_behind(word, any(leaf.takes_list for leaf in keys), waiting)
        for path in [leaf.path for leaf in keys] or [name]:
            yield Argument(path, ",".join(texts), (word,) if equals else (word, *texts))


def _unknown_option(name: str, schema: type[BaseModel]) -> RecipeError:
    known, plain = [*options(schema), *CONTROL_OPTIONS, "dry_run", "help"], name.replace("-", "_")
    meant = known_elsewhere(plain) or " or ".join(f"--{other}" for other in resembling(plain, known)[:3])
    fix = f"did you mean {meant}?" if meant else "see --help for every option; any other key is key=value"
    return RecipeError(f"unknown option --{name}", where="arguments", fix=fix)


def _values_behind(option: str, several: bool, waiting: list[str]) -> list[str]:
    """Take an option's value from the waiting words; where it may have several, all up to the next option or key."""
    if not waiting or waiting[0].startswith("--"):
        raise RecipeError(f"the option {option} has no value", where="arguments", fix=f"write {option} VALUE")
    texts = [waiting.pop(0)]
    while several and waiting and not waiting[0].startswith("--") and "=" not in waiting[0]:
        texts.append(waiting.pop(0))
    return texts
