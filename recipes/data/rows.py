"""Rows with the columns of both engines, and splits on disk: parquet files with a manifest beside each.

A row has an id, what verl reads (`data_source`, `prompt`, `ability`, `reward_model`, `extra_info`) and what EasyR1
reads (`problem`, `answer`, `images`). The column `images` exists only in splits of vision tasks: EasyR1 asks for an
image processor wherever it sees that column. A file's bytes depend on its rows and on pyarrow's version alone.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

import recipes
from recipes.config import Recipe
from recipes.config.path_keys import path_keys
from recipes.errors import RecipeError
from recipes.files import json_sha256, sha256, whole_folder, write_whole, writing
from recipes.pictures import MARKS, OWN_MARK, UNSHOWN
from recipes.written import written


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    task: str = ""
    split: str = ""
    source: str = ""  # where the rows come from, in words
    command: str = ""  # the command that made the rows
    seed: int | None = None
    settings: Mapping[str, Any] = {}  # of the generator, the conversion or the filter that made the rows
    counts: Mapping[str, Any] = {}  # numbers and tables of the rows, such as rows by data source
    dropped: Mapping[str, int] = {}  # rows that were left out, by reason
    file: str = ""  # the parquet file's name
    rows: int  # number of rows in the parquet file
    bytes: int = 0  # size of the parquet file
    sha256: str  # of the parquet file
    columns: Mapping[str, str] = {}  # name -> Arrow type
    written_by: Mapping[str, str] = {}


def manifest_path(path: Path) -> Path:
    """`train.manifest.json` for `train.parquet`."""
    return path.with_name(f"{path.stem}.manifest.json")


def find_manifest(path: Path) -> Manifest | None:
    """The manifest of a split's parquet file, None where there is none; one that is broken raises RecipeError."""
    beside = manifest_path(path)
    try:
        return Manifest.model_validate_json(beside.read_bytes()) if beside.is_file() else None
    except ValidationError as error:
        first = error.errors()[0]
        what = f"the manifest is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        fix = "make the data again: remove its folder, or --force"
        raise RecipeError(what, where=str(beside), fix=fix) from error


ID: Final = "id"
"""Column, and key in `extra_info`, that holds the row's id. Every file of a run identifies the row by this id."""
ID_DIGITS = 20
"""Hexadecimal digits of an id from content: 80 bits; two of a million ids collide with probability 1e12 / 2^81."""
IMAGE_MARK, IMAGES = "<image>", "images"
VIDEOS, AUDIOS = "videos", "audios"
ROWS_PER_GROUP = 4096


class Row(TypedDict):
    """The columns of both engines; `make_row` says what they hold."""

    id: str
    data_source: str
    prompt: list[dict[str, str]]
    ability: str
    reward_model: dict[str, str]
    extra_info: dict[str, Any]
    problem: str
    answer: str
    images: NotRequired[list[dict[str, bytes]]]


def make_row(
    *,
    data_source: str,
    prompt: str | list[dict[str, str]],
    ground_truth: str,
    ability: str,
    extra_info: dict[str, Any],
    images: Sequence[bytes] | None = None,
    id: str | None = None,
) -> Row:
    """A row with the columns of both engines.

    Args:
        data_source: the task, by which validation metrics are grouped.
        prompt: the user's message, or chat messages. EasyR1 has neither system message nor turns, so `problem` joins
            all messages, with an empty line between them.
        ground_truth: what the reward compares with; JSON where it is structured, empty where the reward needs none.
        ability: verl's name for the kind of task, such as "math".
        extra_info: at least `split` and `index`; the same keys and types in every row of a split. `solution` is a
            whole response that earns the full score, for the check of a reward and for supervised training.
        images: encoded files, one for each `<image>` in the prompt; None for a task without images, [] for a row
            without an image in a task with images.
        id: the row's name; None: made from the content.
    """
    messages: list[dict[str, str]] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if mistake := conversation_mistake(messages):
        raise RecipeError(mistake, where="prompt", fix="end with a message of the user")
    if id is None:
        id = content_id(data_source, messages, ground_truth, images or ())
    problem = "\n\n".join(message["content"] for message in messages)
    if mark := next((mark for mark in MARKS + UNSHOWN * bool(images) if mark in problem), ""):
        fix = f"write {IMAGE_MARK} where an image belongs, and leave other marks out"
        raise RecipeError(f"{mark} is in the prompt, {OWN_MARK}", where="prompt", fix=fix)
    row: Row = {
        "id": id,
        "data_source": data_source,
        "prompt": messages,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {ID: id, **extra_info},
        "problem": problem,
        "answer": ground_truth,
    }
    if images is not None:
        if problem.count(IMAGE_MARK) != len(images):
            what = f"{problem.count(IMAGE_MARK)} {IMAGE_MARK} in the prompt and {len(images)} images"
            raise RecipeError(what, where="prompt, images", fix=f"write one {IMAGE_MARK} for each image")
        row["images"] = [{"bytes": image} for image in images]
    return row


