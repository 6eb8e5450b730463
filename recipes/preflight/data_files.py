"""Checks of the data files: readable, with the engine's columns, enough rows, and prompts within the limit."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from recipes.config import PathKey, Recipe, path_keys
from recipes.config.accounting import used_rows
from recipes.data.lengths import count_split
from recipes.data.rows import find_manifest, read_rows, row_count
from recipes.data.splits import Prompts
from recipes.engines.columns import chat_of, engine_columns, prompt_column
from recipes.errors import RecipeError, first_line
from recipes.model_files import local_model, positions
from recipes.preflight.model import fast_tokenizer, given_template
from recipes.preflight.tools import prompt_schemas
from recipes.written import written


def files(recipe: Recipe, key: str | None = None) -> list[PathKey]:
    """The data files on this machine, training files first; with `key`, only the files of that key."""
    return [each for each in path_keys(recipe) if each.kind == "data" and not each.on_hub and key in (None, each.key)]


def missing(recipe: Recipe) -> list[PathKey]:
    """Data files that do not exist."""
    return [key for key in files(recipe) if not Path(key.path).exists()]


def columns(key: PathKey) -> list[str]:
    """The columns of a file that `check_data` has passed."""
    import pyarrow.parquet as pq

    return list(pq.read_schema(key.path).names)


def check_data(recipe: Recipe) -> list[str]:
    """Raise for a file that is missing, unreadable, empty or lacks columns, and for fewer rows than a step takes.

    Returns remarks on repeated prompts, on prompts of training and validation both, and on marks of a chat template.
    """
    for key in missing(recipe):
        own = recipe.prepare and not key.source.by_user
        fix = f"make it with `python {' '.join(recipe.prepare)}`" if own else "give the path of a parquet file"
        raise recipe.error(f"the data file {key.path} does not exist", fix, key.key)
    for key in files(recipe):
        _check_columns(recipe, key)
    used = used_rows(recipe, row_count(recipe))
    if used and used < recipe.data.rollout_batch_size:
        raise recipe.error(
            f"data.rollout_batch_size {recipe.data.rollout_batch_size} is larger than the {used} training rows",
            f"set ROLLOUT_BATCH_SIZE to {used} or less",
            "data.rollout_batch_size",
        )
    return _remarks_on_prompts(recipe)


WORD = re.compile(r"[\w.]+")
SHOWN = ("options", "choices", "system")
"""Columns that belong to the question in public data sets: MMLU-Pro's, ScienceQA's, ms-swift's."""
CHAT_MARKS = re.compile(r"<\|(im_start|start_header_id|user|assistant|system)\|>|<start_of_turn>|\[INST\]|<｜User｜>")


def _remarks_on_prompts(recipe: Recipe) -> list[str]:
    """Remarks on prompts; the data of a task of this repository is not read: it is made without such prompts."""
    parts, marked, hidden = {}, Counter[str](), Counter[str]()
    for part in ("train", "val"):
        parts[part] = found = Prompts(0)
        for key in files(recipe, f"data.{part}_files"):
            if (manifest := find_manifest(Path(key.path))) and manifest.task not in ("", "custom"):
                return []
            column, pictures = prompt_column(recipe), recipe.data.image_key
            for row in read_rows(key.path, (column, pictures, "extra_info", *SHOWN), at_once=256):
                texts = [str(message.get("content")) for message in chat_of(row.get(column), "")]
                found.add("", texts, [_picture(image) for image in row.get(pictures) or ()])
                marked.update(mark[0] for mark in map(CHAT_MARKS.search, texts) if mark)
                hidden.update(_hidden(row, "\n".join(texts)))
    train, val = parts["train"], parts["val"]
    remarks, both = [], sum(val.shared_with(train.keys([True] * len(train))))
    if train.different < len(train):
        remarks.append(f"{len(train):,} training rows have {train.different:,} different prompts")
    if both:
        shared = f"{both:,} of {len(val):,} validation rows have a prompt or an image of the training data"
        remarks.append(f"{shared}: their figures are not held-out ones")
    for name, count in hidden.items():
        fix = f"--template FILE can, with {{{{ content }}}} and {{{{ {name} }}}} in the file"
        remarks.append(f"{count:,} prompts do not show their row's column {name}; {fix}")
    for mark, count in marked.items():
        remarks.append(f"{count:,} messages have {mark}, and the model's own chat template adds its marks around them")
    return remarks


