"""Settings of any program: keys declared with type, meaning and names, and layers that give them values.

OmegaConf reads YAML and merges mappings, pydantic checks types. Neither records which layer set a key; this
module does, since error messages name the layer. A program with a schema of its own uses the same functions:

    settings = [*settings_of(Schema, read(path), Source("recipe", path)), *variable_settings(environ, Schema)]
    values, sources = merge(Schema, settings)
    configuration = validated(Schema, values, sources)
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from recipes.errors import RecipeError, did_you_mean
from recipes.yaml_text import flow, parse

LayerName = Literal["default", "hardware", "recipe", "tiny", "algorithm", "environment", "argument"]
T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """The layer that set a key, and `where`: the file, variable or argument."""

    layer: LayerName
    where: str
    own: bool = False  # a file of the user's own, not one of configs/

    @property
    def by_user(self) -> bool:
        """Return whether the user set the key in this run, through a variable or an argument."""
        return self.layer in ("environment", "argument")

    @property
    def chosen(self) -> bool:
        """Return whether the user wrote the value: in this run, or in a file of the user's own."""
        return self.by_user or self.own

    def __str__(self) -> str:
        return self.where


DEFAULT = Source("default", "default of the schema")


@dataclass(frozen=True)
class Setting:
    """The value of a dotted key, as text where a variable or an argument gives it.

    `spelled` is the name as the user wrote it, for messages: verl's own, a variable's, or an argument. It is empty
    where the user wrote `path` itself.
    """

    path: str
    value: Any
    source: Source
    spelled: str = ""


PathKind = Literal["input", "output", "model", "data"]

Resume = Literal["content", "order", "setting", "place"]
"""Effect of a changed value on a resumed run.

A changed `content` makes it another run; a changed `order` does too, and the data are read from the start; a changed
`setting` takes effect and is listed; a `place` (names, folders) may differ in each attempt.
"""

BOTH, ONLY_VERL, ONLY_EASYR1 = ("verl", "easyr1"), ("verl",), ("easyr1",)
CONVERTED: tuple[str, ...] = ()
"""Value of `engines` for a key that no engine reads, because it acts only while a user's file is converted."""

# Group of keys -> verl's group, where verl has them elsewhere than EasyR1.
VERL_GROUPS = {
    "worker.actor": "actor_rollout_ref.actor",
    "worker.actor.model": "actor_rollout_ref.model",
    "worker.actor.fsdp": "actor_rollout_ref.actor.fsdp_config",
    "worker.ref": "actor_rollout_ref.ref",
    "worker.ref.fsdp": "actor_rollout_ref.ref.fsdp_config",
    "worker.rollout": "actor_rollout_ref.rollout",
    "worker.rollout.val_override_config": "actor_rollout_ref.rollout.val_kwargs",
    "worker.reward": "reward",
    "worker.reward.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg",
}
SAME = "{same}"
"""Default of `verl=`: verl has the key under the same name, in the corresponding group."""


@dataclass(frozen=True)
class KeyInfo:
    """Facts about a key besides its type."""

    doc: str = ""  # what the key does: the text below its declaration
    variable: str = ""  # variable that sets the key, then synonyms, separated by spaces; it may set several keys
    option: str = ""  # short names on the command line, besides those of the variable; the first is the usual one
    verl: tuple[str, ...] = ()  # verl's dotted names of the same quantity; empty where verl has none
    convert: Callable[[Any], Any] | None = None  # from the value to verl's, where they differ
    computed: bool = False  # engines/verl/translation.py computes verl's values, from this key and others
    engines: tuple[str, ...] = BOTH  # engines that implement the key; the others accept only its default
    values_on: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # engine -> what it accepts, if not all
    path: PathKind | None = None  # "input" must exist; "model" and "data" too, or be on a hub; the run makes "output"
    resume: Resume | None = None  # effect of a changed value on a resumed run
    fixed: str = ""  # why a resumed run cannot change the value; empty where it can
    needs: str = ""  # name of a key in the same group, or a dotted path; this one has an effect only if that one is on
    launcher: bool = False  # the launcher reads it, and no engine does
    left_open: bool = False  # null: `resolve.derive` finds a value from the machine and other keys, or the default


