"""Shared by the tasks: the split of a problem, published data sets, and data that is checked before it is written."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from recipes.data.rows import Manifest, Row, Split, write_data
from recipes.engines.worked_answers import last_text
from recipes.errors import RecipeError, counted, first_line
from recipes.files import sha256
from recipes.paths import command_line
from recipes.progress_bar import progress_bar
from recipes.rewards.loading import load_reward

SHARES = {"pretrain": 50, "train": 30, "test": 20}
"""Shares of a task's problems in percent; training has fewer than pretraining, since it samples each many times."""


def bucket_of(key: str) -> str:
    """`pretrain`, `train` or `test`, by the SHA-256 of a text that identifies the problem, on every machine."""
    point = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    ends = zip(SHARES, accumulate(SHARES.values()), strict=True)
    return next(name for name, end in ends if point < end)


SECONDS_TO_ANSWER = 15
"""Time limit of a first request to the hub: without it `datasets` would retry for half a minute before it fails."""


def load_table(
    repository: str,
    columns: Sequence[str],
    *,
    split: str = "train",
    revision: str = "main",
    name: str | None = None,
    files: Sequence[Path] | None = None,
) -> tuple[pa.Table, str]:
    """A split of a data set on the hub, and its source for the manifest.

    Args:
        columns: names that the table must have.
        revision: branch, tag or commit. With HF_HUB_OFFLINE=1 the local cache is used as it is.
        name: configuration of the data set, such as "main" of `openai/gsm8k`.
        files: local copies, parquet or JSON lines, to read in place of the hub.
    """
    if files is None:
        table, commit = _from_hub(repository, split, revision, name)
        source = f"{repository}@{commit}"
    else:
        try:
            read = [pa.json.read_json(file) if file.suffix == ".jsonl" else pq.read_table(file) for file in files]
            table = pa.concat_tables(read)
            source = ", ".join(f"{file.name}, SHA-256 {sha256(file)}" for file in files)
        except (OSError, pa.ArrowException) as error:
            where, fix = ", ".join(map(str, files)), f"give a copy of the files of {repository}"
            raise RecipeError(f"the local copy cannot be read: {error}", where=where, fix=fix) from error
    if missing := [column for column in columns if column not in table.column_names]:
        what = f"there is no column {', '.join(missing)}, only {', '.join(table.column_names)}"
        raise RecipeError(what, where=source, fix=f"use a table with {', '.join(columns)}, as {repository} has them")
    return table, source


def _from_hub(repository: str, split: str, revision: str, name: str | None) -> tuple[pa.Table, str]:
    """The split, and the commit that it comes from; offline, the revision as it was given."""
    import httpx
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi, constants

    try:
        if not constants.HF_HUB_OFFLINE:
            revision = HfApi().dataset_info(repository, revision=revision, timeout=SECONDS_TO_ANSWER).sha or revision
        return load_dataset(repository, name, split=split, revision=revision).with_format("arrow")[:], revision
    except (OSError, ValueError, DatasetsError, httpx.HTTPError) as error:
        what = f"the hub's data set {repository} cannot be read: {first_line(error)}"
        where = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}, revision {revision}"
        fix = "set HF_ENDPOINT to a mirror, HF_HUB_OFFLINE=1 where it is cached, or use another source (see --help)"
        raise RecipeError(what, where=where, fix=fix) from error


def require_full_marks(row: Row, score: Callable[..., Any]) -> None:
    """Raise RecipeError, with the reward's own reason, where a row's `extra_info.solution` does not score 1.0."""
    truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
    solution = last_text(info["solution"])
    result = score(row["data_source"], solution, truth, info)
    parts = result if isinstance(result, dict) else {"score": result}
    if parts["score"] != 1.0:
        raise RecipeError(
            f"the solution of {info['split']} row {info['index']} scores {parts['score']}, not 1.0 "
            f"({parts.get('reason', 'no reason given')})",
            where=f"ground truth {truth!r}, solution {solution[-200:]!r}",
            fix="mend the row or the reward; a reward that denies the gold answer teaches the wrong thing",
        )


def prepare(
    task: str,
    splits: Iterable[Split],
    folder: Path,
    *,
    problem: Callable[[Row], Hashable] = lambda row: row["problem"],
    once: bool = False,
    counted_by: Callable[[Row], Mapping[str, Any]] = lambda row: {},
    force: bool = False,
) -> list[Manifest]:
    """Write the splits of a task into `folder`, all or none, and print what was written.

    Args:
        task: every row's `extra_info.solution` must earn 1.0 under its reward, `reward_functions/<task>.py`.
        problem: row -> key of its problem; no key may be in two splits, and with `once` none twice in one.
        counted_by: row -> {table: value}; each table of the manifest's counts has the number of rows by value.
        force: replace files that hold other data.
    """
    score = load_reward(f"reward_functions/{task}.py:compute_score").compute_score
    split_of: dict[Hashable, str] = {}

    def passed(split: Split, counts: dict[str, Counter[Any]]) -> Iterator[Row]:
        for row in split.rows:
            require_full_marks(row, score)
            key = problem(row)
            other = split_of.get(key, split.name)
            if other != split.name or (once and key in split_of):
                what = f"{split.name} row {row['extra_info']['index']} repeats the problem of a row of {other}"
                raise RecipeError(what, where=str(key)[:80], fix="remove one of the two")
            split_of[key] = split.name
            for table, value in counted_by(row).items():
                counts[table][value] += 1
            yield row

    def checked() -> Iterator[Split]:
        with progress_bar() as progress:
            for split in splits:
                counts = defaultdict[str, Counter[Any]](Counter)
                facts = {"task": task, "split": split.name, "command": command_line(), "counts": counts, **split.facts}
                rows = progress.track(passed(split, counts), total=split.size, description=split.name)
                yield split._replace(rows=rows, facts=facts)

    manifests, status = write_data(folder, checked(), force=force)
    for manifest in manifests:
        dropped = ", ".join(f"{name} {count:,}" for name, count in manifest.dropped.items() if count)
        facts = f"{counted(manifest.rows, 'row')}, {status}, SHA-256 {manifest.sha256[:16]}"
        print(f"{folder / manifest.file}: {facts}{dropped and f'; dropped: {dropped}'}")
    return manifests
