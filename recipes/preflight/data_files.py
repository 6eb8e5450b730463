"""Checks of the data files: readable, with the engine's columns, enough rows, usable images, prompts within the limit.

Every image is opened, and the model's own processor counts the tokens of every row by the sizes of its images.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recipes import pictures
from recipes.config import PathKey, Recipe, path_keys
from recipes.config.accounting import data_parallel, used_rows
from recipes.data.lengths import count_split, picture_tokens
from recipes.data.rows import IMAGE_MARK, find_manifest, pictures_mistake, read_rows, row_count, structured
from recipes.data.splits import Prompts
from recipes.engines.columns import answer_column, chat_of, engine_columns, prompt_column, prompt_template
from recipes.errors import RecipeError, abbreviated, counted, first_line
from recipes.model_files import PROCESSORS, local_model, positions
from recipes.preflight.child import ask
from recipes.preflight.model import fast_tokenizer, given_template
from recipes.preflight.tools import calls_without_tools, prompt_schemas
from recipes.written import written


def files(recipe: Recipe, key: str | None = None) -> list[PathKey]:
    """The data files on this machine, training files first; with `key`, only the files of that key."""
    return [each for each in path_keys(recipe) if each.kind == "data" and not each.on_hub and key in (None, each.key)]


def missing(recipe: Recipe) -> list[PathKey]:
    """Data files that do not exist."""
    return [key for key in files(recipe) if not Path(key.path).exists()]


def columns(key: PathKey) -> list[str]:
    """The columns of a file that `check_data` has passed."""
    return list(pq.read_schema(key.path).names)


def check_data(recipe: Recipe) -> list[str]:
    """Raise for a file that is missing, unreadable, empty or lacks columns, and for fewer rows than a step takes.

    Returns remarks on repeated prompts, on prompts of training and validation both, and on marks of a chat template.
    """
    if not recipe.data.train_files:
        raise recipe.error("no training rows are named", "set TRAIN_FILES, or leave it out", "data.train_files")
    for key in missing(recipe):
        own = recipe.prepare and not key.source.by_user
        fix = f"make it with `python {' '.join(recipe.prepare)}`" if own else "give the path of a parquet file"
        raise recipe.error(f"the data file {key.path} does not exist", fix, key.key)
    for key in files(recipe):
        _check_columns(recipe, key)
    used = used_rows(recipe, row_count(recipe))
    if used and used < recipe.data.rollout_batch_size:
        n, ranks = recipe.worker.rollout.n, data_parallel(recipe)
        most = next((size for size in range(used, 0, -1) if size * n % ranks == 0), 0)
        what = f"data.rollout_batch_size {recipe.data.rollout_batch_size} is larger than the {used} training rows"
        fix = f"set ROLLOUT_BATCH_SIZE and GLOBAL_BATCH_SIZE to {most} or less" if most else "take fewer GPUs"
        raise recipe.error(what, fix, "data.rollout_batch_size")
    return [*_remarks_on_prompts(recipe), *calls_without_tools(recipe)]


WORD = re.compile(r"[\w.]+")
SHOWN = ("options", "choices", "system", "input", "context", "A", "选项", "image", "image_path")
"""Columns that belong to the question in public data sets: MMLU-Pro's, ScienceQA's, ms-swift's, Alpaca's, C-Eval's."""
LETTERED = re.compile(r"(?ms)^\W{0,3}A ?[.):：、）].*^\W{0,3}B ?[.):：、）]")
CHAT_MARKS = re.compile(r"<\|(im_start|start_header_id|user|assistant|system)\|>|<start_of_turn>|\[INST\]|<｜User｜>")


