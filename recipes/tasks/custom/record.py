"""One record of a user's file: which fields it has, and what is said where one is missing or wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipes.config.suggest import nearest
from recipes.errors import RecipeError

REQUIRED = ("prompt", "ground_truth", "data_source")
OPTIONAL = ("images", "solution")
EXAMPLE = '{"prompt": "What is 17 + 25?", "ground_truth": "42", "data_source": "math_reasoning"}'
CHAT_EXAMPLE = '{"prompt": [{"role": "user", "content": "What is 17 + 25?"}], "ground_truth": ...}'

# What other collections call our fields.
_USUAL = {
    "prompt": ("question", "problem", "instruction", "input", "query", "messages", "text"),
    "ground_truth": ("answer", "label", "target", "output", "gold", "response", "completion", "answers"),
    "data_source": ("source", "dataset", "task", "category", "type"),
}


@dataclass(frozen=True)
class Place:
    """Where a record stands: file, and line (of text) or row (of parquet), counted from 1."""

    file: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


@dataclass(frozen=True)
class Record:
    """A record that was checked.

    Attributes:
        place: where it stands.
        messages: chat messages; one of the user, before it one of the system if there is one.
        ground_truth: text; JSON where the file has a list or an object.
        data_source: which reward it belongs to.
        images: paths, data URIs or bytes, in the order of their marks in the prompt.
        solution: a response that earns the full score, if the file has one.
        rest: every further field.
    """

    place: Place
    messages: tuple[tuple[str, str], ...]
    ground_truth: str
    data_source: str
    images: tuple[Any, ...] = ()
    solution: str = ""
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """The user's message."""
        return self.messages[-1][1]


def checked(raw: Any, place: Place, default_source: str | None = None) -> Record:
    """The record behind a JSON value. Raises RecipeError that names the place, the field and an example."""
    if not isinstance(raw, dict):
        raise _wrong(f"{_shown(raw)} is not a record with fields", place)
    given = {name: value for name, value in raw.items() if value is not None}
    if default_source is not None:
        given.setdefault("data_source", default_source)
    for name in REQUIRED:
        if name not in given:
            raise _missing(name, raw, place)
    source = given["data_source"]
    if not isinstance(source, str) or not source.strip():
        raise _wrong(f"data_source is {_shown(source)}, not the name of a reward", place)
    return Record(
        place,
        _messages(given["prompt"], place),
        _truth(given["ground_truth"], place),
        source.strip(),
        _images(given.get("images"), place),
        _solution(given.get("solution"), place),
        {name: value for name, value in given.items() if name not in (*REQUIRED, *OPTIONAL)},
    )


def _messages(prompt: Any, place: Place) -> tuple[tuple[str, str], ...]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise _wrong("prompt is empty", place)
        return (("user", prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise _wrong(f"prompt is {_shown(prompt)}, neither a text nor chat messages", place)
    for message in prompt:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise _wrong(f"the chat message {_shown(message)} has not just role and content", place, CHAT_EXAMPLE)
        if not isinstance(message["content"], str) or not message["content"].strip():
            content = _shown(message["content"])
            raise _wrong(f"the content of a chat message is {content}, not a text", place, CHAT_EXAMPLE)
    roles = [message["role"] for message in prompt]
    if roles not in (["user"], ["system", "user"]):
        raise RecipeError(
            f"the roles of the chat messages are {', '.join(map(str, roles))}",
            where=str(place),
            fix="one user message, with a system message before it if you like; put examples into the user's message",
        )
    return tuple((message["role"], message["content"]) for message in prompt)


def _truth(value: Any, place: Place) -> str:
    """The ground truth as text; numbers, lists and objects as JSON."""
    if isinstance(value, str):
        if not value.strip():
            raise _wrong("ground_truth is empty", place)
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(f"ground_truth is {value}, not a finite number", place)
    if isinstance(value, list | dict) and not value:
        raise _wrong(f"ground_truth is {value!r}, which is empty", place)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _wrong(f"ground_truth cannot be written as JSON: {error}", place) from error


def _images(value: Any, place: Place) -> tuple[Any, ...]:
    images = value if isinstance(value, list) else [] if value in (None, "") else [value]
    for image in images:
        inner = (image.get("bytes") or image.get("path")) if isinstance(image, dict) else image
        if not isinstance(inner, str | bytes) or not inner:
            raise _wrong(f"the image {_shown(image)} is neither a path nor a data URI", place)
    return tuple(images)


def _solution(value: Any, place: Place) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(f"solution is {_shown(value)}, not the text of a response", place)
    return value


def _missing(name: str, raw: Mapping[str, Any], place: Place) -> RecipeError:
    """Which field is missing, and which of those that are there it may be."""
    if name in raw:
        what = f"the field {name} is null"
    else:
        what = f"there is no field {name} (there is {', '.join(map(str, raw)) or 'none'})"
    others = [str(other) for other in raw if other not in (*REQUIRED, *OPTIONAL)]
    alike = [other for other in _USUAL[name] if other in others] or [nearest(name, others, 0.7)]
    hints = [f"rename {alike[0]} to {name}"] if alike[0] else []
    if name == "data_source":
        hints.append("or give one for all rows: --data_source math_reasoning")
    return RecipeError(what, where=str(place), fix="; ".join([*hints, f"a right row: {EXAMPLE}"]))


def _wrong(what: str, place: Place, example: str = EXAMPLE) -> RecipeError:
    return RecipeError(what, where=str(place), fix=f"a right row: {example}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
