"""Reads a JSON object of any size one entry at a time, in constant memory, and says where a broken file breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from recipes.errors import RecipeError

CHUNK = 1 << 20


class _Window:
    """The part of the text that has been read and not yet been used up."""

    def __init__(self, file: TextIO, source: str) -> None:
        self.file, self.source = file, source
        self.text, self.at, self.chunk, self.ended = "", 0, CHUNK, False
        self.last_key: str | None = None
        self.decoder = json.JSONDecoder()

    def more(self) -> bool:
        """Read on; false at the end of the file."""
        try:
            data = self.file.read(self.chunk)
        except UnicodeDecodeError as error:
            raise RecipeError(
                f"the file is not text in UTF-8 after query {self.last_key!r}: {error.reason}",
                where=self.source,
                fix="give the JSON file with the candidates",
            ) from error
        self.ended = not data
        self.text, self.at = self.text[self.at :] + data, 0
        return bool(data)

    def peek(self) -> str:
        """The next character that is not white space, or "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def expect(self, characters: str) -> str:
        found = self.peek()
        if not found:
            raise self.truncated()
        if found not in characters:
            raise RecipeError(
                f"expected one of {' '.join(characters)} but found {found!r} after query {self.last_key!r}",
                where=self.source,
                fix="the file must be one JSON object, {query id: record, ...}",
            )
        self.at += 1
        return found

    def value(self) -> Any:
        """The next JSON value, read further until it is whole."""
        self.peek()
        while True:
            try:
                found, end = self.decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    raise self.truncated() from error
                self.chunk *= 2
                self.more()
                continue
            except RecursionError as error:
                raise RecipeError(
                    f"the JSON is nested too deep in or after query {self.last_key!r}", where=self.source
                ) from error
            if end == len(self.text) and not self.ended:
                self.more()  # a number may go on in what has not been read yet
                continue
            self.at, self.chunk = end, CHUNK
            return found

    def truncated(self) -> RecipeError:
        place = f"in or after query {self.last_key!r}" if self.last_key is not None else "before its first query"
        return RecipeError(
            f"the JSON is cut off or malformed {place}",
            where=self.source,
            fix="copy or generate the file again; nothing of it was used",
        )


def stream_entries(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The (key, value) pairs of a JSON object, in order; a key that stands twice is an error.

    Memory is that of the largest entry plus about 1 MiB, and of the keys.
    """
    path = Path(path)
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where="data.candidates", fix="prepare the data, or mend the path")
    seen: set[str] = set()
    with path.open(encoding="utf-8") as file:
        window = _Window(file, str(path))
        window.expect("{")
        if window.peek() == "}":
            raise RecipeError("the file holds no query", where=str(path), fix="prepare the data again")
        while True:
            if window.peek() != '"':
                window.expect('"')
            key = window.value()
            if key in seen:
                raise RecipeError(
                    f"query {key!r} stands in the file twice", where=str(path), fix="merge its candidates"
                )
            seen.add(key)
            window.last_key = key
            window.expect(":")
            yield key, window.value()
            if window.expect(",}") == "}":
                break
        if window.peek():
            raise RecipeError("there is text behind the end of the JSON object", where=str(path))
