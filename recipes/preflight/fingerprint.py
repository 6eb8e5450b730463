"""Identity of a run: the content that its checkpoints depend on, and the settings that may change between attempts.

Content is compared by what it is, never by where it lies: the hash of rows, of a reward with its helpers, of a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from recipes.config import Recipe, path_keys
from recipes.config.rewards import functions
from recipes.config.schema import leaves
from recipes.model_files import local_model, weight_files
from recipes.paths import ROOT
from recipes.python_files import contents

SETTINGS = re.compile(
    r"monitor\..*|prepare|name|hardware|algorithm\.preset"
    r"|trainer\.(?!save_model_only).*"
    r"|data\.(train_files|val_.*|data_source|system_prompt|mini_rollout_batch_size|.*_workers)"
    r"|worker\.hybrid_engine"
    r"|worker\.(actor|ref)\.(micro_batch_.*|padding_free|dynamic_batching|max_token_len_.*|ulysses_size|offload\..*"
    r"|fsdp\.(enable_.*|use_orig_params|fsdp_size)|use_fused_kernels|use_torch_compile"
    r"|model\.(model_path|tokenizer_path|enable_gradient_checkpointing|use_liger|trust_remote_code))"
    r"|worker\.ref\.strategy"
    r"|worker\.rollout\.(name|gpu_memory_utilization|enforce_eager|enable_chunked_prefill|tensor_parallel_size"
    r"|max_model_len|max_num_.*|disable_.*|val_override_config\..*|cudagraph_.*|load_format|free_cache_engine"
    r"|enable_prefix_caching|calculate_log_probs|agent_num_workers|limit_images|engine_kwargs)"
    r"|worker\.reward\.(reward_function|num_.*|overlong_buffer\.log)"
)
"""Keys that change no run into another: steps, validation, saving, logging, memory, and paths, whose content counts."""
UNRECORDED = re.compile(
    r"trainer\.(experiment_name|save_checkpoint_path|load_checkpoint_path|find_last_checkpoint|.*_data_dir|ray_timeline)"
    r"|prepare|name"
)
"""Settings that say where a run is and how it was started; each attempt has its own."""
VERL_SETTINGS = re.compile(r"(trainer|ray_kwargs|global_profiler|transfer_queue)\..*")
"""verl's own keys that are settings too."""
TRAINING_ROWS, VALIDATION_ROWS, REWARD, MODEL = "training rows", "validation rows", "reward", "model"
SAMPLED, PIECES = 1 << 16, 32
"""Bytes of a piece of a weight file, and pieces that are looked at: an update of a model changes nearly every one."""


@dataclass(frozen=True)
class Fingerprint:
    """Content that one attempt trains.

    Attributes:
        content: name -> value; None where it cannot be known yet. A changed one makes another run.
        settings: key -> value of what may change.
    """

    content: dict[str, Any]
    settings: dict[str, Any]


def fingerprint(recipe: Recipe) -> Fingerprint:
    """Return what this recipe trains; reads its rows, its reward and pieces of its weights."""
    content: dict[str, Any] = {"engine": recipe.engine, "ranks": recipe.n_gpus, **_model(recipe)}
    content |= {REWARD: contents(functions(recipe)) or None, TRAINING_ROWS: _rows(recipe, "data.train_files")}
    content[VALIDATION_ROWS] = _rows(recipe, "data.val_files")
    settings: dict[str, Any] = {}
    for key, leaf in leaves(Recipe).items():
        if key in ("engine", "verl") or UNRECORDED.fullmatch(key) or not recipe.uses(key):
            continue
        value = recipe.value(key)
        if leaf.info.path and not SETTINGS.fullmatch(key):
            content[key] = _file(value)
        elif SETTINGS.fullmatch(key):
            settings[key] = _portable(value) if leaf.info.path else value
        else:
            content[key] = value
    for key, value in recipe.verl.items():
        (settings if VERL_SETTINGS.fullmatch(key.lstrip("+")) else content)[f"verl.{key}"] = value
    return Fingerprint(*(json.loads(json.dumps(part, default=str)) for part in (content, settings)))


def _model(recipe: Recipe) -> dict[str, Any]:
    """The content of the model: configuration, weights and tokenizer; None for what is not on this machine yet."""
    model = recipe.worker.actor.model
    folder = local_model(str(model.model_path))
    tokenizer = local_model(str(model.tokenizer_path)) if model.tokenizer_path else folder
    return {
        MODEL: _digest([_weights(file) for file in weight_files(folder)]) if folder else None,
        f"{MODEL}: config.json": _file(str(folder / "config.json")) if folder else None,
        f"{MODEL}: tokenizer": _tokenizer(tokenizer) if tokenizer else None,
    }


def _tokenizer(folder: Path) -> str:
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json", "vocab.json")
    return _digest([[name, _file(str(folder / name))] for name in names if (folder / name).is_file()])


def _weights(file: Path) -> list[Any]:
    """Name, size, and a hash of pieces of a file of weights, its head among them."""
    size = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        for piece in range(PIECES):
            opened.seek(piece * max(0, size - SAMPLED) // max(1, PIECES - 1))
            digest.update(opened.read(SAMPLED))
    return [file.name, size, digest.hexdigest()]


def _rows(recipe: Recipe, key: str) -> str | None:
    """The hash of a split's rows, whatever files they lie in; None where one is not here."""
    files = [entry.path for entry in path_keys(recipe) if entry.key == key]
    if not all(Path(file).is_file() for file in files):
        return None
    return _digest([_rows_of(file, os.stat(file).st_mtime_ns, os.stat(file).st_size) for file in files])


@lru_cache(maxsize=16)
def _rows_of(file: str, _mtime_ns: int, _size: int) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    digest = hashlib.sha256()
    try:
        with pq.ParquetFile(file) as opened:
            digest.update(str(opened.schema_arrow.remove_metadata()).encode())
            for batch in opened.iter_batches(4096):
                digest.update(batch.serialize())
    except (OSError, pa.ArrowException):
        return _file(file) or ""  # not finished rows; the checks of the data say so
    return digest.hexdigest()


def _file(path: str | None) -> str | None:
    """The hash of a file; None where there is none."""
    if path is None or not Path(path).is_file():
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _portable(path: Any) -> Any:
    """A path below the repository as it is relative to it."""
    if isinstance(path, list):
        return [_portable(entry) for entry in path]
    below = isinstance(path, str) and Path(path).is_absolute() and Path(path).is_relative_to(ROOT)
    return os.path.relpath(path, ROOT) if below else path
