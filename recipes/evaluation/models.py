"""The models that are evaluated."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.cache import hash_model
from recipes.evaluation.questions import Question
from recipes.evaluation.sampling import Sampler
from recipes.evaluation.sampling.openai_server import Server, ServerSampler
from recipes.evaluation.sampling.vllm_engine import Engine, VllmSampler

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
EXPORTED = ("huggingface", "actor/huggingface", "global_step_*/actor/huggingface", "*/global_step_*/actor/huggingface")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Model:
    """`folder` holds the weights, `asked` is what the user wrote, `note` says what was taken instead of it."""

    folder: Path
    asked: str
    note: str = ""

    @property
    def name(self) -> str:
        """A short name for reports: the folder's, or experiment and step for a checkpoint."""
        parts = self.folder.parts
        if len(parts) > 3 and parts[-1] == "huggingface" and parts[-2] == "actor":
            return f"{parts[-4]} {parts[-3]}"
        if len(parts) > 3 and parts[-2] == "snapshots":
            return parts[-3].removeprefix("models--").replace("--", "/")
        return parts[-1]


def find_model(asked: str, option: str = "--model_path") -> Model:
    """The folder of a model: a path, a checkpoint's root with one exported model in it, or a name on the hub.

    Raises:
        RecipeError: there is none, it is not a model, it has no weights, or the root holds several.
    """
    path = Path(asked).expanduser()
    if path.is_file():
        raise RecipeError(f"{asked} is a file, not a model's folder", where=option, fix=f"use {path.parent}")
    if not path.exists():
        return _from_hub(asked, option)
    path = path.absolute()
    if (path / "config.json").exists():
        return Model(_with_weights(path, option), asked)
    found = sorted((folder for folder in _exported(path)), key=_step)
    if not found:
        raise RecipeError(
            f"{asked} is not a model: it has no config.json, and no actor/huggingface below it",
            where=option,
            fix="name a folder with config.json, weights and tokenizer, such as global_step_<n>/actor/huggingface",
        )
    if len(found) > 1:
        raise RecipeError(
            f"{asked} holds {len(found)} models: {', '.join(str(folder.relative_to(path)) for folder in found)}",
            where=option,
            fix=f"name one of them; the last is {found[-1]}",
        )
    return Model(
        _with_weights(found[0], option), asked, f"{asked} is a checkpoint's root; evaluating {found[0]}, its only model"
    )


def _exported(root: Path) -> list[Path]:
    return [path for pattern in EXPORTED for path in root.glob(pattern) if (path / "config.json").exists()]


def _step(folder: Path) -> tuple[int, str]:
    step = re.search(r"global_step_(\d+)", str(folder))
    return (int(step.group(1)) if step else -1, str(folder))


def _with_weights(folder: Path, option: str) -> Path:
    if any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
        return folder
    shards = next(folder.parent.glob("model_world_size_*.pt"), None)
    raise RecipeError(
        f"{folder} has a config.json but no weights",
        where=option,
        fix=f"merge the shards beside it: python -m verl.model_merger merge --backend fsdp --local_dir {folder.parent} "
        f"--target_dir {folder}"
        if shards
        else "train with worker.actor.checkpoint.save_contents holding hf_model, or name another folder",
    )


def _from_hub(asked: str, option: str) -> Model:
    if not HUB_ID.fullmatch(asked):
        raise RecipeError(f"there is no model {asked}", where=option, fix="name a folder, or owner/name on the hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(asked, ignore_patterns=["*.pth", "original/*", "*.gguf"])
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RecipeError(
            f"there is no folder {asked}, and the Hugging Face hub did not give such a model",
            where=option,
            fix=f"check the name and the network ({reason})",
        ) from error
    return Model(_with_weights(Path(folder), option), asked)


@dataclass(frozen=True)
class Subject:
    """A model under evaluation.

    Attributes:
        label: "model", or "base" and "trained" in a comparison.
        name: for people; `asked`: what the user wrote; `note`: what was taken instead, or what to beware of.
        model_hash: identity for the cache.
        source: the model's folder, or the server that has it.
    """

    label: str
    name: str
    asked: str
    model_hash: str
    source: Path | Server
    note: str = ""

    @property
    def generator(self) -> str:
        """ "vllm" or "server"."""
        return "server" if isinstance(self.source, Server) else "vllm"

    def start(self, questions: Sequence[Question], max_tokens: int, engine: Engine) -> Sampler:
        """A generator for this model; the engine's settings matter only in this process."""
        if isinstance(self.source, Server):
            return ServerSampler(self.source)
        return VllmSampler(self.source, questions, max_tokens, engine)

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        where = self.source.api_base if isinstance(self.source, Server) else str(self.source)
        return {
            "name": self.name,
            "asked": self.asked,
            "hash": self.model_hash,
            "generator": self.generator,
            "source": where,
            "note": self.note,
        }


def local_subject(label: str, asked: str, option: str) -> Subject:
    """A model that vLLM runs in this process."""
    model = find_model(asked, option)
    return Subject(label, model.name, asked, hash_model(model.folder), model.folder, model.note)


def server_subject(label: str, asked: str, option: str, server: Server) -> Subject:
    """A model that a server has. Its identity: the weights where `asked` is a folder here too, else the name."""
    if Path(asked).expanduser().exists():
        model = find_model(asked, option)
        return Subject(label, model.name, asked, hash_model(model.folder), server, model.note)
    if not asked:
        raise RecipeError("no model is named", where=option, fix="name the model that the server has")
    identity = hashlib.sha256(f"{server.api_base}\n{server.model}".encode()).hexdigest()
    note = "known by its name on the server only: after other weights took that name, use --fresh"
    return Subject(label, server.model, asked, identity, server, note)
