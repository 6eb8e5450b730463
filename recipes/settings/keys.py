"""Declaration of a recipe's keys: default, one-line meaning, verl's name, and the engines that have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.fields import FieldInfo

from recipes.errors import RecipeError

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