class Section(BaseModel):
    """A group of keys: typed, closed to unknown names, and never changed after it was loaded.

    `when_resumed` and `engines` are the defaults of its keys' `resume` and `engines`.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), use_attribute_docstrings=True, allow_inf_nan=False
    )
    when_resumed: ClassVar[Resume] = "content"
    engines: ClassVar[tuple[str, ...]] = BOTH


class Resolved(Section):
    """A whole configuration: every key has its value, and `source_of` says which layer set it."""

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)

    def source_of(self, path: str) -> Source:
        """The layer that set the key at `path`; the schema's default where none did."""
        return self._sources.get(path, DEFAULT)

    @property
    def sources(self) -> dict[str, Source]:
        """Every key that a layer set, with that layer."""
        return dict(self._sources)

    def value(self, path: str) -> Any:
        """The value at a dotted path, for instance `worker.rollout.n`."""
        value: Any = self
        for part in path.split("."):
            value = getattr(value, part)
        return value

    def error(self, what: str, fix: str, *keys: str) -> RecipeError:
        """The error for wrong values of `keys`, with the layer that set each."""
        return RecipeError(what, where="; ".join(f"{key}: {self.source_of(key)}" for key in keys), fix=fix)


def require_resolved(value: T | None) -> T:
    """Return a value that is null only until `resolve.derive` has filled it, such as a micro-batch size."""
    if value is None:
        raise ValueError("the recipe is not derived yet")
    return value


SEED: dict[str, Any] = {"ge": 0, "lt": (1 << 32) - (1 << 16)}
"""Bounds of a seed: NumPy takes 32 bits, and processes add their number."""


def key(default: Any, variable: str = "", *, verl: str | tuple[str, ...] = SAME, **facts: Any) -> Any:
    """Declare a key by its default, or a factory of it; the text below its declaration says what it does.

    `facts` are other attributes of `KeyInfo`, and pydantic's bounds (ge, gt, le, lt).
    """
    own = {each.name: facts.pop(each.name) for each in fields(KeyInfo) if each.name in facts}
    info = KeyInfo(variable=variable, verl=(verl,) if isinstance(verl, str) else verl, **own)
    facts["default_factory" if callable(default) else "default"] = default
    extra: Any = {"key": info}  # pydantic's type allows only JSON; no schema is made from it
    return Field(json_schema_extra=extra, **facts)


@dataclass(frozen=True)
class Leaf:
    """A key at its full dotted path."""

    path: str
    info: KeyInfo
    field: FieldInfo

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def is_open(self) -> bool:
        """Return whether the key holds a free mapping, whose inner names the schema does not know."""
        return get_origin(self.field.annotation) is dict

    @property
    def takes_list(self) -> bool:
        """Return whether the key holds a list, or one value or a list of them."""
        return any(get_origin(part) is list for part in members(self.field.annotation))


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; any other type alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


@cache
def leaves(section: type[BaseModel]) -> dict[str, Leaf]:
    """Every key below `section` that was declared with `key`, by dotted path, in the order of declaration."""
    return {leaf.path: leaf for leaf in _walk(section, "")}


def groups(path: str) -> list[str]:
    """The dotted paths of the groups around a key, the innermost first: `a.b.c` is in `a.b` and `a`."""
    return [path.rsplit(".", depth)[0] for depth in range(1, path.count(".") + 1)]


def innermost(table: Mapping[str, T], path: str) -> T | None:
    """The entry of a key, or else of the innermost group around it that has one."""
    return next((table[each] for each in (path, *groups(path)) if each in table), None)


def _walk(section: type[BaseModel], prefix: str) -> Iterator[Leaf]:
    for name, declared in section.model_fields.items():
        annotation, path = declared.annotation, f"{prefix}{name}"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{path}.")
        else:
            extra: Any = declared.json_schema_extra  # pydantic declares JSON here
            assert declared.description, f"{path} has no text below it"
            info = replace(extra["key"], doc=" ".join(declared.description.split()))
            yield Leaf(path, _placed(info, section, prefix.rstrip("."), name), declared)


