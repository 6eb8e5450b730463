"""Users' files as rows for both engines: prompt, ground truth, images, and a held-out split."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes import provenance
from recipes.config import Recipe, path_keys
from recipes.config.resolve import replaced
from recipes.config.schema import leaves
from recipes.data.ids import ID, content_id
from recipes.data.lengths import count_split, tokenizer_of
from recipes.data.manifests import HELD_OUT, Manifest, Origin, SourceFile, SplitCounts, manifest_path, read_manifest
from recipes.data.readers import Columns, Mistakes, Place, Record, RecordError, images, records
from recipes.data.rows import (
    IMAGE_MARK,
    Row,
    Written,
    engine_columns,
    make_row,
    pack_envelope,
    put_in_place,
    stage_split,
    staging,
    write_split,
)
from recipes.data.splits import Prompts
from recipes.errors import RecipeError
from recipes.model_files import local_model, model_config, text_config
from recipes.paths import data_dir, relative_to_cwd
from recipes.progress_bar import progress_bar, tracked

if TYPE_CHECKING:
    from jinja2 import Template
    from rich.progress import Progress

VERSION = 4
"""Of the rows that are made; raise it where the same file gives other rows."""
TEMPLATE_VARIABLES = ("content", "prompt", "data_source")
"""Variables of a template; `content` is EasyR1's name for the question, and `prompt` is the same."""


@dataclass(frozen=True)
class Conversion:
    """Files to convert, and how."""

    train: tuple[Path, ...]
    val: tuple[Path, ...] = ()  # where there are none, a share of the training files validates
    system_prompt: Path | None = None
    template: Path | None = None
    data_source: str | None = None  # of records that name none
    columns: Columns = field(default_factory=Columns)  # what the files call our fields
    val_share: float = 0.05  # share of each source's rows and prompts that validates
    seed: int = 1  # of that choice

    @cached_property
    def digests(self) -> dict[Path, str]:
        """SHA-256 of every file that the rows depend on, images aside. Raises RecipeError for a missing file."""
        digests = {}
        for path in (*self.train, *self.val, *filter(None, (self.system_prompt, self.template))):
            if not path.is_file():
                where = "the data: train_files, val_files, system_prompt, format_prompt"
                fix = "mend the path; a relative one starts where you stand"
                raise RecipeError(f"the file {path} does not exist", where=where, fix=fix)
            digests[path] = provenance.sha256(path)
        return digests

    @property
    def folder(self) -> Path:
        """Return the folder for the rows of this content. Its name is a hash of everything but the images."""
        facts: dict[str, Any] = {"version": VERSION, "data_source": self.data_source, "seed": self.seed}
        if self.columns != Columns():
            facts["columns"] = asdict(self.columns)
        facts["val_share"] = self.val_share
        for name, files in (("train", self.train), ("val", self.val)):
            # The folder, because images are found from there; the suffix, because it says how the file is read.
            facts[name] = [(str(path.parent), path.suffix.lower(), self.digests[path]) for path in files]
        for name, path in (("system_prompt", self.system_prompt), ("template", self.template)):
            facts[name] = path and self.digests[path]
        digest = sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        stem = re.sub(r"[^\w-]+", "_", self.train[0].stem)[:40] or "data"
        return data_dir("custom") / f"{stem}-{digest[:12]}"


class PromptFormat:
    """Makes chat messages.

    Args:
        system_prompt: text file whose text becomes the system message of records that have none of their own.
        template: Jinja file that wraps the question: `{{ content }} Reason step by step.`

    Raises:
        RecipeError: a file that cannot be read, or a template with a mistake.
    """

    def __init__(self, system_prompt: Path | None = None, template: Path | None = None) -> None:
        self._system = _text(system_prompt, "data.system_prompt") if system_prompt else ""
        self._template = _compiled(template) if template else None
        self._template_file = template

    def messages(self, record: Record) -> list[dict[str, str]]:
        """System message, where there is one, and the question. Raises RecordError where the template fails."""
        question = record.question
        if record.images and IMAGE_MARK not in question:
            question = IMAGE_MARK * len(record.images) + question
        if self._template is not None:
            question = self._rendered(self._template, question, record)
        others = [{"role": role, "content": content} for role, content in record.messages[:-1]]
        if self._system and not others:
            others = [{"role": "system", "content": self._system}]
        return [*others, {"role": "user", "content": question}]

    def _rendered(self, template: Template, question: str, record: Record) -> str:
        from jinja2 import TemplateError

        what = "the template leaves nothing of this prompt"
        try:
            text = template.render(content=question, prompt=question, data_source=record.data_source)
        except (TemplateError, TypeError) as error:
            text, what = "", f"the template fails: {error}"
        if not text.strip():
            raise RecordError(what, record.place, f"mend {self._template_file}", "")
        return text


