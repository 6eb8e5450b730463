"""Users' files as rows for both engines: prompt, ground truth, images, and a held-out split."""

import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from rich.progress import Progress

from recipes import pictures
from recipes.config import PathKey, Recipe, path_keys
from recipes.config.resolve import replaced
from recipes.config.rewards import is_own
from recipes.config.schema import BY_CONVERSION, leaves
from recipes.data.lengths import count_split
from recipes.data.readers import ID_HINT, TO_PARQUET, Columns, Mistakes, Place, Record, records, whole
from recipes.data.rows import (
    IMAGE_MARK,
    Manifest,
    Row,
    Split,
    content_id,
    find_manifest,
    make_row,
    schema_of,
    write_data,
    write_split,
)
from recipes.data.splits import MOST_VALIDATION, Prompts
from recipes.engines.columns import engine_columns, prompt_column
from recipes.engines.worked_answers import messages_of
from recipes.errors import RecipeError, first_line
from recipes.files import json_sha256, sha256
from recipes.model_files import local_model, model_config, text_config
from recipes.paths import ROOT, data_dir, relative_to_cwd
from recipes.progress_bar import progress_bar
from recipes.rewards.loading import load_reward
from recipes.written import written

VERSION = 12
"""Version of the conversion; raise it when the same file would give other rows."""
HELD_OUT = "in_validation_data"
"""The reason code of training rows that are dropped because the validation data have their prompt or image too."""


@dataclass(frozen=True)
class Conversion:
    """Files to convert, and how."""

    train: tuple[Path, ...]
    val: tuple[Path, ...] = ()  # without any, a share of the training rows is held out for validation
    system_prompt: Path | None = None
    template: Path | None = None
    columns: Columns = field(default_factory=Columns)
    val_share: float = 0.05  # share of each source that is held out by the rule of `Prompts.held_out`
    seed: int = 1  # seed for the choice of held-out prompts
    image_dir: Path | None = None  # where relative paths of images start; None: at the folder of the record's file

    @cached_property
    def digests(self) -> dict[Path, str]:
        """SHA-256 of every file that the rows depend on, images aside."""
        others = filter(None, (self.system_prompt, self.template))
        return {path: sha256(path) for path in (*self.train, *self.val, *others)}

    @property
    def folder(self) -> Path:
        """The folder for these rows. Its name ends in a hash of all that the rows depend on, except images."""
        facts = {**asdict(self), "version": VERSION}
        for name in ("sources", "videos"):  # what the reward knows, and what is refused: the rows depend on neither
            del facts["columns"][name]
        for name in ("train", "val"):
            # The folder, because image paths may be relative to it; the suffix, because it decides how a file is read.
            files = facts[name]
            facts[name] = [(str(path.parent), path.suffix.lower(), self.digests[path]) for path in files]
        for name in ("system_prompt", "template"):
            facts[name] = facts[name] and self.digests[facts[name]]
        facts["image_dir"] = facts["image_dir"] and str(facts["image_dir"])
        stem = re.sub(r"[^\w-]+", "_", self.train[0].stem)[:40] or "data"
        return data_dir("custom") / f"{stem}-{json_sha256(facts)[:12]}"


def _messages(record: Record, system: str, template: Template | None) -> list[dict[str, str]]:
    """System message, where there is one, earlier turns, and the question in its template."""
    *others, last = record.messages
    question = last["content"]
    if record.images and not any(IMAGE_MARK in message["content"] for message in record.messages):
        question = IMAGE_MARK * len(record.images) + question
    if template is not None:
        fix = f"mend {template.filename}, which may use content (or prompt), data_source and the row's other columns"
        try:
            # `content` is EasyR1's name for the question.
            own = {"content": question, "prompt": question, "data_source": record.data_source}
            question = template.render({**{name: _column(value) for name, value in record.rest.items()}, **own})
        except (TemplateError, TypeError) as error:
            raise RecipeError(f"the template fails: {error}", fix=fix) from error
        if not question.strip():
            raise RecipeError("the template leaves nothing of this prompt", fix=fix)
    if system and record.messages[0]["role"] != "system":
        others = [{"role": "system", "content": system}, *others]
    return [*others, {"role": "user", "content": question}]


class _Written:
    """A list or an object that is written as text, which it shows."""

    _text: str  # with an underscore: in a template `column.text` is the object's own key

    def __str__(self) -> str:
        return self._text


class _WrittenList(_Written, list[Any]):
    """A list."""


