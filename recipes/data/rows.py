"""One row for both engines, and splits on disk: parquet files with a manifest beside each (`manifests.py`).

A row has an id (`ids.py`), what verl reads (`data_source`, `prompt`, `ability`, `reward_model`, `extra_info`) and what
EasyR1 reads (`problem`, `answer`, `images`). The column `images` exists only in splits of vision tasks: EasyR1 asks for
an image processor wherever it sees one. A file's bytes depend on its rows and on pyarrow's version alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict

import recipes
from recipes.config.path_keys import path_keys
from recipes.data.ids import ID, UniqueIds, content_id
from recipes.data.manifests import Manifest, Origin, SplitCounts, find_manifest, manifest_path
from recipes.errors import RecipeError
from recipes.provenance import sha256, versions

if TYPE_CHECKING:
    import pyarrow as pa

    from recipes.config import Recipe

ROWS_PER_GROUP = 4096
IMAGE_MARK = "<image>"


class RewardModel(TypedDict):
    """What verl hands the reward."""

    style: str
    ground_truth: str


class Row(TypedDict):
    """The columns of both engines; `make_row` says what they hold."""

    id: str
    data_source: str
    prompt: list[dict[str, str]]
    ability: str
    reward_model: RewardModel
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
        prompt: the user's message, or chat messages: one from the user, before it one from the system if wanted.
            EasyR1 has no system message, so `problem` holds both, one paragraph behind the other.
        ground_truth: what the reward compares with; JSON where it is structured.
        ability: verl's name for the kind of task, such as "math".
        extra_info: at least `split` and `index`; the same keys and types in every row of a split. `solution` is a
            whole response that earns the full score, for the check of a reward and for supervised training.
        images: encoded files, one for each `<image>` in the prompt; None for a task without images, [] for a row
            without one in a task that has them.
        id: the row's id (`recipes.data.ids`); None: made from the content.
    """
    messages: list[dict[str, str]] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    roles = [message["role"] for message in messages]
    if roles not in (["user"], ["system", "user"]):
        fix = "one user message, with a system message before it"
        raise RecipeError(f"a prompt with the roles {roles}", where="prompt", fix=fix)
    problem = "\n\n".join(message["content"] for message in messages)
    if not isinstance(ground_truth, str) or not ground_truth:
        raise RecipeError(f"ground_truth is {ground_truth!r}", where="ground_truth", fix="a text that is not empty")
    if "split" not in extra_info or "index" not in extra_info:
        raise RecipeError(f"extra_info has only {sorted(extra_info)}", where="extra_info", fix="add split and index")
    if id is None:
        id = content_id(data_source, messages, ground_truth, images or ())
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


def prompt_column(recipe: Recipe) -> str:
    """The column of the prompt: text for EasyR1, chat messages for verl."""
    return recipe.data.prompt_key or ("problem" if recipe.engine == "easyr1" else "prompt")


def engine_columns(recipe: Recipe) -> tuple[str, ...]:
    """The columns that the engine reads in every row; a dot goes into a struct."""
    if recipe.engine == "easyr1":
        return (prompt_column(recipe), recipe.data.answer_key)
    return ("data_source", prompt_column(recipe), "reward_model.ground_truth")


def row_count(recipe: Recipe, key: str = "data.train_files") -> int:
    """Rows of a split, from the files' footers; 0 where a file is missing or cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [each.path for each in path_keys(recipe) if each.key == key and not each.on_hub]
    try:
        return sum(pq.read_metadata(path).num_rows for path in paths if Path(path).is_file())
    except (OSError, pa.ArrowException):
        return 0


def data_sources(files: Iterable[str]) -> set[str]:
    """The data sources of these parquet files; files that are not there have none."""
    import pyarrow.parquet as pq

    sources: set[str] = set()
    for file in filter(Path.is_file, map(Path, files)):
        with pq.ParquetFile(file) as opened:
            if "data_source" in opened.schema_arrow.names:
                for batch in opened.iter_batches(columns=["data_source"]):
                    sources.update(batch.column(0).unique().to_pylist())
    return sources


def pack_envelope(data_source: str, ground_truth: str) -> str:
    """A ground truth with its data source, for EasyR1, which hands a reward nothing else of a row.

    `reward_functions/dispatch.py` reads it; reward files import nothing of this package and have a copy.
    """
    return json.dumps({"data_source": data_source, "ground_truth": ground_truth}, ensure_ascii=False)


def structured(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as both engines hand them to the chat template: every `<image>` a part of its own."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    pieces = re.split(f"({re.escape(IMAGE_MARK)})", content)
    return [{"type": "image"} if piece == IMAGE_MARK else {"type": "text", "text": piece} for piece in pieces if piece]


class Staged(NamedTuple):
    """A split that is written beside its final `path`, as `draft`, and not yet in place."""

    path: Path
    draft: Path
    manifest: Manifest


Status = Literal["written", "unchanged", "replaced", "there already"]


class Written(NamedTuple):
    """A split in place, and what happened to its file: "unchanged" has the same bytes, "there already" was not made."""

    manifest: Manifest
    status: Status


def write_split(path: Path, rows: Iterable[Row], origin: Origin | None = None, *, force: bool = False) -> Written:
    """Write one split and its manifest; `stage_split` and `put_in_place` do the same for several splits together."""
    with staging() as staged:
        staged.append(stage_split(path, rows, origin))
        return put_in_place(staged, force=force)[0]


def stage_split(
    path: Path,
    rows: Iterable[Row],
    origin: Origin | None = None,
    counts: Callable[[], SplitCounts] = SplitCounts,
) -> Staged:
    """Stream rows into a draft beside `path`, one row group at a time; nothing under `path` changes.

    Args:
        path: `<split>.parquet`.
        rows: from `make_row`; consumed once, never held together.
        origin: where the rows come from, for the manifest.
        counts: for the manifest; called once the rows have passed.

    Raises:
        RecipeError: no rows, rows of different shapes, or a disk that does not take them. No draft is left then.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with _mended(path, draft):
        path.parent.mkdir(parents=True, exist_ok=True)
        count, schema = _write(draft, rows, path)
        manifest = Manifest(
            **vars(origin or Origin()),
            **vars(counts()),
            file=path.name,
            rows=count,
            bytes=draft.stat().st_size,
            sha256=sha256(draft),
            columns={field.name: str(field.type) for field in schema},
            written_by={"grpo-recipes": recipes.__version__, **versions("pyarrow")},
        )
    return Staged(path, draft, manifest)


