"""Anyone's records as rows: prompt, ground truth, images, held-out split."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config import Recipe, path_keys
from recipes.config.paths import local_model
from recipes.config.resolve import replaced
from recipes.config.schema import leaves
from recipes.data.prepare import PromptLengths, progress_bar, tracked
from recipes.data.readers import Record, images, records
from recipes.data.rows import IMAGE_MARK, Staged, engine_columns, make_row, publish, read_manifest, stage_split
from recipes.errors import RecipeError
from recipes.paths import data_dir, shown
from recipes.provenance import sha256 as file_sha256

if TYPE_CHECKING:
    from jinja2 import Template

VARIABLES = ("content", "prompt", "data_source")
"""What a template may use; `content` is EasyR1's name for the question, and `prompt` is the same."""


class Prompts:
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
        """System message, where there is one, and the question."""
        question = record.question
        if record.images and IMAGE_MARK not in question:
            question = IMAGE_MARK * len(record.images) + question
        if self._template is not None:
            question = self._rendered(question, record)
        others = [{"role": role, "content": content} for role, content in record.messages[:-1]]
        if self._system and not others:
            others = [{"role": "system", "content": self._system}]
        return [*others, {"role": "user", "content": question}]

    def _rendered(self, question: str, record: Record) -> str:
        from jinja2 import TemplateError

        assert self._template is not None
        try:
            text = self._template.render(content=question, prompt=question, data_source=record.data_source)
        except (TemplateError, TypeError) as error:
            where = f"{self._template_file}, for {record.place}"
            raise RecipeError(f"the template fails: {error}", where=where, fix="mend it") from error
        if not text.strip():
            raise RecipeError("the template leaves nothing of this prompt", where=str(record.place), fix="mend it")
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
        raise RecipeError(
            f"the template is not Jinja: {error.message}", where=f"{path}, line {error.lineno}", fix="mend it"
        ) from error
    if unknown := sorted(used - set(VARIABLES)):
        raise RecipeError(
            f"the template uses {', '.join(unknown)}, which no record has",
            where=str(path),
            fix=f"it may use {', '.join(VARIABLES)}",
        )
    if not used & {"content", "prompt"}:
        raise RecipeError(
            "the template never uses the prompt", where=str(path), fix="write {{ content }} where the question belongs"
        )
    return environment.from_string(source)


MOST = 500
"""Validation prompts of one data source: more cost time at every validation and tell little more."""


def fingerprint(record: Record, seed: int) -> int:
    """64 bits of a prompt and the seed; the same prompt has the same number in every file."""
    text = "\0".join(content for _, content in record.messages)
    return int.from_bytes(blake2b(text.encode(), digest_size=8, salt=seed.to_bytes(8, "little")).digest(), "little")


@dataclass
class Survey:
    """What a first pass over the records finds.

    Attributes:
        seed: of the fingerprints.
        counts: records of each data source.
        prompts: fingerprints of each data source's prompts.
        most_images: of one record.
    """

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    prompts: dict[str, array] = field(default_factory=dict)
    most_images: int = 0

    def add(self, records: Iterable[Record]) -> Survey:
        """Take in records."""
        for record in records:
            self.counts[record.data_source] += 1
            self.prompts.setdefault(record.data_source, array("Q")).append(fingerprint(record, self.seed))
            self.most_images = max(self.most_images, len(record.images))
        return self

    @property
    def every_prompt(self) -> set[int]:
        """All fingerprints."""
        return {number for numbers in self.prompts.values() for number in numbers}

    def repeated(self) -> int:
        """Records whose prompt another record has, too: all but the first of each."""
        return self.counts.total() - len(self.every_prompt)

    def validation(self, share: float) -> set[int]:
        """Fingerprints of the prompts that validate: the smallest of each data source.

        A source with one prompt alone gives none, unless it is the only source: one that is trained on can be missed
        in validation, but not the other way round.
        """
        chosen: set[int] = set()
        for numbers in self.prompts.values():
            different = sorted(set(numbers))
            wanted = min(MOST, max(1, round(share * len(different))), len(different) - 1)
            chosen.update(different[:wanted])
        return chosen


BATCH = 1024
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja", "vocab.json")


@dataclass(frozen=True)
class Lengths:
    """How many prompts have how many tokens."""

    counts: Counter[int]

    @property
    def longest(self) -> int:
        return max(self.counts)

    @property
    def shortest(self) -> int:
        return min(self.counts)

    def over(self, limit: int) -> int:
        """Prompts longer than `limit`."""
        return sum(count for length, count in self.counts.items() if length > limit)


