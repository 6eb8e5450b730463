"""From a user's files to the rows that both engines read, once for each content.

A conversion lies in a folder named after what it was made from: the files' content, template, system message, share
and seed. The same start finds it again; another content makes another folder, so that nothing is replaced and a run
that goes on reads the rows that it began with.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.paths import data_dir
from recipes.tasks.custom.pictures import images
from recipes.tasks.custom.prompts import Prompts
from recipes.tasks.custom.reading import records
from recipes.tasks.custom.record import Record
from recipes.tasks.custom.splitting import Survey, fingerprint
from recipes.tasks.rows import Staged, make_row, publish, read_manifest, stage_split
from recipes.tasks.rows import sha256 as file_sha256

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