def _text(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}", where=key, fix="give a text file in UTF-8") from error
    if not text:
        raise RecipeError(f"{path} is empty", where=key, fix=f"put text into it, or leave {key} out")
    return text


def _compiled(path: Path) -> Template:
    from jinja2 import StrictUndefined, TemplateSyntaxError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = _text(path, "data.format_prompt")
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)
    try:
        used = meta.find_undeclared_variables(environment.parse(source))
    except TemplateSyntaxError as error:
        what = f"the template is not Jinja: {error.message}"
        raise RecipeError(what, where=f"{path}, line {error.lineno}", fix="mend it") from error
    if unknown := sorted(used - set(TEMPLATE_VARIABLES)):
        what = f"the template uses {', '.join(unknown)}, which no record has"
        raise RecipeError(what, where=str(path), fix=f"it may use {', '.join(TEMPLATE_VARIABLES)}")
    if not used & {"content", "prompt"}:
        fix = "write {{ content }} where the question belongs"
        raise RecipeError("the template never uses the prompt", where=str(path), fix=fix)
    return environment.from_string(source)


class _Rows:
    """The rows of some files: read once to check them and to tell which repeat one another, once more to write them."""

    def __init__(self, files: Sequence[Path], conversion: Conversion, prompt_format: PromptFormat) -> None:
        self.prompts = Prompts(conversion.seed)
        self.most_images = 0
        self._files, self._conversion, self._format = files, conversion, prompt_format

    def check(self, progress: Progress, mistakes: Mistakes) -> None:
        """Make a row of each record; what is wrong goes to `mistakes`."""
        marked: list[Place] = []
        places: dict[str, Place] = {}
        for record in tracked(self._records(mistakes), progress, "reading"):
            try:
                row, pictures = self._made(record)
                _refuse_repeated_id(record, places)
            except RecordError as error:
                mistakes.add(error)
                continue
            if not pictures and IMAGE_MARK in row["problem"]:
                marked.append(record.place)
            self.most_images = max(self.most_images, len(pictures))
            self.prompts.add(record.data_source, (message["content"] for message in row["prompt"]), pictures)
        if self.most_images:
            for place in marked:
                mistakes.add(RecordError(f"{IMAGE_MARK} is in the prompt, and there is no image", place, "", ""))

    def chosen(self, mask: Iterable[bool], split: str, with_images: bool, counts: Counter[str]) -> Iterator[Row]:
        """Yield the rows where `mask` (rows,) is true, as they are written; counts them by data source."""
        for is_chosen, record in zip(mask, self._records(None), strict=True):
            if is_chosen:
                row, pictures = self._made(record)
                row["extra_info"] |= {"split": split, "index": counts.total()}
                counts[row["data_source"]] += 1
                if with_images:
                    row["images"] = [{"bytes": picture} for picture in pictures]
                yield row

    def _records(self, mistakes: Mistakes | None) -> Iterator[Record]:
        return records(self._files, self._conversion.data_source, mistakes, self._conversion.columns)

    def _made(self, record: Record) -> tuple[Row, list[bytes]]:
        pictures = images(record)
        return _row(record, self._format, pictures), pictures


_ID_HINT = "give every record an id of its own, or rename the field: ids are then made from the content"


def _own_id(record: Record) -> str | None:
    """Return what the record has in its field `id`, None where it has nothing there.

    Raises RecordError for an id that is neither a text nor a whole number.
    """
    given = record.rest.get(ID)
    if given is None or given == "":
        return None
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise RecordError(f"id is {given!r}, neither a text nor a whole number", record.place, _ID_HINT, "")
    return str(given)