def count(
    path: Path, tokenizer: str, chat_template: str | None, watch: Callable[[Iterable[dict], int], Iterable[dict]]
) -> Lengths:
    """The lengths of a split's prompts, with the chat template and without image tokens.

    Args:
        path: a parquet file of finished rows.
        tokenizer: a model's folder, or its name on a hub.
        chat_template: Jinja text that stands in for the model's own.
        watch: passes rows on and shows them; gets rows and their number.
    """
    kept = path.with_name(f"{path.stem}.tokens-{_identity(tokenizer, chat_template)}.json")
    rows = read_manifest(path)["rows"]
    try:
        found = Counter({int(length): number for length, number in json.loads(kept.read_text()).items()})
        if found.total() == rows:
            return Lengths(found)
    except (OSError, ValueError, AttributeError, TypeError):
        pass  # not counted yet, or cut short: it is counted anew
    lengths = PromptLengths(tokenizer, limit=1, chat_template=chat_template)
    for _ in watch(lengths.over(_prompts(path)), rows):
        pass
    found = Counter(lengths.lengths)
    draft = kept.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps({str(length): number for length, number in sorted(found.items())}))
    draft.replace(kept)
    return Lengths(found)


def _prompts(path: Path) -> Iterable[dict]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=["prompt"]):
            yield from batch.to_pylist()


def _identity(tokenizer: str, chat_template: str | None) -> str:
    """What the lengths depend on besides the rows: the tokenizer's files, or its name on a hub, and the template."""
    digest = sha256((chat_template or "").encode())
    folder = Path(tokenizer)
    if not folder.is_dir():
        digest.update(tokenizer.encode())
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:12]


def judged(lengths: Lengths, limit: int, batch: int, where: str, fix_limit: str) -> list[str]:
    """Remarks on prompts that are too long. Raises RecipeError where too few are left to train on.

    Args:
        lengths: of the training prompts.
        limit: data.max_prompt_length.
        batch: prompts a step.
        where: who set the limit.
        fix_limit: how a user sets it.
    """
    total, over = lengths.counts.total(), lengths.over(limit)
    told = f"{over:,} of {total:,} prompts are longer than data.max_prompt_length {limit}"
    enough = f"set {fix_limit} to {lengths.longest}, or shorten the prompts"
    if over == total:
        raise RecipeError(
            f"every prompt is longer than data.max_prompt_length {limit}: they have {lengths.shortest} tokens and more",
            where=where,
            fix=enough,
        )
    if over and total - over < batch:
        raise RecipeError(f"{told}; the other {total - over} do not fill a step of {batch}", where=where, fix=enough)
    return [f"{told} and are dropped; {fix_limit}={lengths.longest} keeps them all"] if over else []


VERSION = 2
"""Of the rows that are made; raise it where the same file gives other rows."""

Watch = Callable[[Iterable[dict], str, int], Iterable[dict]]