def _hidden(row: dict[str, Any], text: str) -> list[str]:
    """The columns of `SHOWN` that a row has, its own or those of its file, and that its prompt does not contain."""
    extra = row.get("extra_info")
    fields = written(extra.get("fields")) if isinstance(extra, dict) else None
    there = {name: written({**(fields if isinstance(fields, dict) else {}), **row}.get(name)) for name in SHOWN}
    parts = {name: list(value.values()) if isinstance(value, dict) else value or "" for name, value in there.items()}
    return [name for name, value in parts.items() if not all(word in text for word in WORD.findall(str(value)))]


def _picture(image: Any) -> bytes:
    value = image if not isinstance(image, dict) else image.get("bytes") or image.get("path")
    return value if isinstance(value, bytes) else str(value).encode()


def _check_columns(recipe: Recipe, key: PathKey) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(key.path)
    except (pa.ArrowException, OSError) as error:
        what = f"{key.path} cannot be read as parquet: {first_line(error)}"
        raise recipe.error(what, "make the file again", key.key) from error
    # Fields of structs have dotted names, and may be structs themselves.
    paths = [opened.schema.column(index).path for index in range(len(opened.schema))]
    lacking = [name for name in engine_columns(recipe) if not any(f"{path}.".startswith(f"{name}.") for path in paths)]
    if lacking:
        raise recipe.error(
            f"{key.path} lacks {', '.join(lacking)} (its columns are {', '.join(opened.schema_arrow.names)})",
            f"{recipe.engine} reads {', '.join(engine_columns(recipe))}; see make_row in recipes/data/rows.py",
            key.key,
        )
    if opened.metadata.num_rows == 0:
        raise recipe.error(f"{key.path} has no rows", "make the file again, with at least one row", key.key)


MOST_DROPPED = 0.1
"""Largest share of training prompts that is dropped without the user asking for it: so few prompts are outliers."""


def check_prompt_lengths(recipe: Recipe) -> list[str]:
    """Remark on training prompts that are longer than data.max_prompt_length.

    Prompts are not counted if the tokenizer is not on this machine or the prompt column is the user's own; `images.py`
    counts prompts with images.

    Raises RecipeError where too few prompts are left to fill a step, or more than `MOST_DROPPED` would be dropped and
    the user did not set data.filter_overlong_prompts.
    """
    model, data, keys = recipe.worker.actor.model, recipe.data, files(recipe, "data.train_files")
    folder = fast_tokenizer(recipe)
    if recipe.worker.rollout.limit_images or folder is None or not all("prompt" in columns(key) for key in keys):
        return []
    try:
        given, trusted = (str(folder), given_template(recipe), prompt_schemas(recipe)), model.trust_remote_code
        counted = [count_split(Path(key.path), *given, trust_remote_code=trusted) for key in keys]
    except (RecipeError, OSError) as error:
        return [f"the prompts are not counted: {first_line(error)}"]
    lengths, key, drops = sum(counted, Counter()), "data.max_prompt_length", "data.filter_overlong_prompts"
    total, over = lengths.total(), sum(count for length, count in lengths.items() if length > data.max_prompt_length)
    if not over:
        return []
    enough = max(lengths)
    what = f"{over:,} of {total:,} prompts are longer than {key} {data.max_prompt_length}"
    if total - over < data.rollout_batch_size:
        what += f"; the other {total - over} do not fill a step of {data.rollout_batch_size}"
    elif not data.filter_overlong_prompts:
        return [f"{what}, and {drops} is off: the trainer will stop there"]
    elif over > MOST_DROPPED * total and not recipe.source_of(drops).by_user:
        what += f" and would be dropped; {drops}=true drops them, if that is what you want"
    else:
        return [f"{what} and are dropped; MAX_PROMPT_LENGTH={enough} keeps them all"]
    known = positions(local_model(model.model_path))
    fix = f"set MAX_PROMPT_LENGTH to {enough}, or shorten the prompts"
    if known is not None and enough + data.max_response_length > known:
        fix = f"shorten the prompts, or take a model with more than {known} positions for prompt and response"
    raise recipe.error(what, fix, key)