def _remarks_on_prompts(recipe: Recipe) -> list[str]:
    """Remarks on prompts; the data of a task of this repository is not read: it is made without such prompts."""
    parts, marked, hidden, unfilled, unasked, places, filmed = {}, Counter[str](), Counter[str](), 0, 0, 0, 0
    truths, twofold = dict[tuple[str, int], tuple[int, str]](), dict[tuple[str, int], str]()  # by source and prompt
    for part in ("train", "val"):
        parts[part] = found = Prompts(0)
        for key in files(recipe, f"data.{part}_files"):
            if (manifest := find_manifest(Path(key.path))) and manifest.task not in ("", "custom"):
                return []
            column, image_key = prompt_column(recipe), recipe.data.image_key
            used = {*engine_columns(recipe), column, image_key, "data_source", "reward_model", "extra_info", *SHOWN}
            for number, row in enumerate(read_rows(key.path, tuple(used), at_once=256)):
                if row[column] is None:
                    where, fix = f"{key.path}, row {number}, counted from 0", "leave the row out"
                    raise RecipeError(f"the row has no {column}, which is its prompt", where=where, fix=fix)
                chat = chat_of(row[column], "")
                texts = [str(message.get("content")) for message in chat]
                unasked += not chat or chat[-1].get("role") not in ("user", "tool") or not texts[-1].strip()
                held = [_held(image) for image in row.get(image_key) or ()]
                shown = [each if isinstance(each, bytes) else str(each).encode() for each in held]
                asked = str(row.get("data_source")), found.add("", texts, shown)
                marked.update(mark[0] for mark in map(CHAT_MARKS.search, texts) if mark)
                fields, text = _fields(row | {image_key: None}), "\n".join(texts)
                unshown = _hidden(fields, text)
                hidden.update(unshown)
                filmed += any(mark in text for mark in pictures.UNSHOWN)
                unfilled += not shown and IMAGE_MARK in text and "image" not in str(unshown)
                model = written(row.get("reward_model"))
                own = model.get("ground_truth") if isinstance(model, dict) else row.get(answer_column(recipe))
                if own is None or unshown:
                    continue
                places += _is_a_place(own, fields["options"] or fields["choices"], text)
                truth = hash(_canonical(own)), abbreviated(own)
                if truths.setdefault(asked, truth)[0] != truth[0]:
                    twofold.setdefault(asked, f"{abbreviated(''.join(texts[-1:]))}: {truths[asked][1]} and {truth[1]}")
    train, val = parts["train"], parts["val"]
    remarks, both = [], sum(val.shared_with(train.keys([True] * len(train))))
    if train.different < len(train):
        remarks.append(f"{len(train):,} training rows have {train.different:,} different prompts")
    if both:
        shared = f"{both:,} of {len(val):,} validation rows have a prompt or an image of the training data"
        remarks.append(f"{shared}: their figures are not held-out ones")
    for example in [*twofold.values()][:1]:
        fix = "leave the wrong row out, or give one row all right answers where its data source takes a list"
        remarks.append(f"{counted(len(twofold), 'prompt')} with different ground truths, such as {example}; {fix}")
    if places:
        what = f"{counted(places, 'ground truth')} that count the options from 0, where prompts name them by letters"
        remarks.append(f"{what}: a response that chooses a letter is wrong; give the letter or the option's text")
    if unasked:
        remarks.append(f"{counted(unasked, 'prompt')} without a message, or whose last is empty or not the user's")
    if unfilled:
        what = f"{counted(unfilled, 'prompt')} with {IMAGE_MARK} and without images"
        remarks.append(f"{what}: the model reads this as text; --image_key names the column of images")
    if filmed:
        what = f"{counted(filmed, 'prompt')} with {' or '.join(pictures.UNSHOWN)}"
        remarks.append(f"{what}: no recipe shows videos or sounds, and the model reads this as text")
    for name, count in hidden.items():
        fix = f"--template FILE can, with {{{{ content }}}} and {{{{ {name} }}}} in the file"
        fix = f"--image_key {name} can" if name.startswith("image") else fix
        remarks.append(f"{count:,} prompts do not show their row's column {name}; {fix}")
    for mark, count in marked.items():
        remarks.append(f"{count:,} messages have {mark}, and the model's own chat template adds its marks around them")
    return remarks


