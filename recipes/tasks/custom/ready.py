"""Before a start: a recipe whose data is a user's file becomes one whose data is finished rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.config import Recipe, path_keys
from recipes.config.resolve import replaced
from recipes.config.schema import leaves
from recipes.errors import RecipeError
from recipes.preflight.data import columns
from recipes.preflight.model import local_folder
from recipes.supervise.summary import shown
from recipes.tasks.custom import tokens
from recipes.tasks.custom.convert import Wanted, convert, converted, folder_of
from recipes.tasks.preparing import progress_bar, tracked

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
        return set(pq.read_schema(path).names) >= {name.split(".")[0] for name in columns(recipe)}
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
    here = local_folder(tokenizer)
    if not (fetch or here):
        return [f"prompts are not counted in tokens: {tokenizer} is not in the hub's cache yet"]
    try:
        with progress_bar() as progress:

            def watch(rows: Any, total: int) -> Any:
                return tracked(rows, progress, "tokens", total)

            train = tokens.count(folder / "train.parquet", str(here or tokenizer), text, watch)
            tokens.count(folder / "test.parquet", str(here or tokenizer), text, watch)
    except RecipeError as error:
        if here:
            raise
        return [f"prompts are not counted in tokens: {error.what}"]
    say(f"prompt tokens: {train.shortest} to {train.longest}; the limit is {limit}")
    return tokens.judged(train, limit, recipe.data.rollout_batch_size, where, "MAX_PROMPT_LENGTH")
