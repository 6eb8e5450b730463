"""Identity of a run: the content that its checkpoints depend on, and the settings that may change between attempts.

Content is compared by digests, never by paths: of the rows, of the reward with its helpers, and of the model.
`KeyInfo.resume` and `KeyInfo.fixed` define what a key's changed value means; this module, what other content's does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.config.names import NATIVE, native, verl_defaults
from recipes.config.rewards import reward_call
from recipes.config.schema import leaves
from recipes.data.rows import rows_digest
from recipes.files import json_sha256, sha256
from recipes.model_files import PROCESSOR_FILES, TOKENIZER_FILES, local_model, weight_files
from recipes.rewards.identity import named_files, reward_files
from recipes.runs.folder import Change
from recipes.settings import VERL

TRAINING_ROWS, VALIDATION_ROWS, REWARD, RANKS, MODEL = "training rows", "validation rows", "reward", "ranks", "model"
CONFIG, TOKENIZER, PROCESSOR, CODE, GENERATION = (
    f"{MODEL}: {part}" for part in ("config.json", "tokenizer", "processor", "code", "generation_config.json")
)
OF_MODEL = (MODEL, CONFIG)
"""Content that is no key and belongs to the model that a run began from."""
FIXED = {
    RANKS: "each rank wrote a file of its own, so their number is fixed",
    **dict.fromkeys(OF_MODEL, "the checkpoint belongs to that model"),
}
"""Content that is no key and whose change makes checkpoints impossible to resume -> why."""
ORDER = (TRAINING_ROWS, TOKENIZER, PROCESSOR)
"""Content that is no key and decides the order of the rows."""
_VERL_SETTINGS = re.compile(r"(trainer|ray_kwargs|global_profiler|transfer_queue)\..*|data\.val_.*")
"""verl's own keys that are settings. All others are content; those of them below `data` decide the order of rows."""
SAMPLED, PIECES = 1 << 16, 32
"""Bytes of a piece of a weight file, and number of pieces that are read: an update of the model changes nearly all."""


@dataclass(frozen=True)
class Attempt:
    """Content and settings of an attempt, which trained from the step after `after_step` on."""

    after_step: int
    content: dict[str, Any]  # name -> value; None where it cannot be known yet. A changed value makes another run
    settings: dict[str, Any]  # key -> value, for the keys that may change between attempts


def fingerprint(recipe: Recipe) -> Attempt:
    """Return the attempt of this recipe from its first step on; reads rows, reward and pieces of the weights."""
    reward = reward_call(recipe)
    content: dict[str, Any] = {RANKS: recipe.n_gpus, **_model(recipe)}
    content |= {
        REWARD: reward_files(*reward, recipe.engine) if reward else None,
        TRAINING_ROWS: rows_digest(recipe, "data.train_files"),
        VALIDATION_ROWS: rows_digest(recipe, "data.val_files"),
    }
    settings: dict[str, Any] = {}
    for key, leaf in leaves(Recipe).items():
        value = recipe.value(key)
        if key == VERL or leaf.info.resume == "place" or not recipe.uses(key):
            continue
        if leaf.info.resume == "setting":
            settings[key] = value
        else:
            content[key] = _file(value) if leaf.info.path else value
    for name, value in native(recipe).items():
        if _VERL_SETTINGS.fullmatch(name):
            settings[f"{NATIVE}{name}"] = value
        else:
            content |= {f"{NATIVE}{name}": value, **named_files(value, f"the file of {name}")}
    return Attempt(0, *(json.loads(json.dumps(part, default=str)) for part in (content, settings)))


TAKES_EFFECT, DATA_ANEW = "takes effect", "takes effect; the data begins anew"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, content: bool) -> list[Change]:
    """Return what differs between the content, or the settings, of two attempts, and what becomes of it.

    A key of verl's that one side lacks has verl's default there. Any other name that one side lacks is not compared,
    nor is a digest that could not be made.
    """
    found = []
    for name in dict.fromkeys((*new, *old)):
        default = verl_defaults().get(name.removeprefix(NATIVE)) if name.startswith(NATIVE) else None
        one, other = old.get(name, default), new.get(name, default)
        is_key = name in leaves(Recipe) and name in old and name in new
        if one != other and (is_key or name.startswith(NATIVE) or None not in (one, other)):
            effect = DATA_ANEW if content and _decides_order(name) else TAKES_EFFECT
            found.append(Change(name, one, other, effect, content))
    return found


def why_fixed(name: str) -> str:
    """Return why no checkpoint can be resumed with another value; empty where it can."""
    leaf = leaves(Recipe).get(name)
    return leaf.info.fixed if leaf else FIXED.get(name, "")


def _decides_order(name: str) -> bool:
    """Return whether content decides the order of the rows; if it changed, the saved dataloader state is useless."""
    leaf = leaves(Recipe).get(name)
    return leaf.info.resume == "order" if leaf else name in ORDER or name.startswith(f"{NATIVE}data.")


def _model(recipe: Recipe) -> dict[str, Any]:
    """The content of the model, its tokenizer and its own code; None for what is not on this machine yet."""
    model = recipe.worker.actor.model
    folder = local_model(str(model.model_path))
    words = local_model(str(model.tokenizer_path)) if model.tokenizer_path else folder
    code = sorted(folder.glob("*.py")) if folder and model.trust_remote_code else []
    return {
        MODEL: json_sha256([_weights(file) for file in weight_files(folder)]) if folder else None,
        CONFIG: _file(folder / "config.json") if folder else None,
        GENERATION: _file(folder / "generation_config.json") or "" if folder else None,  # "": there is none
        TOKENIZER: _files(words / name for name in TOKENIZER_FILES) if words else None,
        PROCESSOR: _files(words / name for name in PROCESSOR_FILES) if words else None,
        CODE: _files(code) if folder else None,
    }


def _weights(file: Path) -> list[Any]:
    """Name and size of a weight file, and a digest of pieces of it, its first bytes included."""
    size = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        for piece in range(PIECES):
            opened.seek(piece * max(0, size - SAMPLED) // max(1, PIECES - 1))
            digest.update(opened.read(SAMPLED))
    return [file.name, size, digest.hexdigest()]


def _files(files: Iterable[Path]) -> str:
    return json_sha256([[file.name, sha256(file)] for file in files if file.is_file()])


def _file(path: str | Path | None) -> str | None:
    """The digest of a file; None where there is none."""
    return sha256(Path(path)) if path and Path(path).is_file() else None
