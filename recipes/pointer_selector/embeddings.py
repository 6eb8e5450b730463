"""Embedding tables from safetensors, npz or pt files; nothing pickled is ever executed."""

from __future__ import annotations

import json
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from recipes.errors import RecipeError
from recipes.pointer_selector.candidates import Item

SUFFIXES = (".safetensors", ".npz", ".pt", ".pth")


@dataclass(frozen=True)
class Table:
    """Embeddings [n, width] and the id of each row (the row's number where the file has no ids)."""

    rows: torch.Tensor
    index: dict[Item, int] | range
    source: str

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def row(self, item: Item, query_id: str) -> int:
        """Return the number of the row that has an id, which may be written as a number or as text.

        Raises RecipeError, which names the query, if no row has the id.
        """
        if isinstance(self.index, range):
            number = int(item) if isinstance(item, int) or item.isdecimal() else -1
            row = number if number in self.index else -1
        else:
            row = self.index.get(item, self.index.get(other_spelling(item), -1))
        if row < 0:
            raise RecipeError(
                f"query {query_id!r} needs the embedding of {item!r}, which the table of {len(self.rows)} rows does "
                "not have",
                where=self.source,
                fix="embed the missing item, or leave the query out",
            )
        return row


def other_spelling(item: Item) -> Item:
    """Return a number as text, or text that is a number as that number; JSON keys are always text."""
    if isinstance(item, int):
        return str(item)
    return int(item) if item.lstrip("-").isdecimal() else item


def load_table(path: str | Path, role: str) -> Table:
    """Read the table of one role ("query" or "candidate").

    The file holds `query_embeddings` or `candidate_embeddings` [n, width] beside `query_ids` or `candidate_ids` [n], or
    one single unnamed tensor. In safetensors, ids that are text stand in the metadata as a JSON list.

    Raises:
        RecipeError: no such file, unknown suffix, pickled objects, wrong shape, or values that are not finite.
    """
    path, name, id_name = Path(path), f"{role}_embeddings", f"{role}_ids"
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where=f"data.{name}", fix="mend the path, or embed first")
    if path.suffix not in SUFFIXES:
        what, fix = (
            f"embeddings in a {path.suffix or 'nameless'} file are not read",
            f"use one of {', '.join(SUFFIXES)}",
        )
        raise RecipeError(what, where=str(path), fix=fix)
    content = _content(path)
    values = content.get(name, content.get("embeddings", content.get("")))
    if values is None:
        held = ", ".join(sorted(map(str, content))) or "nothing"
        raise RecipeError(f"the file has no {name}; it has {held}", where=str(path))
    ids = content.get(id_name)
    ids = ids if ids is None or isinstance(ids, list) else np.asarray(ids).tolist()
    rows = _stacked(values, name, ids, str(path))
    if rows.ndim != 2 or not rows.is_floating_point() or 0 in rows.shape:
        raise RecipeError(f"{name} is {rows.dtype} of shape {tuple(rows.shape)}, not [rows, features]", where=str(path))
    index = range(len(rows)) if ids is None else _index(ids, len(rows), id_name, str(path))
    bad = ~torch.isfinite(rows).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        item = list(index)[row]
        raise RecipeError(f"the embedding of {item!r} holds values that are not finite", where=f"{path}, row {row}")
    return Table(rows, index, str(path))


def _stacked(values: Any, name: str, ids: Any, source: str) -> torch.Tensor:
    """Make one tensor out of a tensor, an array, or a list with one vector a row."""
    try:
        if not isinstance(values, list | tuple):
            return torch.as_tensor(values)
        each = [torch.as_tensor(row) for row in values]
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{name} does not hold numbers: {error}", where=source) from error
    for number, row in enumerate(each):
        if row.shape != each[0].shape:
            item = ids[number] if isinstance(ids, list) and len(ids) == len(each) else number
            raise RecipeError(
                f"the embedding of {item!r} has shape {tuple(row.shape)}, and the first one {tuple(each[0].shape)}",
                where=f"{source}, row {number}",
                fix="embed everything with one encoder",
            )
    return torch.stack(each) if each else torch.empty(0, 0)


def _index(ids: Any, rows: int, name: str, source: str) -> dict[Item, int]:
    if not isinstance(ids, list) or not all(isinstance(item, int | str) for item in ids):
        raise RecipeError(f"{name} is not a list of numbers or texts", where=source)
    if len(ids) != rows or len(set(ids)) != rows:
        what = f"{name} has {len(ids)} entries ({len(set(ids))} distinct) for {rows} rows"
        raise RecipeError(what, where=source)
    return {item: number for number, item in enumerate(ids)}


def _content(path: Path) -> dict[str, Any]:
    """Return a file's content by name; a single unnamed tensor has the name "". Raises what `load_table` raises."""
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        if path.suffix == ".npz":
            loaded = np.load(path, allow_pickle=False)
            if isinstance(loaded, np.ndarray):  # a .npy file with the suffix .npz
                return {"": loaded}
            with loaded as file:
                return {"" if file.files == ["arr_0"] else name: file[name] for name in file.files}
        content = torch.load(path, map_location="cpu", weights_only=True)
        return content if isinstance(content, dict) else {"": content}
    except pickle.UnpicklingError as error:  # torch's own message says how to execute what the file holds
        what = "the file holds pickled objects other than tensors, which are never loaded"
        raise RecipeError(what, where=str(path), fix="save a tensor, or a dict of tensors and lists") from error
    except (SafetensorError, zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OSError) as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        what = f"the file is not readable as {path.suffix} without pickles: {first_line}"
        raise RecipeError(what, where=str(path), fix="save plain tensors or arrays, and ids as a JSON list") from error


def _safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a safetensors file is no mapping
        metadata = file.metadata() or {}
    return {name: json.loads(metadata[name]) for name in ("query_ids", "candidate_ids") if name in metadata} | content