def _refuse_repeated_id(record: Record, places: dict[str, Place]) -> None:
    """Raise RecordError for an id of the file's own that an earlier record has.

    Args:
        places: the ids of the earlier records, with their places; takes this one.
    """
    own = _own_id(record)
    if own is not None and places.setdefault(own, record.place) is not record.place:
        raise RecordError(f"the id {own!r} is that of {places[own]} as well", record.place, _ID_HINT, "")


def _row(record: Record, prompt_format: PromptFormat, pictures: list[bytes]) -> Row:
    asked = [{"role": role, "content": content} for role, content in record.messages]  # before prompt and template
    try:
        row = make_row(
            data_source=record.data_source,
            prompt=prompt_format.messages(record),
            ground_truth=record.ground_truth,
            ability=record.data_source,
            extra_info={
                "split": "",
                "index": 0,
                "file": Path(record.place.file).name,
                "line": record.place.number,
                "solution": record.solution,
                "fields": json.dumps(record.rest, ensure_ascii=False, default=str) if record.rest else "",
            },
            images=pictures or None,
            id=_own_id(record) or content_id(record.data_source, asked, record.ground_truth, pictures),
        )
    except RecordError:
        raise
    except RecipeError as error:
        raise RecordError(error.what, record.place, error.fix, "") from error
    row.pop("images", None)
    row["answer"] = pack_envelope(record.data_source, record.ground_truth)
    return row


