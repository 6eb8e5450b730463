"""From the text of a variable or an argument to a value of the key's type."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from recipes.config import yaml_io

_TRUE, _FALSE, _NULL = ("1", "true", "yes", "on"), ("0", "false", "no", "off"), ("null", "none", "~")


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def parse_as(text: str, annotation: Any) -> Any:
    """Read `text` as the type asks: lists may be joined by commas, truth may be 1 or yes, text stays as it is.

    What does not fit is returned as it was read, so that the schema's check can name the type it wants.
    """
    parts = _parts(annotation)
    word = text.strip()
    if type(None) in parts and word.lower() in _NULL:
        return None
    if bool in parts and word.lower() in _TRUE + _FALSE:
        return word.lower() in _TRUE
    lists = [part for part in parts if get_origin(part) is list]
    if lists and (word.startswith("[") or str not in parts):
        return _list(word, get_args(lists[0])[0])
    if str in parts:
        return text
    if any(get_origin(part) is Literal for part in parts):
        return word
    return _plain(word)


def _list(word: str, item: Any) -> Any:
    read = _plain(word) if word.startswith("[") else [part.strip() for part in word.split(",") if part.strip()]
    return [parse_as(str(part), item) for part in read] if isinstance(read, list) else read


def _plain(word: str) -> Any:
    try:
        return yaml_io.parse(word)
    except yaml.YAMLError:
        return word