def _placed(info: KeyInfo, section: type[BaseModel], group: str, name: str) -> KeyInfo:
    """Fill in the section's defaults, and verl's groups in names such as `{actor}.strategy`."""
    if issubclass(section, Section):
        engines = section.engines if info.engines == BOTH else info.engines
        needs = f"{group}.{info.needs}" if info.needs and "." not in info.needs else info.needs
        info = replace(info, resume=info.resume or section.when_resumed, engines=engines, needs=needs)
    if info.launcher or "verl" not in info.engines:
        return replace(info, verl=())
    known = next((path for path in (group, *groups(group)) if path in VERL_GROUPS), "")
    same = VERL_GROUPS.get(known, "") + group.removeprefix(known)
    role = ".".join(group.split(".")[:2])
    places = {path.rpartition(".")[2]: theirs for path, theirs in VERL_GROUPS.items()}
    places |= {"same": f"{same}.{name}", "fsdp": VERL_GROUPS.get(f"{role}.fsdp", "")}
    return replace(info, verl=tuple(template.format_map(places) for template in info.verl))


VERL, EASYR1 = NATIVES = ("verl", "easyr1")
"""The recipe's keys that hold an engine's own keys, by their dotted names."""


def flatten(tree: Mapping[str, Any], stops: Collection[str] = ()) -> dict[str, Any]:
    """Turn nested mappings into dotted keys. A mapping that is empty, or whose path is in `stops`, stays a value."""
    return {".".join(names): value for names, value in _entries(tree, stops)}