def converted(folder: Path) -> list[Written] | None:
    """Return the splits of a finished conversion; None if it is missing, incomplete or of another size."""
    paths = [folder / f"{name}.parquet" for name in ("train", "test")]
    if not all(path.is_file() and manifest_path(path).is_file() for path in paths):
        return None
    manifests = [read_manifest(path) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    if sizes != [manifest.bytes for manifest in manifests]:
        return None
    return [Written(manifest, "there already") for manifest in manifests]


def convert(conversion: Conversion, folder: Path, command: str) -> list[Written]:
    """Write train.parquet and test.parquet into `folder`, both or neither.

    Returns:
        Both splits; their manifests have the command, counts by data source, and what was dropped.

    Raises:
        RecipeError: every record that is wrong, with its line; too few prompts to train and validate.
    """
    import numpy as np

    prompt_format, mistakes = PromptFormat(conversion.system_prompt, conversion.template), Mistakes()
    train = _Rows(conversion.train, conversion, prompt_format)
    test = _Rows(conversion.val, conversion, prompt_format) if conversion.val else train
    with progress_bar() as progress:
        for part in (train, test) if conversion.val else (train,):
            part.check(progress, mistakes)
        mistakes.check()
        if conversion.val:
            shared = train.prompts.shared_with(test.prompts)
            chosen = {"train": ~shared, "test": np.ones(len(test.prompts), bool)}
        else:
            held_out = train.prompts.held_out(conversion.val_share)
            chosen = {"train": ~held_out, "test": held_out}
        if not all(mask.any() for mask in chosen.values()):
            raise _too_few(conversion, train.prompts)
        most_images = max(part.most_images for part in (train, test))
        known = {
            "train": SplitCounts(
                dropped={HELD_OUT: int(shared.sum())} if conversion.val else {},
                repeated_prompts=len(train.prompts) - train.prompts.different,
                most_images=most_images,
            ),
            "test": SplitCounts(),
        }
        origin = Origin(
            task="custom",
            command=command,
            source=tuple(SourceFile(path.name, digest) for path, digest in conversion.digests.items()),
            seed=conversion.seed,
            val_share=None if conversion.val else conversion.val_share,
        )
        with staging() as staged:
            for name, part in (("train", train), ("test", test)):
                sources: Counter[str] = Counter()
                rows = part.chosen(chosen[name], name, most_images > 0, sources)
                rows = tracked(rows, progress, name, int(chosen[name].sum()))

                def counts(of: SplitCounts = known[name], sources: Counter[str] = sources) -> SplitCounts:
                    return replace(of, data_sources=dict(sorted(sources.items())))

                staged.append(stage_split(folder / f"{name}.parquet", rows, replace(origin, split=name), counts))
            return put_in_place(staged, force=True)


def _too_few(conversion: Conversion, prompts: Prompts) -> RecipeError:
    count = f"{len(prompts):,} records"
    fix = "add records, or give validation data with --val_data"
    if conversion.val:
        what = f"nothing is left to train on: each of the {count} has a prompt or an image of the validation data"
        fix = "give other validation data with --val_data"
    elif prompts.different > 1:
        what = f"the {count} share images, so that none can be trained on while another validates"
        fix = "give validation data with other images: --val_data"
    else:
        have = "is 1 record" if len(prompts) == 1 else f"are {count} with one and the same prompt"
        what = f"there {have}; the minimum is 2 records with different prompts, one to train on and one to validate on"
    return RecipeError(what, where=", ".join(map(str, conversion.train)), fix=fix)


def convert_one(path: Path, recipe: Recipe, command: str) -> Path:
    """The rows of one whole file, with the recipe's system prompt and template; the file itself if it holds rows.

    Returns:
        The parquet file, below `artifacts/data/custom` under the content's hash.

    Raises:
        RecipeError: a missing file; every record that is wrong, with its line.
    """
    if not path.is_file():
        raise RecipeError(f"there is no data file {path}", where="--data_path", fix="name a file that exists")
    if is_finished(path, recipe):
        return path
    conversion = Conversion((path.absolute(),), (), *_prompt_files(recipe), _data_source(recipe), _columns(recipe))
    target = conversion.folder / "all.parquet"
    if target.is_file():
        return target
    prompt_format = PromptFormat(conversion.system_prompt, conversion.template)
    mistakes, rows = Mistakes(), _Rows(conversion.train, conversion, prompt_format)
    with progress_bar() as progress:
        rows.check(progress, mistakes)
        mistakes.check()
    chosen = rows.chosen([True] * len(rows.prompts), "test", rows.most_images > 0, Counter())
    write_split(target, chosen, Origin(task="custom", split="all", command=command, source=str(path)))
    return target


def ready(recipe: Recipe, log: Callable[[str], None], fetch: bool = True) -> Recipe:
    """The recipe with finished rows; itself where it has them already.

    A training file that is JSON, JSONL, CSV or parquet without the engine's columns is converted, and so is a finished
    one for which no validation file is given. The tokens of converted prompts are counted.

    Args:
        recipe: as loaded.
        log: takes lines for the user.
        fetch: whether a hub may be asked for the model's tokenizer.

    Raises:
        RecipeError: what a file has wrong; prompts that are too long to train on.
    """
    conversion = _conversion(recipe)
    if conversion is None:
        return recipe
    folder = conversion.folder
    splits = converted(folder)
    if splits is None:
        log(f"converting {', '.join(path.name for path in (*conversion.train, *conversion.val))}")
        splits = convert(conversion, folder, command=f"bash scripts/launch.sh {recipe.name}")
    train, test = (split.manifest for split in splits)
    for line in _summary(train, test, folder, conversion):
        log(line)
    defaults = ("val_share", "prompt_key", "answer_key", "image_key")
    changes: dict[str, Any] = {
        "data.train_files": str(folder / "train.parquet"),
        "data.val_files": str(folder / "test.parquet"),
        **{f"data.{name}": None for name in ("system_prompt", "format_prompt", "data_source")},
        **{f"data.{name}": leaves(Recipe)[f"data.{name}"].default for name in defaults},
    }
    if train.most_images and not recipe.source_of("worker.rollout.limit_images").by_user:
        changes["worker.rollout.limit_images"] = train.most_images
    recipe = replaced(recipe, changes, f"converted from {', '.join(path.name for path in conversion.train)}")
    recipe = _room_for_prompts(recipe, folder)
    log(_prompt_lengths(recipe, folder, fetch))
    return recipe


def _room_for_prompts(recipe: Recipe, folder: Path) -> Recipe:
    """The limit of the embedded model's own problems, raised to the longest prompt, or to what the model has positions
    for: its tokenizer takes other text byte by byte. A limit of the user's stays."""
    model, settings, limit = recipe.worker.actor.model, recipe.data, "data.max_prompt_length"
    here = local_model(str(model.model_path))
    if recipe.source_of(limit).layer != "embedded" or model.tokenizer_path or here is None:
        return recipe
    longest = count_split(folder / "train.parquet", str(here)).longest
    positions = text_config(model_config(here)).get("max_position_embeddings", longest)
    room = min(longest, positions - settings.max_response_length)
    if room <= settings.max_prompt_length:
        return recipe
    return replaced(recipe, {limit: room}, "the longest prompt in the embedded model's tokens")


def _conversion(recipe: Recipe) -> Conversion | None:
    """Return what has to be converted; None where all rows are finished."""
    files: dict[str, tuple[Path, ...]] = {"data.train_files": (), "data.val_files": ()}
    for key in path_keys(recipe):
        if key.kind == "data":
            if key.on_hub:
                return None
            files[key.key] += (Path(key.path),)
    train, val = files["data.train_files"], files["data.val_files"]
    if not train or (val and all(is_finished(path, recipe) for path in (*train, *val))):
        return None
    share, seed = recipe.data.val_share, abs(recipe.data.seed)
    return Conversion(train, val, *_prompt_files(recipe), _data_source(recipe), _columns(recipe), share, seed)


def _columns(recipe: Recipe) -> Columns:
    """Return what the user's files call our fields: the keys where the user set them, our own names otherwise."""
    ours = Columns()
    given = {name: recipe.source_of(f"data.{name}").by_user for name in ("prompt_key", "answer_key", "image_key")}
    return Columns(
        str(recipe.data.prompt_key) if given["prompt_key"] else ours.prompt,
        recipe.data.answer_key if given["answer_key"] else ours.ground_truth,
        recipe.data.image_key if given["image_key"] else ours.images,
    )


def _data_source(recipe: Recipe) -> str | None:
    """Return the data source of records that name none; a reward of the user's own needs no name to choose by."""
    own = recipe.source_of("worker.reward.reward_function").by_user
    return recipe.data.data_source or (recipe.name if own else None)


def _prompt_files(recipe: Recipe) -> tuple[Path | None, Path | None]:
    """System prompt and template."""
    system, template = recipe.data.system_prompt, recipe.data.format_prompt
    return Path(system) if system else None, Path(template) if template else None


def is_finished(path: Path, recipe: Recipe) -> bool:
    """Return whether a file holds rows for the engine; the preflight judges missing and broken parquet files."""
    if path.suffix.lower() != ".parquet":
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names) >= {name.split(".")[0] for name in engine_columns(recipe)}
    except (OSError, pa.ArrowException):
        return True