@dataclass(frozen=True)
class Wanted:
    """What is to be converted.

    Attributes:
        train: the training files.
        val: the validation files; empty: a share of the training files.
        system_prompt, template: files, or None.
        data_source: of records that name none.
        val_share: share of each source's prompts that validates.
        seed: of that choice.
    """

    train: tuple[Path, ...]
    val: tuple[Path, ...] = ()
    system_prompt: Path | None = None
    template: Path | None = None
    data_source: str | None = None
    val_share: float = 0.05
    seed: int = 1

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the rows depend on; images aside."""
        return (*self.train, *self.val, *(path for path in (self.system_prompt, self.template) if path))


def envelope(data_source: str, ground_truth: str) -> str:
    """The ground truth for EasyR1, which hands a reward nothing else of a row."""
    return json.dumps({"data_source": data_source, "ground_truth": ground_truth}, ensure_ascii=False)


def folder_of(wanted: Wanted) -> Path:
    """Where the rows of this content lie, made already or not.

    The content is the files' bytes; images are not looked at. Raises RecipeError for a missing file.
    """
    for path in wanted.files:
        if not path.is_file():
            raise RecipeError(
                f"the file {path} does not exist",
                where="the data: train_files, val_files, system_prompt, format_prompt",
                fix="mend the path; a relative one starts where you stand",
            )
    facts = asdict(wanted) | {"version": VERSION}
    for name in ("train", "val"):
        files = getattr(wanted, name)
        facts[name] = [(str(path.parent), path.suffix.lower(), file_sha256(path)) for path in files]
    for name in ("system_prompt", "template"):
        path = getattr(wanted, name)
        facts[name] = path and file_sha256(path)
    digest = sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    stem = re.sub(r"[^\w-]+", "_", wanted.train[0].stem)[:40] or "data"
    return data_dir("custom") / f"{stem}-{digest[:12]}"


def converted(folder: Path) -> list[dict[str, Any]] | None:
    """The manifests of a finished conversion; None where it is missing, incomplete or of another size."""
    found = []
    for name in ("train", "test"):
        path = folder / f"{name}.parquet"
        if not path.is_file() or not path.with_name(f"{name}.manifest.json").is_file():
            return None
        manifest = read_manifest(path)
        if manifest.get("bytes") != path.stat().st_size:
            return None
        found.append(manifest)
    return found


def convert(wanted: Wanted, folder: Path, command: str, watch: Watch | None = None) -> list[dict[str, Any]]:
    """Write train.parquet and test.parquet into `folder`, both or neither.

    Args:
        wanted: what is converted.
        folder: see `folder_of`.
        command: for the manifests.
        watch: passes rows on and shows them; gets rows, split and their expected number.

    Returns:
        Both manifests, with counts by data source and what was dropped.

    Raises:
        RecipeError: the first record that is wrong, with its line; too few prompts to train and validate.
    """
    maker = _Maker(Prompts(wanted.system_prompt, wanted.template))
    survey = _survey(wanted, wanted.train)
    validation = _survey(wanted, wanted.val) if wanted.val else survey
    held_out = validation.every_prompt if wanted.val else survey.validation(wanted.val_share)
    if not held_out or not survey.every_prompt - held_out:
        raise RecipeError(
            f"there are {len(survey.every_prompt)} different prompts, too few to train on some and validate on others",
            where=", ".join(map(str, wanted.train)),
            fix="give more records, or other validation data with --val_data",
        )
    most_images = max(survey.most_images, validation.most_images)
    maker.with_images = most_images > 0
    splits = (
        ("train", wanted.train, survey, lambda record: fingerprint(record, wanted.seed) not in held_out),
        ("test", wanted.val or wanted.train, validation, lambda record: fingerprint(record, wanted.seed) in held_out),
    )
    staged: list[Staged] = []
    try:
        for name, files, found, belongs in splits:
            counts: Counter[str] = Counter()
            rows = maker.rows(filter(belongs, records(list(files), wanted.data_source)), name, counts)
            shown = watch(rows, name, found.counts.total()) if watch else rows
            one = stage_split(folder / f"{name}.parquet", shown, manifest=_origin(wanted, name, command))
            one.manifest["data_sources"] = dict(sorted(counts.items()))
            staged.append(one)
    except BaseException:
        for one in staged:
            one.draft.unlink(missing_ok=True)
        raise
    manifest = staged[0].manifest
    shared = survey.counts.total() - manifest["rows"] if wanted.val else 0
    manifest |= {"dropped": {"also in the validation data": shared}, "repeated_prompts": survey.repeated()}
    manifest["most_images"] = most_images
    return publish(staged, force=True)


def _survey(wanted: Wanted, files: tuple[Path, ...]) -> Survey:
    return Survey(wanted.seed).add(records(list(files), wanted.data_source))


def _origin(wanted: Wanted, split: str, command: str) -> dict[str, Any]:
    """Where the rows come from, for the manifest."""
    return {
        "task": "custom",
        "split": split,
        "command": command,
        "source": [{"file": path.name, "sha256": file_sha256(path)} for path in wanted.files],
        "seed": wanted.seed,
        "val_share": None if wanted.val else wanted.val_share,
    }


class _Maker:
    """Makes the rows of a split, and counts them by data source."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts, self.with_images = prompts, False

    def rows(self, chosen: Iterable[Record], split: str, counts: Counter[str]) -> Iterator[dict[str, Any]]:
        for index, record in enumerate(chosen):
            counts[record.data_source] += 1
            yield self._row(record, split, index)

    def _row(self, record: Record, split: str, index: int) -> dict[str, Any]:
        try:
            row = make_row(
                data_source=record.data_source,
                prompt=self._prompts.messages(record),
                ground_truth=record.ground_truth,
                ability=record.data_source,
                extra_info={
                    "split": split,
                    "index": index,
                    "file": Path(record.place.file).name,
                    "line": record.place.number,
                    "solution": record.solution,
                    "fields": json.dumps(record.rest, ensure_ascii=False, default=str) if record.rest else "",
                },
                images=images(record) if self.with_images else None,
            )
        except RecipeError as error:
            raise RecipeError(error.what, where=str(record.place), fix=error.fix) from error
        row["answer"] = envelope(record.data_source, record.ground_truth)
        return row


Say = Callable[[str], None]