def _entries(
    tree: Mapping[str, Any], stops: Collection[str] = (), above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of nested mappings as `flatten` has them, each with its names from the outermost in."""
    for name, value in tree.items():
        names = (*above, str(name))
        if isinstance(value, Mapping) and value and ".".join(names) not in stops:
            yield from _entries(value, stops, names)
        else:
            yield names, value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested mappings; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def parse_as(text: str, annotation: Any) -> Any:
    """Parse null and lists in the text of a variable or argument; pydantic later converts every other type.

    Items of a list are separated by commas, or stand in YAML's brackets; a single text may stand for a list of one.
    """
    kinds = [get_origin(part) or part for part in members(annotation)]
    if type(None) in kinds and _is_null(text):
        return None
    if list in kinds and text.lstrip().startswith("["):
        return parse(text)
    items = [item.strip() for item in text.split(",") if item.strip()]
    if list in kinds and (str not in kinds or len(items) > 1):
        return items
    return text if str in kinds else text.strip()


def _is_null(value: Any) -> bool:
    return str(value).strip().lower() in ("null", "none", "~")


Name = Callable[[str, Source], str]
"""Turns a name as it is written into the dotted key that it means; raises RecipeError for an unknown one."""


def known_name(
    written: str,
    source: Source,
    schema: type[BaseModel],
    documentation: str = "docs/CONFIGURATION_REFERENCE.md",
    named_elsewhere: Mapping[str, str] = {},
) -> str:
    """A `Name` function, with the schema bound, for keys that are written by their dotted names alone.

    `named_elsewhere` has the keys of names that notes write; the error for one of them names its key.
    """
    if written in leaves(schema) or open_leaf(schema, written):
        return written
    meant = named_elsewhere.get(written)
    hint = f"did you mean {meant}?" if meant else did_you_mean(written, leaves(schema))
    raise RecipeError(f"unknown key {written}", where=source.where, fix=hint or f"see {documentation} for every key")


def open_leaf(schema: type[BaseModel], path: str) -> str | None:
    """Return the key whose free mapping contains `path`; None where there is none."""
    return next((group for group in groups(path) if group in leaves(schema) and leaves(schema)[group].is_open), None)


def settings_of(schema: type[BaseModel], tree: Any, source: Source, name: Name | None = None) -> list[Setting]:
    """The keys of a YAML tree as settings; groups that are left empty set nothing.

    Raises RecipeError for an unknown key.
    """
    if not isinstance(tree, Mapping):
        what, fix = f"expected keys and values, not {tree!r}", "write `key: value` lines there"
        raise RecipeError(what, where=source.where, fix=fix)
    name = name or partial(known_name, schema=schema)
    stops = [path for path, leaf in leaves(schema).items() if leaf.is_open and path not in NATIVES]
    settings = []
    for names, value in _entries(tree, stops):
        written = ".".join(names)
        is_group = written in NATIVES or any(path.startswith(f"{written}.") for path in leaves(schema))
        if is_group and value in (None, {}):
            continue
        path = name(written, source)
        settings.append(Setting(path, value, source, "" if names == (path,) else ": ".join(names)))
    return settings


def merge(schema: type[BaseModel], settings: Iterable[Setting]) -> tuple[dict[str, Any], dict[str, Source]]:
    """Merge settings: later ones win, and free mappings are merged. Returns flat values, and the source of each key.

    Raises RecipeError where one file, all variables or all arguments give a key two different values.
    """
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    refuse_two_values(settings := [replace(setting, value=_typed(schema, setting)) for setting in settings])
    for setting in settings:
        path, value = setting.path, setting.value
        leaf = open_leaf(schema, path)
        if leaf is not None:
            inner = path.removeprefix(f"{leaf}.")
            value = {inner: value} if leaf in NATIVES else nest({inner: value})
        target = leaf or path
        old = values.get(target)
        if isinstance(old, dict) and isinstance(value, dict):
            value = {**old, **value} if target in NATIVES else OmegaConf.to_container(OmegaConf.merge(old, value))
        values[target] = value
        sources[path if leaf in NATIVES else target] = setting.source
    return values, sources


def _typed(schema: type[BaseModel], setting: Setting) -> Any:
    """Text of variables and arguments becomes a value of the key's type; for data files, null names none."""
    if setting.path in leaves(schema) and leaves(schema)[setting.path].info.path == "data" and _is_null(setting.value):
        return ""
    if not (setting.source.by_user and isinstance(setting.value, str)):
        return setting.value
    leaf = leaves(schema).get(setting.path)
    return parse(setting.value) if leaf is None or leaf.is_open else parse_as(setting.value, leaf.field.annotation)


def refuse_two_values(settings: Iterable[Setting]) -> None:
    """Raise RecipeError where one layer gives a key two values, as `merge` does; the entries of a mapping are keys."""
    earlier: dict[str, list[Setting]] = {}
    for setting in settings:
        for (path, *inner), value in _entries({setting.path: setting.value}):
            spelled = ": ".join([setting.spelled or path, *inner])
            other = Setting(".".join([path.replace("+", ""), *inner]), value, setting.source, spelled)
            for one in earlier.setdefault(other.path, []):
                first, second = one.source, other.source
                together = first.layer == second.layer if second.by_user else first == second
                if together and one.value != value:
                    what = f"{one.path} is {one.value!r} as {one.spelled}, but {value!r} as {spelled}"
                    raise RecipeError(what, where=f"{first.where}; {second.where}", fix="give one of the two")
            earlier[other.path].append(other)


Schema = TypeVar("Schema", bound=BaseModel)


def validated(schema: type[Schema], values: Mapping[str, Any], sources: Mapping[str, Source]) -> Schema:
    """Build the configuration from flat values. Raises RecipeError that names key, value, expected type and layer."""
    try:
        configuration = schema.model_validate(nest(values))
    except ValidationError as error:
        raise _readable(schema, error, sources) from error
    if isinstance(configuration, Resolved):
        configuration._sources.update(sources)
    return configuration


def _readable(schema: type[BaseModel], error: ValidationError, sources: Mapping[str, Source]) -> RecipeError:
    """pydantic's complaint about the first wrong key, with the layer that set it; the others by name."""
    by_key: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        path = ".".join(map(str, detail["loc"]))  # with list positions, and the names of a union's members
        key = next((name for name in (path, *groups(path)) if name in leaves(schema)), path)
        by_key.setdefault(key, []).append(detail)
    (path, details), *others = by_key.items()
    value, wanted = details[0]["input"], " or ".join(detail["msg"].removeprefix("Value error, ") for detail in details)
    more = f" (also wrong: {', '.join(other for other, _ in others)})" if others else ""
    leaf = leaves(schema).get(path)
    default, items = leaf and leaf.default, value.split() if leaf and leaf.takes_list and isinstance(value, str) else []
    by_type = "give a value that fits, or leave it out" if wanted.startswith("Input should") else wanted
    several = f"separate several by commas: {','.join(items)}" if len(items) > 1 else ""
    fix = several or did_you_mean(str(value), re.findall("'([^']+)'", wanted))
    fix = fix or (f"give a value such as {flow(default)}" if default else by_type)
    return RecipeError(f"{path} is {value!r}: {wanted}{more}", where=sources.get(path, DEFAULT).where, fix=fix)