def _canonical(truth: Any) -> str:
    """A text that is the same for a truth in another spelling: numbers by value, lists and mappings in any order.

    Of lists and mappings a hash: quotes in quotes would double their length with each list around them.
    """
    value = written(truth)
    if isinstance(value, dict):
        return str(hash(frozenset((str(name), _canonical(each)) for name, each in value.items())))
    if isinstance(value, list | tuple):
        return str(hash(tuple(sorted(map(_canonical, value)))))
    try:
        return str(float(value))
    except (TypeError, ValueError):
        return str(value).strip()


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of `SHOWN` of a row, its own or those of its file; what it lacks is an empty text."""
    extra = row.get("extra_info")
    fields = written(extra.get("fields")) if isinstance(extra, dict) else None
    own = {**(fields if isinstance(fields, dict) else {}), **row}
    there = {name: written(own.get(name)) for name in SHOWN}
    return {name: list(value.values()) if isinstance(value, dict) else value or "" for name, value in there.items()}


def _hidden(fields: dict[str, Any], text: str) -> list[str]:
    """The columns that a row has and that its prompt does not contain."""
    return [name for name, value in fields.items() if not all(word in text for word in WORD.findall(str(value)[:999]))]


def _is_a_place(truth: Any, options: Any, text: str) -> bool:
    """Whether a truth is the place of an option, as MMLU has it, in a prompt that names options by letters."""
    number = str(truth)
    among = isinstance(options, list) and number.isdecimal() and int(number) < len(options)
    return among and number not in re.findall("[0-9]+", str(options)) and LETTERED.search(text) is not None


def _held(image: Any) -> Any:
    """The bytes or the path of an image, or of a dict with one of them, as both engines read it."""
    return image.get("bytes") or image.get("image") or image.get("path") if isinstance(image, dict) else image


def _check_columns(recipe: Recipe, key: PathKey) -> None:
    try:
        opened = pq.ParquetFile(key.path)
    except (pa.ArrowException, OSError) as error:
        what = f"{key.path} cannot be read as parquet: {first_line(error)}"
        raise recipe.error(what, "make the file again", key.key) from error
    # Fields of structs have dotted names, and may be structs themselves.
    paths = [opened.schema.column(index).path for index in range(len(opened.schema))]
    lacking = [name for name in engine_columns(recipe) if not any(f"{path}.".startswith(f"{name}.") for path in paths)]
    if lacking:
        what = f"{key.path} lacks {', '.join(lacking)} (its columns are {', '.join(opened.schema_arrow.names)})"
        fix = f"{recipe.engine} reads {', '.join(engine_columns(recipe))}; see make_row in recipes/data/rows.py"
        raise recipe.error(what, fix, key.key)
    if mistake := pictures_mistake(key.path, recipe.data.image_key, recipe.data.video_key):
        raise recipe.error(*mistake, key.key, "data.image_key", "data.video_key")
    if opened.metadata.num_rows == 0:
        raise recipe.error(f"{key.path} has no rows", "make the file again, with at least one row", key.key)


MOST_DROPPED = 0.1
"""Largest share of training prompts that is dropped without the user asking for it: so few prompts are outliers."""


def check_prompt_lengths(recipe: Recipe) -> list[str]:
    """Remark on training prompts that are longer than data.max_prompt_length.

    They are counted here where they have no images, the tokenizer is on this machine, and the column is not the user's.

    Raises RecipeError where too few prompts are left to fill a step, or more than `MOST_DROPPED` would be dropped and
    the user did not set data.filter_overlong_prompts.
    """
    model, data, keys = recipe.worker.actor.model, recipe.data, files(recipe, "data.train_files")
    folder = fast_tokenizer(recipe)
    if recipe.worker.rollout.limit_images or folder is None or not all("prompt" in columns(key) for key in keys):
        return []
    try:
        given, trusted = (str(folder), given_template(recipe), prompt_schemas(recipe)), model.trust_remote_code
        counts = [count_split(Path(key.path), *given, trust_remote_code=trusted) for key in keys]
    except (RecipeError, OSError) as error:
        return [f"the prompts are not counted: {first_line(error)}"]
    lengths, key, drops = sum(counts, Counter()), "data.max_prompt_length", "data.filter_overlong_prompts"
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


ROWS_AT_ONCE = 64
MOST_DECODED = 256
"""Rows of each file whose images are decoded; in all further rows image headers are read and checksums verified."""
COUNTING_LIMIT_S = 600.0


class Row(NamedTuple):
    """A row with images: its number, counted from 0, its messages, and height and width of each image."""

    number: int
    messages: list[dict[str, Any]]
    sizes: list[tuple[int, int]]


def check_images(recipe: Recipe) -> list[str]:
    """Raise for rows whose images cannot be used, and where the prompts have no room for them."""
    limit, image_key = recipe.worker.rollout.limit_images, recipe.data.image_key
    read = [key for key in files(recipe) if limit or image_key in columns(key)]
    chosen = {key: rows for key in read if (rows := _scan(recipe, key.path))}
    if not chosen:
        for name in ("data.min_pixels", "data.max_pixels"):
            if recipe.source_of(name).by_user and recipe.value(name) is not None:
                raise recipe.error(f"{name} has no effect: no row has an image", f"leave {name} out", name)
        if recipe.engine == "verl" or not any(image_key in columns(key) for key in files(recipe)):
            return []  # EasyR1 asks for a processor wherever it sees the column
    least, most = recipe.data.min_pixels, recipe.data.max_pixels
    if least and most and least > most:
        what = f"data.min_pixels {least} is larger than data.max_pixels {most}"
        raise recipe.error(what, f"set MIN_PIXELS to {most} or less", "data.min_pixels", "data.max_pixels")
    name = recipe.worker.actor.model.model_path or ""
    folder = local_model(name)
    if folder is None or not any((folder / file).is_file() for file in PROCESSORS):
        if not Path(name).is_dir():  # the hub's cache has none or only a part of the model
            return [f"{name} is not here yet: whether prompts have room for their images is not known"]
        on_cpu = recipe.hardware == "cpu"
        held = "images" if chosen else f"a column {image_key}, which may be left out"
        what = f"the rows have {held}, and {name} has no processor for images ({PROCESSORS[0]})"
        fix = f"set MODEL_PATH to a vision-language model{', such as recipes/tasks/number_game/tiny' * on_cpu}"
        raise recipe.error(what, fix, "worker.actor.model.model_path")
    return [remark for key, rows in chosen.items() for remark in _check_room(recipe, key, rows, folder)]


def _scan(recipe: Recipe, file: str) -> list[Row]:
    """The rows of a parquet file that have images, each of which is opened.

    Raises RecipeError for the first row with a broken or too flat image, too many images, another number of images than
    `<image>` marks, or the model's own marks in its text.
    """
    prompt_key, image_key, template = prompt_column(recipe), recipe.data.image_key, prompt_template(recipe)
    limit, found = recipe.worker.rollout.limit_images, list[Row]()
    by_datasets = pictures.opened_by_datasets(file, image_key)
    for number, row in enumerate(read_rows(file, (prompt_key, image_key), ROWS_AT_ONCE)):
        messages, images = chat_of(row.get(prompt_key), template), row.get(image_key) or []
        texts = [str(message.get("content")) for message in messages]
        places = sum(text.count(IMAGE_MARK) for text in texts)
        marks = pictures.MARKS + pictures.UNSHOWN * bool(images and recipe.engine == "verl")
        own = next((mark for mark in marks for text in texts if mark in text), "")
        what, fix = "", "make it again, or leave the row out"
        if row.get(image_key, []) is None and recipe.engine == "easyr1":
            what, fix = f"null as {image_key}, of which EasyR1 asks the length", "write an empty list"
        elif own:
            what, fix = f"{own} in its prompt, {pictures.OWN_MARK}", f"write {IMAGE_MARK}, or leave it out"
        elif places != len(images) or len(images) > limit:
            what = f"{counted(places, 'place')} {IMAGE_MARK} in its prompt and {counted(len(images), 'image')}"
            what += f", and worker.rollout.limit_images is {limit}"
            fix = f"write one {IMAGE_MARK} into the prompt for each image, and set limit_images to the most of them"
        sizes = []
        try:
            for image in [] if what else images:
                held = pictures.trained(image, recipe.engine, recipe.data.image_dir or ".", by_datasets=by_datasets)
                picture = pictures.open_image(held)
                sizes.append((picture.height, picture.width))
                pictures.check(picture, decode=number < MOST_DECODED)
        except (OSError, ValueError) as error:
            what = f"an image that cannot be used: {error}"
        if what:
            raise RecipeError(f"row {number} has {what}", where=f"{file}, row {number}, counted from 0", fix=fix)
        if images:
            found.append(Row(number, messages, sizes))
    return found


def _check_room(recipe: Recipe, key: PathKey, rows: list[Row], model: Path) -> list[str]:
    """Raise if no prompt fits, or if one does not and long prompts are not dropped; remark if some are dropped."""
    data, limit = recipe.data, recipe.data.max_prompt_length
    where = f"{key.path}, the tokens of its {len(rows):,} rows with images by {model}"
    fix = "is the model a whole vision-language model?"
    tokens = ask(count, recipe, rows, str(model), limit_s=COUNTING_LIMIT_S, where=where, fix=fix)
    most, over = max(tokens), sum(each > limit for each in tokens)
    if not over:
        return []
    longest, least = rows[tokens.index(most)], data.min_pixels or 0
    what = f"the prompt of row {longest.number} has {most:,} tokens with its images, and"
    enlarged = any(height * width < least for height, width in longest.sizes)
    fewer = f"MIN_PIXELS, to whose {least:,} it is enlarged" if enlarged else "MAX_PIXELS"
    fix = f"set MAX_PROMPT_LENGTH={most}, or lower {fewer}"
    if data.filter_overlong_prompts and over < len(tokens):
        dropped = f"{counted(over, 'row')} over data.max_prompt_length {limit}: dropped; to keep them"
        return [f"{key.path}: {what} {dropped} {fix}"]
    what = f"{key.path}: {what} data.max_prompt_length is {limit}"
    raise recipe.error(what, fix, *(key.key, "data.max_prompt_length", "data.min_pixels", "data.max_pixels"))


def count(recipe: Recipe, rows: list[Row], model: str) -> list[int]:
    """The tokens of each row's prompt: the tokenizer's, with those of its images in the place of their marks.

    Runs in a child process, since the processor imports torch.
    """
    from transformers import AutoProcessor

    data = recipe.data
    processor = AutoProcessor.from_pretrained(model, trust_remote_code=recipe.worker.actor.model.trust_remote_code)
    bounds = {"min_pixels": data.min_pixels, "max_pixels": data.max_pixels}
    of_easyr1 = recipe.engine == "easyr1"  # which resizes pictures itself, and then asks the processor without bounds
    given = {} if of_easyr1 else {name: pixels for name, pixels in bounds.items() if pixels is not None}
    of_image = picture_tokens(processor, given)

    def tokens(height: int, width: int) -> int:
        if of_easyr1:
            *_, (width, height) = pictures.sizes_of_easyr1(width, height, bounds)
        return of_image(height, width)

    texts = [
        processor.apply_chat_template(structured(row.messages), add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    lengths = map(len, processor.tokenizer(texts, add_special_tokens=False)["input_ids"])
    return [length + sum(tokens(*size) - 1 for size in row.sizes) for length, row in zip(lengths, rows, strict=True)]