def ready(recipe: Recipe, say: Say, fetch: bool = True) -> Recipe:
    """The recipe with finished rows; itself where it has them already.

    A training file that is JSON, JSONL, CSV or parquet without the engine's columns is converted, and so is a finished
    one for which no validation file is given. Lengths of converted prompts are counted and told.

    Args:
        recipe: as loaded.
        say: takes lines for the user.
        fetch: whether a hub may be asked for the model's tokenizer.

    Raises:
        RecipeError: what a file has wrong; prompts that are too long to train on.
    """
    wanted = _wanted(recipe)
    if wanted is None:
        return recipe
    folder = folder_of(wanted)
    manifests = converted(folder)
    if manifests is None:
        say(f"converting {', '.join(path.name for path in (*wanted.train, *wanted.val))}")
        with progress_bar() as progress:
            manifests = convert(
                wanted,
                folder,
                command=f"python -m recipes.launch {recipe.name}",
                watch=lambda rows, split, total: tracked(rows, progress, split, total),
            )
    for line in _told(manifests, folder, wanted):
        say(line)
    why = f"converted from {', '.join(path.name for path in wanted.train)}"
    changes: dict[str, Any] = {
        "data.train_files": str(folder / "train.parquet"),
        "data.val_files": str(folder / "test.parquet"),
        **{f"data.{name}": None for name in ("system_prompt", "format_prompt", "data_source")},
        "data.val_share": leaves(Recipe)["data.val_share"].default,
    }
    most_images = manifests[0]["most_images"]
    if most_images and not recipe.source_of("worker.rollout.limit_images").by_user:
        changes["worker.rollout.limit_images"] = most_images
    recipe = replaced(recipe, changes, why)
    for remark in _prompt_lengths(recipe, folder, say, fetch):
        say(f"note: {remark}")
    return recipe


def _wanted(recipe: Recipe) -> Wanted | None:
    """What has to be converted; None where all rows are finished."""
    files: dict[str, tuple[Path, ...]] = {"data.train_files": (), "data.val_files": ()}
    for key in path_keys(recipe):
        if key.kind == "data":
            if key.on_hub:
                return None
            files[key.key] += (Path(key.path),)
    train, val = files["data.train_files"], files["data.val_files"]
    if not train or (val and all(is_finished(path, recipe) for path in (*train, *val))):
        return None
    settings = recipe.data
    return Wanted(
        train,
        val,
        Path(settings.system_prompt) if settings.system_prompt else None,
        Path(settings.format_prompt) if settings.format_prompt else None,
        settings.data_source,
        settings.val_share,
        abs(settings.seed),
    )


def is_finished(path: Path, recipe: Recipe) -> bool:
    """Whether a file holds rows for the engine; a parquet file that is missing or broken is left to the preflight."""
    if path.suffix.lower() != ".parquet":
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names) >= {name.split(".")[0] for name in engine_columns(recipe)}
    except (OSError, pa.ArrowException):
        return True


def _told(manifests: list[dict[str, Any]], folder: Path, wanted: Wanted) -> list[str]:
    """The counts in words."""
    train, test = manifests
    lines = [f"rows: {'; '.join(map(_counts, manifests))}; in {shown(folder)}"]
    if not wanted.val:
        lines.append(
            f"note: no validation data given: {wanted.val_share:.0%} of each source's prompts are held out for it"
        )
    if shared := train["dropped"]["also in the validation data"]:
        lines.append(f"note: {shared} training rows have a prompt of the validation data and were left out")
    if train["repeated_prompts"]:
        lines.append(f"note: {train['repeated_prompts']} records repeat the prompt of another")
    untrained = set(test["data_sources"]) - set(train["data_sources"])
    if untrained:
        lines.append(f"note: validated, but not trained on: {', '.join(sorted(untrained))}")
    return lines


def _counts(manifest: dict[str, Any]) -> str:
    by_source = ", ".join(f"{name} {count:,}" for name, count in manifest["data_sources"].items())
    return f"{manifest['split']} {manifest['rows']:,} ({by_source})"


def _prompt_lengths(recipe: Recipe, folder: Path, say: Say, fetch: bool) -> list[str]:
    """Count the prompts in the model's tokens, where its tokenizer is here or can be had."""
    model = recipe.worker.actor.model
    template = recipe.data.override_chat_template
    text = Path(template).read_text(encoding="utf-8") if template else None
    limit = recipe.data.max_prompt_length
    where = f"data.max_prompt_length, from {recipe.source_of('data.max_prompt_length')}"
    tokenizer = model.tokenizer_path or model.model_path
    here = local_model(tokenizer)
    if not (fetch or here):
        return [f"prompts are not counted in tokens: {tokenizer} is not in the hub's cache yet"]
    try:
        with progress_bar() as progress:

            def watch(rows: Any, total: int) -> Any:
                return tracked(rows, progress, "tokens", total)

            train = count(folder / "train.parquet", str(here or tokenizer), text, watch)
            count(folder / "test.parquet", str(here or tokenizer), text, watch)
    except RecipeError as error:
        if here:
            raise
        return [f"prompts are not counted in tokens: {error.what}"]
    say(f"prompt tokens: {train.shortest} to {train.longest}; the limit is {limit}")
    return judged(train, limit, recipe.data.rollout_batch_size, where, "MAX_PROMPT_LENGTH")
