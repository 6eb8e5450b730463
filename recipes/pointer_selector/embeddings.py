"""Embedding tables from safetensors, npz or pt files; nothing pickled is ever executed."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from recipes.errors import RecipeError
from recipes.pointer_selector.candidates import Item

ROLES = {"query": ("query_embeddings", "query_ids"), "candidate": ("candidate_embeddings", "candidate_ids")}


@dataclass(frozen=True)
class Table:
    """Embeddings [n, width] and the id of each row (the row's number where the file has no ids)."""

    rows: torch.Tensor
    index: dict[Item, int] | range
    source: str

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def row(self, item: Item, owner: str) -> int:
        """The row of an id, written as a number or as text. `owner` is the query that asks, for the message."""
        if isinstance(self.index, range):
            number = int(item) if isinstance(item, int) or item.isdecimal() else -1
            if number in self.index:
                return number
        else:
            found = self.index.get(item, self.index.get(other_spelling(item)))
            if found is not None:
                return found
        raise RecipeError(
            f"query {owner!r} needs the embedding of {item!r}, which the table of {len(self.rows)} rows does not have",
            where=self.source,
            fix="embed the missing item, or leave the query out",
        )


def other_spelling(item: Item) -> Item | None:
    """A number as text, or text that is a number as that number; JSON keys are always text."""
    if isinstance(item, int):
        return str(item)
    return int(item) if item.lstrip("-").isdecimal() else None


def load_table(path: str | Path, role: str) -> Table:
    """The table of one role ("query" or "candidate").

    The file holds `query_embeddings` or `candidate_embeddings` [n, width] beside `query_ids` or `candidate_ids` [n], or
    one single unnamed tensor. In safetensors, ids that are text stand in the metadata as a JSON list.

    Raises:
        RecipeError: no such file, unknown suffix, pickled objects, wrong shape, or values that are not finite.
    """
    path = Path(path)
    if not path.is_file():
        raise RecipeError(
            f"there is no file {path}", where=f"data.{role}_embeddings", fix="mend the path, or embed first"
        )
    if path.suffix not in _READERS:
        raise RecipeError(
            f"embeddings in a {path.suffix or 'nameless'} file are not read",
            where=str(path),
            fix=f"use one of {', '.join(_READERS)}",
        )
    content = _READERS[path.suffix](path)
    name, id_name = ROLES[role]
    values = content.get(name, content.get("embeddings", content.get("")))
    if values is None:
        held = ", ".join(sorted(map(str, content))) or "nothing"
        raise RecipeError(f"the file has no {name}; it has {held}", where=str(path))
    rows = _rows(values, name, content.get(id_name), str(path))
    if rows.ndim != 2 or not rows.is_floating_point() or 0 in rows.shape:
        raise RecipeError(f"{name} is {rows.dtype} of shape {tuple(rows.shape)}, not [rows, features]", where=str(path))
    index = _index(content.get(id_name), len(rows), id_name, str(path))
    _require_finite(rows, index, str(path))
    return Table(rows, index, str(path))


def _rows(values, name: str, ids, source: str) -> torch.Tensor:
    """One tensor out of a tensor, an array, or a list with one vector a row."""
    try:
        if not isinstance(values, list | tuple):
            return torch.as_tensor(values)
        each = [torch.as_tensor(row) for row in values]
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{name} does not hold numbers: {error}", where=source) from error
    odd = next((number for number, row in enumerate(each) if row.shape != each[0].shape), None)
    if odd is not None:
        owner = ids[odd] if isinstance(ids, list) and len(ids) == len(each) else odd
        raise RecipeError(
            f"the embedding of {owner!r} has shape {tuple(each[odd].shape)}, and the first one {tuple(each[0].shape)}",
            where=f"{source}, row {odd}",
            fix="embed everything with one encoder",
        )
    return torch.stack(each) if each else torch.empty(0, 0)


def _index(ids, rows: int, name: str, source: str) -> dict[Item, int] | range:
    if ids is None:
        return range(rows)
    listed = ids if isinstance(ids, list) else np.asarray(ids).tolist()
    if not isinstance(listed, list) or not all(isinstance(item, int | str) for item in listed):
        raise RecipeError(f"{name} is not a list of numbers or texts", where=source)
    if len(listed) != rows or len(set(listed)) != rows:
        raise RecipeError(
            f"{name} has {len(listed)} entries ({len(set(listed))} distinct) for {rows} rows", where=source
        )
    return {item: number for number, item in enumerate(listed)}


def _require_finite(rows: torch.Tensor, index: dict[Item, int] | range, source: str) -> None:
    bad = ~torch.isfinite(rows).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        item = next(name for name, number in zip(index, range(len(rows)), strict=True) if number == row)
        raise RecipeError(f"the embedding of {item!r} holds values that are not finite", where=f"{source}, row {row}")


def _read_safetensors(path: Path) -> dict:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a safetensors file is no mapping
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise RecipeError(f"the file is not readable as safetensors: {error}", where=str(path)) from error
    for name in ("query_ids", "candidate_ids"):
        if name in metadata and name not in content:
            try:
                content[name] = json.loads(metadata[name])
            except json.JSONDecodeError as error:
                raise RecipeError(f"{name} in the metadata is not a JSON list: {error}", where=str(path)) from error
    return content


def _read_npz(path: Path) -> dict:
    import zipfile

    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):  # a .npy file by another name
            return {"": loaded}
        with loaded as file:
            return {"" if len(file.files) == 1 and name == "arr_0" else name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RecipeError(
            f"the file is not readable as npz without pickles: {error}", where=str(path), fix="save plain arrays"
        ) from error


def _read_pt(path: Path) -> dict:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's own message says how to run what is in the file
        raise RecipeError(
            "the file holds pickled objects other than tensors, which are never loaded",
            where=str(path),
            fix="save a tensor, or a dict of tensors and lists",
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RecipeError(f"the file is not readable as a torch file: {first_line}", where=str(path)) from error
    return content if isinstance(content, dict) else {"": content}


_READERS = {".safetensors": _read_safetensors, ".npz": _read_npz, ".pt": _read_pt, ".pth": _read_pt}