def _summary(train: Manifest, test: Manifest, folder: Path, conversion: Conversion) -> list[str]:
    """Return what was made, for the user."""
    counts = []
    for each in (train, test):
        sources = ", ".join(f"{name} {count:,}" for name, count in each.data_sources.items())
        counts.append(f"{each.split} {each.rows:,} ({sources})")
    lines = [f"rows: {'; '.join(counts)}; in {relative_to_cwd(folder)}"]
    if not conversion.val:
        share = f"{conversion.val_share:.0%} of each source's prompts"
        lines.append(f"note: no validation data given: {share} are held out for it")
    if held_out := train.dropped.get(HELD_OUT):
        lines.append(
            f"note: {held_out} training rows have a prompt or an image of the validation data and were left out"
        )
    if train.repeated_prompts:
        lines.append(f"note: {train.repeated_prompts} records repeat the prompt of another")
    if untrained := sorted(set(test.data_sources) - set(train.data_sources)):
        lines.append(f"note: validated, but not trained on: {', '.join(untrained)}")
    return lines


def _prompt_lengths(recipe: Recipe, folder: Path, fetch: bool) -> str:
    """Count the prompts in the model's tokens, where its tokenizer is here or can be fetched; one line for the user.

    `recipes.preflight.data_files` judges the counts.
    """
    tokenizer, template = tokenizer_of(recipe)
    here = local_model(tokenizer)
    if not (fetch or here):
        return f"note: prompts are not counted in tokens: {tokenizer} is not in the hub's cache yet"
    try:
        train = count_split(folder / "train.parquet", str(here or tokenizer), template)
        count_split(folder / "test.parquet", str(here or tokenizer), template)
    except RecipeError as error:
        if here:
            raise
        return f"note: prompts are not counted in tokens: {error.what}"
    return f"prompt tokens: {train.shortest} to {train.longest}; the limit is {recipe.data.max_prompt_length}"