@contextmanager
def staging() -> Iterator[list[Staged]]:
    """A list for staged splits; drafts that were not put in place when it ends are removed."""
    staged: list[Staged] = []
    try:
        yield staged
    finally:
        for split in staged:
            split.draft.unlink(missing_ok=True)


def put_in_place(splits: Sequence[Staged], *, force: bool = False) -> list[Written]:
    """Put staged splits in place, all or none. Only with `force` are different data replaced."""
    states: list[Status] = ["unchanged" if split.path.exists() else "written" for split in splits]
    for index, split in enumerate(splits):
        if states[index] == "unchanged" and sha256(split.path) != split.manifest.sha256:
            states[index] = "replaced"
    if "replaced" in states and not force:
        changed = splits[states.index("replaced")]
        raise RecipeError(
            f"{changed.path} holds other data ({_described(changed.path)})",
            where="the split's path",
            fix="give --force to replace it, or --output_dir to write elsewhere",
        )
    for split, state in zip(splits, states, strict=True):
        if state != "unchanged":
            os.replace(split.draft, split.path)
        draft = split.draft.with_suffix(".json")
        draft.write_text(split.manifest.as_json(), encoding="utf-8")
        os.replace(draft, manifest_path(split.path))
    return [Written(split.manifest, state) for split, state in zip(splits, states, strict=True)]


def _write(draft: Path, rows: Iterable[Row], path: Path) -> tuple[int, pa.Schema]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = UniqueIds()
    iterator = iter(rows)
    group = list(islice(iterator, ROWS_PER_GROUP))
    if not group:
        raise RecipeError("the split has no rows", where=str(path), fix="check the source and the filters")
    first, schema, count = group[0], _schema(group), 0
    with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
        while group:
            _check_shape(group, first, path, count)
            for row in group:
                if ID in row:
                    row[ID] = row["extra_info"][ID] = ids.unique(row[ID])
            try:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                where = f"{path}, rows {count} to {count + len(group) - 1}"
                raise RecipeError(f"rows of different types: {error}", where=where, fix="use one type a key") from error
            count += len(group)
            group = list(islice(iterator, ROWS_PER_GROUP))
    return count, schema


def _schema(group: list[Row]) -> pa.Schema:
    import pyarrow as pa

    text = pa.string()
    fields = {
        **({ID: text} if ID in group[0] else {}),
        "data_source": text,
        "prompt": pa.list_(pa.struct([("role", text), ("content", text)])),
        "ability": text,
        "reward_model": pa.struct([("style", text), ("ground_truth", text)]),
        "extra_info": pa.infer_type([row["extra_info"] for row in group]),
        "problem": text,
        "answer": text,
    }
    if "images" in group[0]:
        fields["images"] = pa.list_(pa.struct([("bytes", pa.binary())]))
    return pa.schema(list(fields.items()))


def _check_shape(part: list[Row], first: Row, path: Path, start: int) -> None:
    columns, extra = first.keys(), first["extra_info"].keys()
    for index, row in enumerate(part, start):
        if row.keys() != columns or row["extra_info"].keys() != extra:
            differing = (row.keys() ^ columns) or (row["extra_info"].keys() ^ extra)
            raise RecipeError(
                f"row {index} and the first row differ in {sorted(differing)}",
                where=str(path),
                fix="give every row the same keys; images=[] stands for a row without images",
            )


@contextmanager
def _mended(path: Path, draft: Path) -> Iterator[None]:
    """Remove the draft if writing it fails in any way, and name a disk's refusal."""
    try:
        yield
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RecipeError(
                f"{path} cannot be written: {error}", where=str(path.parent), fix="free space, or write elsewhere"
            ) from error
        raise


def _described(path: Path) -> str:
    manifest = find_manifest(path)
    if manifest is None:
        return "no manifest says from where"
    return f"{manifest.rows} rows, made by: {manifest.command or 'an unknown command'}"