class _WrittenObject(_Written, dict[str, Any]):
    """An object."""


def _column(value: Any) -> Any:
    """A column for a template, which goes through a list or an object that is written as text, and shows the text."""
    found = written(value)
    if found is value:
        return value
    column = _WrittenList(found) if isinstance(found, list) else _WrittenObject(found)
    column._text = value
    return column


def _text(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}", where=key, fix="give a text file in UTF-8") from error
    if not text:
        raise RecipeError(f"{path} is empty", where=key, fix=f"put text into it, or leave {key} out")
    return text


def _compiled(path: Path) -> Template:
    source = _text(path, "data.format_prompt")
    if "content" not in source and "prompt" not in source:
        fix = "write {{ content }} where the question belongs"
        raise RecipeError("the template never uses the prompt", where=str(path), fix=fix)
    try:
        template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(source)
    except TemplateSyntaxError as error:
        what = f"the template is not Jinja: {error.message}"
        raise RecipeError(what, where=f"{path}, line {error.lineno}", fix="mend it") from error
    template.filename = str(path)
    return template


KINDS = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
OBJECTS = ("reward_model", "extra_info")  # of verl's rows


def _kinds(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The name of every value in an object, such as `.extra_info.levels[]`, with its kind."""
    if kind := KINDS.get(type(value)):
        yield name, kind
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _kinds(each, f"{name}.{key}")
    for each in value if isinstance(value, list) else ():
        yield from _kinds(each, f"{name}[]")


class _Part:
    """The rows of some files, made once and kept in a temporary file until it is known which split each belongs to."""

    def __init__(
        self,
        files: Sequence[Path],
        conversion: Conversion,
        mistakes: Mistakes,
        progress: Progress,
        whole_columns: dict[str, bool],
    ) -> None:
        """Make a row of each record; `whole_columns` notes of each other column whether all its floats are whole."""
        self.prompts = Prompts(conversion.seed)
        self.most_images = 0
        self.files: pictures.Files = {}
        self.own_system = 0  # rows where the conversion's system message does not act
        self._of_verl = False  # whether some rows have verl's columns, and keep their own
        self._with_calls = False  # whether some worked answers are messages: then all are
        self._whole, self._truth = whole_columns, conversion.columns.ground_truth
        folder = data_dir("custom")
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, it is gone with this object
        system = _text(conversion.system_prompt, "data.system_prompt") if conversion.system_prompt else ""
        template = _compiled(conversion.template) if conversion.template else None
        places: dict[str, Place] = {}
        kinds: dict[str, tuple[str, Place]] = {}  # of the values in verl's objects, each a column of one type
        marked: list[Place] = []
        for record in progress.track(records(files, mistakes), description="reading"):
            try:
                folder = conversion.image_dir or Path(record.place.file).parent
                shown = [pictures.read(image, folder, self.files) for image in record.images]
                row = _row(record, _messages(record, system, template), shown, conversion.columns)
                if record.id and (other := places.setdefault(record.id, record.place)) is not record.place:
                    raise RecipeError(f"the id {record.id!r} is that of {other} as well", fix=ID_HINT)
                finished = record.finished if conversion.columns.engine == "verl" else None
                for name, kind in _kinds({own: row.get(own) for own in OBJECTS}) if finished else ():
                    first, place = kinds.setdefault(name, (kind, record.place))
                    if kind != first:
                        what = f"{name[1:]} is {kind}, and that of {place} is {first}"
                        raise RecipeError(what, fix='give it one type in all rows, for instance text: "5"')
            except RecipeError as error:
                mistakes.add(error, record.place)
                continue
            if not shown and any(IMAGE_MARK in message["content"] for message in row["prompt"]):
                marked.append(record.place)
            self.most_images = max(self.most_images, len(shown))
            self.prompts.add(record.data_source, (message["content"] for message in row["prompt"]), shown)
            self.own_system += bool(system) and record.messages[0]["role"] == "system"
            self._of_verl |= finished is not None
            self._with_calls |= isinstance(record.solution, list)
            for name, value in record.rest.items():
                is_fraction = isinstance(value, float) and not value.is_integer()
                self._whole[name] = self._whole.get(name, True) and not is_fraction
            pickle.dump((row, None if finished else record.rest, shown), self._kept)
        for place in marked if self.most_images else ():
            mistakes.add(RecipeError(f"{IMAGE_MARK} is in the prompt, and there is no image"), place)

    def schema(self, with_images: bool) -> pa.Schema | None:
        """The columns of all rows, where some are verl's or have calls; None where `make_row` made all."""
        if not self._of_verl and not self._with_calls:
            return None
        return schema_of((row for row, *_ in self._all()), with_images=with_images)

    def _all(self) -> Iterator[tuple[Row, Mapping[str, Any] | None, list[bytes]]]:
        self._kept.seek(0)
        for _ in range(len(self.prompts)):
            row, rest, shown = pickle.load(self._kept)
            if self._with_calls and rest is not None:
                row["extra_info"]["solution"] = messages_of(row["extra_info"]["solution"])
            yield row, rest, shown

    def differing(self) -> str:
        """The first column, apart from those that are used, that has several texts; empty where none has."""
        values: dict[str, set[str]] = {}
        for name, value in chain.from_iterable((rest or {}).items() for _, rest, _ in self._all()):
            if isinstance(value, str) and name != self._truth:
                values.setdefault(name, set()).add(value)
        return next((name for name, found in values.items() if len(found) > 1), "")

    def rows(self, mask: Iterable[bool], split: str, *, with_images: bool) -> Iterator[Row]:
        """Yield the rows where `mask` is true, ready to be written."""
        for index, (row, rest, shown) in enumerate(compress(self._all(), mask)):
            if rest is not None:
                # A column that only other records have is None here, as in a data set of TRL's.
                fields = {name: rest.get(name) for name in self._whole if name in rest or name != self._truth}
                fields = {name: whole(value) if self._whole[name] else value for name, value in fields.items()}
                row["extra_info"] |= {"split": split, "index": index}
                row["extra_info"]["fields"] = json.dumps(fields, ensure_ascii=False, default=str) if fields else ""
            if with_images:
                row["images"] = [{"bytes": picture} for picture in shown]
            yield row


def _row(record: Record, messages: list[dict[str, str]], pictures: list[bytes], columns: Columns) -> Row:
    source, truth = record.data_source, record.ground_truth
    # From the record's own messages, so that another template does not change the ids.
    id = record.id or content_id(source, record.messages, truth, pictures)
    info = {
        "split": "",
        "index": 0,
        "file": Path(record.place.file).name,
        "line": record.place.number,
        "asked": json.dumps(record.messages if record.chat else record.messages[-1]["content"]),
        "solution": record.solution,
        "fields": "",
    }
    row = make_row(
        data_source=source,
        prompt=messages,
        ground_truth=truth,
        ability=source,
        extra_info=info,
        images=pictures or None,
        id=id,
    )
    row.pop("images", None)
    own = record.finished
    # Of a row EasyR1 passes a reward only this column and the id. `rewards/easyr1.py` takes the data source out
    # of it for rewards of verl's form; `reward_functions/dispatch.py` does so itself.
    envelope = {"data_source": source, "ground_truth": truth if own is None else own["reward_model"]["ground_truth"]}
    row["answer"] = json.dumps(envelope, ensure_ascii=False, default=str)
    if own is None or columns.engine == "easyr1":
        return row
    # A row of verl's keeps all that it has, as one does that is not converted.
    kept = {name: value for name, value in own.items() if name != columns.images}
    ours = {"problem": row["problem"], "answer": row["answer"], "ability": source}
    return cast("Row", {**ours, **kept, "id": id, "data_source": source, "prompt": messages})


def converted(folder: Path) -> list[Manifest] | None:
    """The manifests of a finished conversion; None where a file is missing, or differs in size from its manifest."""
    paths = [path for name in ("train", "test") if (path := folder / f"{name}.parquet").is_file()]
    found = [known for path in paths if (known := find_manifest(path)) and path.stat().st_size == known.bytes]
    return found if len(found) == 2 and pictures.unchanged(folder) else None


def convert(conversion: Conversion, folder: Path, command: str) -> list[Manifest]:
    """Write train.parquet and test.parquet into `folder`, both or neither, and return their manifests.

    Raises RecipeError for records that are wrong, and for too few prompts to train and validate.
    """
    mistakes, columns = Mistakes(conversion.columns), dict[str, bool]()
    with progress_bar() as progress:
        train = test = _Part(conversion.train, conversion, mistakes, progress, columns)
        if conversion.val:
            test = _Part(conversion.val, conversion, mistakes, progress, columns)
        mistakes.check()
        validates = [True] * len(test.prompts) if conversion.val else test.prompts.held_out(conversion.val_share)
        shared = train.prompts.shared_with(test.prompts.keys(validates))
        if all(shared) or not any(validates):
            side = ", here that of the validation data" if conversion.val else ""
            fix = "add records with other prompts and images, or give other validation data with --val_data"
            if differing := train.prompts.different == 1 and train.differing():
                shown = f"--template FILE shows it, with {{{{ content }}}} and {{{{ {differing} }}}} in the file"
                fix = f"the column {differing} differs, which no prompt shows: {shown}; or {fix}"
            raise RecipeError(
                f"{len(train.prompts):,} records with {train.prompts.different:,} different prompts are not enough to "
                f"train and validate: the minimum is two, and a prompt or an image is on one side only{side}",
                where=", ".join(map(str, (*conversion.train, *conversion.val))),
                fix=fix,
            )
        most_images = max(train.most_images, test.most_images)
        made_from = {path.name: digest for path, digest in conversion.digests.items()}
        notes = mistakes.notes
        if own := train.own_system + (test.own_system if test is not train else 0):
            notes.append(f"{own:,} rows have a system message of their own, which the file of --system_prompt leaves")

        def split(name: str, part: _Part, mask: list[bool], dropped: int) -> Split:
            facts = {
                "task": "custom",
                "split": name,
                "source": ", ".join(made_from),
                "command": command,
                "seed": conversion.seed,
                "settings": {"files": made_from, "val_share": None if conversion.val else conversion.val_share},
                "counts": {"most_images": most_images, "data_sources": part.prompts.sources(mask), "notes": notes},
                "dropped": {HELD_OUT: dropped} if dropped else {},
            }
            rows = part.rows(mask, name, with_images=most_images > 0)
            tracked = progress.track(rows, total=sum(mask), description=name)
            return Split(name, tracked, facts, schema=part.schema(most_images > 0))

        left_out = sum(shared) - (0 if conversion.val else sum(validates))
        both = split("train", train, [not each for each in shared], left_out), split("test", test, validates, 0)
        manifests = write_data(folder, both, force=True)[0]
        pictures.remember(folder, train.files | test.files)
        return manifests


def convert_one(path: Path, recipe: Recipe, command: str) -> Path:
    """The parquet file of one whole file, converted as the recipe says; `path` itself where its rows are finished."""
    if not path.is_file():
        raise RecipeError(f"there is no data file {path}", where="--data", fix="name a file that exists")
    if is_finished(path, recipe) and not _changes_rows(recipe):
        return path
    conversion = _settings(recipe, (path.absolute(),), ())
    target = conversion.folder.with_name(f"{conversion.folder.name}-whole") / "all.parquet"
    if not target.is_file() or not pictures.unchanged(target.parent):
        mistakes = Mistakes(conversion.columns)
        with progress_bar() as progress:
            part = _Part(conversion.train, conversion, mistakes, progress, {})
        mistakes.check()
        every = [True] * len(part.prompts)
        rows = part.rows(every, "test", with_images=part.most_images > 0)
        facts = {"task": "custom", "split": "all", "command": command, "source": str(path)}
        write_split(target, rows, facts, schema=part.schema(part.most_images > 0))
        pictures.remember(target.parent, part.files)
    return target


def ready(recipe: Recipe, log: Callable[[str], None], make: bool = True) -> Recipe:
    """The recipe with finished rows, for a run, a warm start or an evaluation.

    Files that the recipe itself names and that are missing are made by its `prepare` command, unless `make` is false.
    The training and validation files are converted if one of them is not finished (`is_finished`), or if there is no
    validation file: a share of the rows is then held out. For verl, rows of a hub are loaded first; nothing is
    converted where a file is behind a URL. `log` takes lines for the user.
    """
    if make:
        make_missing(recipe, log)
    recipe = from_hub(recipe, log)
    if is_to_make(recipe):
        return recipe
    conversion = _conversion(recipe)
    if conversion is None:
        return _room_for_prompts(recipe)
    folder = conversion.folder
    splits = converted(folder)
    if splits is None:
        log(f"converting {', '.join(path.name for path in (*conversion.train, *conversion.val))}")
        splits = convert(conversion, folder, command=f"bash scripts/launch.sh {recipe.name}")
    train, test = splits
    for line in _summary(train, test, folder, conversion):
        log(line)
    files = {"data.train_files": str(folder / "train.parquet"), "data.val_files": str(folder / "test.parquet")}
    changes: dict[str, Any] = {**files, **_OF_CONVERTED}
    if (most := train.counts["most_images"]) and not recipe.source_of("worker.rollout.limit_images").by_user:
        changes["worker.rollout.limit_images"] = most
    recipe = replaced(recipe, changes, f"converted from {', '.join(path.name for path in conversion.train)}")
    return _room_for_prompts(recipe)


def _room_for_prompts(recipe: Recipe) -> Recipe:
    """The recipe with room for the longest prompt of the tiny model, whose tokenizer encodes other text byte by byte,
    as far as its positions allow. A limit that the user set is kept."""
    model, settings, limit = recipe.worker.actor.model, recipe.data, "data.max_prompt_length"
    here = local_model(str(model.model_path))
    files = [Path(key.path) for key in path_keys(recipe) if key.kind == "data" and key.source.layer != "tiny"]
    if recipe.source_of(limit).layer != "tiny" or model.tokenizer_path or here is None:
        return recipe
    files = [path for path in files if (schema := _schema(path)) is not None and "prompt" in schema.names]
    longest = max((max(count_split(path, str(here)), default=0) for path in files), default=0)
    positions = text_config(model_config(here)).get("max_position_embeddings", longest)
    room = min(longest, positions - settings.max_response_length)
    if room <= settings.max_prompt_length:
        return recipe
    return replaced(recipe, {limit: room}, "the longest prompt in the tiny model's tokens")


_OF_CONVERTED = {key: leaves(Recipe)[key].default for key in BY_CONVERSION}


def of_converted(recipe: Recipe) -> Recipe:
    """The recipe for rows that were converted by it."""
    return replaced(recipe, _OF_CONVERTED, "converted")


def _conversion(recipe: Recipe) -> Conversion | None:
    """The conversion that a recipe needs; None where all rows are finished."""
    keys = [key for key in path_keys(recipe) if key.kind == "data"]
    train, val = (tuple(Path(key.path) for key in keys if key.key == f"data.{part}_files") for part in ("train", "val"))
    finished = val and not _changes_rows(recipe) and all(is_finished(path, recipe) for path in (*train, *val))
    if not train or finished or any(key.on_hub for key in keys):
        return None
    return _settings(recipe, train, val)


def _changes_rows(recipe: Recipe) -> bool:
    """Return whether the recipe asks for what finished rows get by a conversion alone."""
    data = recipe.data
    of_easyr1 = (data.format_prompt, data.answer_key, data.image_dir) if recipe.engine != "easyr1" else ()
    return any((data.data_source, data.system_prompt, *of_easyr1))


TEXTS = ("data.system_prompt", "data.format_prompt")
"""Keys of files for which users give the text itself."""


def refuse_missing(recipe: Recipe, keys: Iterable[PathKey]) -> None:
    """Raise RecipeError for the first of these keys whose file is not here; for data and texts a folder is none."""
    for key in keys:
        path, is_data = Path(key.path), key.kind == "data"
        if path.is_file() or (path.exists() and not is_data and key.key not in TEXTS):
            continue
        fix = "mend the path: a relative one starts where you stand, in a recipe file at the repository's root"
        if is_data:
            fix += f"; name a folder's files as 'FOLDER/train-*.parquet', in quotes, or {TO_PARQUET}"
        elif key.key in TEXTS and any(mark in path.name for mark in " {"):
            fix = "write the text into a file, and give that file's path"
        fix += "; separate several by commas" * (" " in key.path and leaves(Recipe)[key.key].takes_list)
        raise recipe.error(f"the file {path} {'is a folder' if path.is_dir() else 'does not exist'}", fix, key.key)


def _settings(recipe: Recipe, train: tuple[Path, ...], val: tuple[Path, ...]) -> Conversion:
    """A recipe's conversion of these files. A reward of the user's own needs no data source and no ground truth."""
    data, ours = recipe.data, Columns()
    refuse_missing(recipe, [key for key in path_keys(recipe) if Path(key.path) in (*train, *val) or key.key in TEXTS])
    own, reward = is_own(recipe), recipe.worker.reward.reward_function
    asked = load_reward(reward) if isinstance(reward, str) and reward and not own else None
    return Conversion(
        train,
        val,
        Path(data.system_prompt) if data.system_prompt else None,
        Path(data.format_prompt) if data.format_prompt else None,
        Columns(
            data.prompt_key or ours.prompt,
            data.answer_key or ours.ground_truth,
            data.image_key,
            data.data_source,
            not own,
            tuple(getattr(asked, "known_sources", tuple)()),
            recipe.engine,
            videos=data.video_key,
            unnamed=recipe.name if own else None,
        ),
        data.val_share,
        data.seed,
        Path(data.image_dir) if data.image_dir else None,
    )


TEXT = pa.string(), pa.large_string()


def is_finished(path: Path, recipe: Recipe) -> bool:
    """Return whether a file is parquet with the engine's columns; prompts must be texts, verl's messages of one each.

    A broken parquet file, or a missing one, counts as finished: the preflight reports it.
    """
    if path.suffix.lower() != ".parquet":
        return False
    schema = _schema(path)
    if schema is None:
        return True
    if not set(schema.names) >= {name.split(".")[0] for name in engine_columns(recipe)}:
        return False
    prompt = schema.field(prompt_column(recipe)).type
    if recipe.engine == "easyr1":
        return (prompt.value_type if pa.types.is_dictionary(prompt) else prompt) in (*TEXT, pa.string_view())
    message = getattr(prompt, "value_type", None)
    objects = [field.type for field in schema if field.name in OBJECTS]
    if not isinstance(message, pa.StructType) or not all(isinstance(kind, pa.StructType) for kind in objects):
        return False
    return message.get_field_index("content") >= 0 and message.field("content").type in TEXT


def _schema(path: Path) -> pa.Schema | None:
    """The schema of a parquet file; None where it cannot be read."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return None


def _summary(train: Manifest, test: Manifest, folder: Path, conversion: Conversion) -> list[str]:
    """Lines that tell the user what was made."""
    counts = []
    for each in (train, test):
        sources = ", ".join(f"{name} {count:,}" for name, count in each.counts["data_sources"].items())
        counts.append(f"{each.split} {each.rows:,} ({sources})")
    lines = [f"rows: {'; '.join(counts)}; in {relative_to_cwd(folder)}"]
    if not conversion.val:
        share = f"{conversion.val_share:.0%} of each source's prompts, {MOST_VALIDATION} at most"
        lines.append(f"note: no validation data given: {share} are held out for it")
    if held_out := train.dropped.get(HELD_OUT):
        shared = "have a prompt or an image of the validation data and were left out"
        lines.append(f"note: {held_out} training rows {shared}")
    return [*lines, *(f"note: {note}" for note in train.counts.get("notes", ()))]


def is_to_make(recipe: Recipe) -> bool:
    """Return whether data files that the recipe itself names are missing and the recipe has a `prepare` command."""
    files = [key for key in path_keys(recipe) if key.kind == "data" and not key.on_hub and not key.source.by_user]
    return bool(recipe.prepare) and not all(Path(key.path).exists() for key in files)


def make_missing(recipe: Recipe, log: Callable[[str], None]) -> None:
    """Run the recipe's `prepare` command if data files that the recipe itself names are missing."""
    if not is_to_make(recipe):
        return
    command = " ".join(recipe.prepare)
    log(f"making the data: python {command}")
    code = subprocess.run([sys.executable, *recipe.prepare], cwd=ROOT, check=False).returncode
    if code:
        what = f"the data could not be made (exit code {code}; its message is above)"
        raise recipe.error(what, f"mend it, then: python {command}", "prepare")


def from_hub(recipe: Recipe, log: Callable[[str], None]) -> Recipe:
    """The recipe with parquet files in place of `org/set@split`, which verl does not read."""
    keys = [key for key in path_keys(recipe) if key.kind == "data" and recipe.engine == "verl"]
    for name in dict.fromkeys(key.key for key in keys if key.on_hub and "://" not in key.path):
        files = [str(_file(key.path, name, log)) if key.on_hub else key.path for key in keys if key.key == name]
        recipe = replaced(recipe, {name: files}, f"loaded from {recipe.value(name)}")
    return recipe


def _file(name: str, key: str, log: Callable[[str], None]) -> Path:
    import datasets

    repository, _, split = name.rpartition("@")
    log(f"loading {name}")
    try:
        rows = datasets.load_dataset(repository, split=split)
    except Exception as error:  # of the network, of the hub, of the files there
        what = f"the data set {repository} cannot be loaded: {first_line(error)}"
        fix = "check its name, its split and the network, or give a file: load_dataset(...).to_parquet('rows.parquet')"
        raise RecipeError(what, where=f"{key}: {name}", fix=fix) from error
    stem = re.sub(r"[^\w-]+", "_", name).strip("_")[-60:]
    path = data_dir("hub") / f"{stem}-{rows._fingerprint}.parquet"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        rows.to_parquet(draft)
        draft.replace(path)
    return path