def conversation_mistake(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The mistake in the roles (an optional system, then user and assistant in turn, user last), or None."""
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if len(turns) % 2 and turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]:
        return None
    return f"the roles are {', '.join(map(str, roles))}; user and assistant take turns, and the user is the last"


def content_id(
    data_source: str, messages: Sequence[Mapping[str, str]], ground_truth: str, images: Sequence[bytes] = ()
) -> str:
    """The id of a row by its data source, messages, ground truth and the bytes of its images."""
    digest = hashlib.sha256()
    parts = [data_source, *(part for each in messages for part in (each["role"], each["content"])), ground_truth]
    for part in [part.encode("utf-8", "surrogatepass") for part in parts] + list(images):
        digest.update(len(part).to_bytes(8, "big") + part)  # the lengths keep ("ab", "c") and ("a", "bc") apart
    return digest.hexdigest()[:ID_DIGITS]


def first_id(id: str) -> str:
    """The id of the first row with the same content: an id from content without the number of a repeated row."""
    return re.sub(rf"^([0-9a-f]{{{ID_DIGITS}}})-\d+$", r"\1", id)


def rows_digest(recipe: Recipe, key: str) -> str | None:
    """The SHA-256 of a split's rows, wherever the files lie and whatever wrote them; None where a file is not here."""
    files = [entry.path for entry in path_keys(recipe) if entry.key == key]
    if not all(Path(file).is_file() for file in files):
        return None
    return json_sha256([_rows_of(file, os.stat(file).st_mtime_ns, os.stat(file).st_size) for file in files])


@lru_cache(maxsize=16)
def _rows_of(file: str, _mtime_ns: int, _size: int) -> str:
    digest = hashlib.sha256()
    try:
        with pq.ParquetFile(file) as opened:
            digest.update(str(opened.schema_arrow.remove_metadata()).encode())
            for batch in opened.iter_batches(4096):
                digest.update(batch.serialize())
    except (OSError, pa.ArrowException):
        return sha256(Path(file))  # not readable as parquet; the data checks report it
    return digest.hexdigest()


def row_count(recipe: Recipe) -> int:
    """Number of training rows, from the files' footers; missing files count 0, and one unreadable file makes it 0."""
    paths = [each.path for each in path_keys(recipe) if each.key == "data.train_files" and not each.on_hub]
    try:
        return sum(pq.read_metadata(path).num_rows for path in paths if Path(path).is_file())
    except (OSError, pa.ArrowException):
        return 0


def read_rows(file: str | Path, wanted: Sequence[str] | None = None, at_once: int = 4096) -> Iterator[dict[str, Any]]:
    """Yield every row of a parquet file, with the wanted columns that the file has; None: all."""
    with pq.ParquetFile(file) as opened:
        columns = None if wanted is None else [name for name in opened.schema_arrow.names if name in wanted]
        for batch in opened.iter_batches(at_once, columns=columns):
            yield from batch.to_pylist()


def not_shown(row: Mapping[str, Any], videos: str) -> tuple[str, str] | None:
    """What a row's columns of videos and sounds have, which no recipe shows, and how to mend it; None: nothing."""
    given = {name: written(row.get(name)) for name in (videos, AUDIOS)}  # a number is another column of that name
    held = next((name for name, each in given.items() if each and isinstance(each, str | bytes | list | dict)), None)
    fix = f"leave the column out, or give frames as pictures, each with {IMAGE_MARK} in the prompt"
    return (f"{held} has a value, and no recipe shows videos or sounds", fix) if held else None


def pictures_mistake(file: str | Path, images: str, videos: str) -> tuple[str, str] | None:
    """What is wrong with a file's columns of pictures and videos, and how to mend it; None where nothing is."""
    schema = pq.read_schema(file)
    for name, usual, kind in (images, IMAGES, "image"), (videos, VIDEOS, "video"):
        if name != usual and name not in schema.names:
            what = f"{file} has no column {name} (its columns are {', '.join(schema.names)})"
            return what, f"name its column of {kind}s, add an empty one, or leave data.{kind}_key out"
    media = [
        name for name in (videos, AUDIOS) if name in schema.names and not pa.types.is_null(schema.field(name).type)
    ]
    for number, row in enumerate(read_rows(file, media, 16) if media else ()):
        if mistake := not_shown(row, videos):
            return f"{file}, row {number}: {mistake[0]}", mistake[1]
    kind = schema.field(images).type if images in schema.names else pa.null()
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list and any(row.get(images) for row in read_rows(file, [images])):
        what = f"the column {images} of {file} is {str(kind)[:60]}, and engines read a list of pictures"
        return what, "write a list of pictures in each row"
    return None


def place_of(extra_info: Any) -> str:
    """The line of the user's file that a row was converted from, `line 3 of my.jsonl`; empty where it is not known."""
    known = isinstance(extra_info, dict) and {"file", "line"} <= extra_info.keys()
    return f"line {extra_info['line']} of {extra_info['file']}" if known else ""


def structured(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as both engines hand them to the chat template: every `<image>` a part of its own."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    pieces = re.split(f"({re.escape(IMAGE_MARK)})", content)
    return [{"type": "image"} if piece == IMAGE_MARK else {"type": "text", "text": piece} for piece in pieces if piece]


class Split(NamedTuple):
    name: str  # "train" or "test"
    rows: Iterable[Row]  # from `make_row`; consumed once, never held together
    facts: Mapping[str, Any] = {}  # fields of the manifest; read after the rows, whose stream may fill counters in it
    size: int | None = None  # how many rows there will be, for the progress bar; None where that is not known
    schema: pa.Schema | None = None  # of rows with columns of their own; None for rows of `make_row` alone


_OURS = re.compile(r"(train|test)\.(parquet|manifest\.json|tokens-\w+\.json)")


def write_data(folder: Path, splits: Iterable[Split], *, force: bool = False) -> tuple[list[Manifest], str]:
    """Write every split with its manifest into a folder of their own; it appears whole, so that they belong together.

    Returns the manifests, and what happened: "written", "unchanged" or "replaced". Raises RecipeError for rows that
    cannot be written, and for a folder with other data (without `force`) or with other files.
    """
    with writing(folder):
        there = [path.name for path in folder.iterdir()] if folder.exists() else []
        if other := next((name for name in there if not _OURS.fullmatch(name)), None):
            fix = "name a folder for the data alone"
            raise RecipeError(f"the folder holds other files, such as {other}", where=str(folder), fix=fix)
        with whole_folder(folder) as draft:
            manifests = [
                write_split(draft / f"{each.name}.parquet", each.rows, each.facts, each.schema) for each in splits
            ]
            held = {path.name: sha256(path) for path in folder.glob("*.parquet")}
            made = {manifest.file: manifest.sha256 for manifest in manifests}
            changed = [folder / name for name in sorted(held) if held[name] != made.get(name)]
            if changed and not force:
                known = find_manifest(changed[0])
                source = f"{known.rows} rows, made by: {known.command or '?'}" if known else "without a manifest"
                fix = "give --force to replace it, or write elsewhere"
                raise RecipeError(f"{changed[0]} holds other data ({source})", where=str(changed[0]), fix=fix)
    return manifests, "unchanged" if held == made else "replaced" if held else "written"


def write_split(
    path: Path, rows: Iterable[Row], facts: Mapping[str, Any] = {}, schema: pa.Schema | None = None
) -> Manifest:
    """Stream rows into `<split>.parquet`, one row group at a time, and write its manifest; arguments as in `Split`.

    A split that cannot be written raises RecipeError, and leaves what was there.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with writing(path, draft):
        path.parent.mkdir(parents=True, exist_ok=True)
        count, schema = _write(draft, rows, path, schema)
        manifest = Manifest(
            **json.loads(json.dumps(facts, sort_keys=True, default=str)),
            file=path.name,
            rows=count,
            bytes=draft.stat().st_size,
            sha256=sha256(draft),
            columns={field.name: str(field.type) for field in schema},
            written_by={"grpo-recipes": recipes.__version__, "pyarrow": version("pyarrow")},
        )
        os.replace(draft, path)
        write_whole(manifest_path(path), manifest.model_dump_json(indent=2, exclude_defaults=True) + "\n")
    return manifest


def _write(draft: Path, rows: Iterable[Row], path: Path, given: pa.Schema | None) -> tuple[int, pa.Schema]:
    ids = Counter[str]()
    iterator = iter(rows)
    group = list(islice(iterator, ROWS_PER_GROUP))
    if not group:
        raise RecipeError("the split has no rows", where=str(path), fix="check the source and the filters")
    first, schema, count = group[0], given or schema_of(group, with_images=IMAGES in group[0]), 0
    with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
        while group:
            for index, row in enumerate(group, count):
                if given is None and (
                    row.keys() != first.keys() or row["extra_info"].keys() != first["extra_info"].keys()
                ):
                    what = f"row {index} has other keys than the first, in itself or in extra_info"
                    fix = "give every row the same keys; images=[] stands for a row without images"
                    raise RecipeError(what, where=str(path), fix=fix)
                if ID in row:
                    own = row[ID]
                    ids[own] += 1
                    if ids[own] > 1:  # the second row of the same content gets `-2` behind its id, the third `-3`
                        row[ID] = f"{own}-{ids[own]}"
                        if given is None:
                            row["extra_info"][ID] = row[ID]
            try:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
            except (pa.ArrowException, OverflowError) as error:  # other types in later rows, more than 64 bits
                what, where = f"parquet cannot hold rows: {error}", f"{path}, rows {count} to {count + len(group) - 1}"
                raise RecipeError(what, where=where, fix="use one type a key, and text for numbers so large") from error
            count += len(group)
            group = list(islice(iterator, ROWS_PER_GROUP))
    return count, schema


def schema_of(rows: Iterable[Mapping[str, Any]], *, with_images: bool) -> pa.Schema:
    """The schema of rows with any columns, of one type each; a column that a row lacks is null there."""
    iterator, schema = iter(rows), pa.schema([])
    try:
        while group := list(islice(iterator, ROWS_PER_GROUP)):
            found = pa.schema(list(pa.infer_type(group)))
            schema = pa.unify_schemas([schema, found], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RecipeError(f"rows of different types: {error}", where="the data", fix="use one type a key") from error
    kept = _with_keys(pa.struct(field for field in schema if field.name != IMAGES))  # images have a type of their own
    schema = pa.schema(list(kept or ()))
    pictures = pa.field(IMAGES, pa.list_(pa.struct([("bytes", pa.binary())])))
    return schema.append(pictures) if with_images else schema


def _with_keys(kind: pa.DataType) -> pa.DataType | None:
    """A type without the objects that have no keys, which parquet cannot hold; None where that leaves nothing."""
    if pa.types.is_list(kind):
        return pa.list_(inner) if (inner := _with_keys(kind.value_type)) else None
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct(fields) if (fields := [(each.name, t) for each in kind if (t := _with_keys(each.type))]) else None
