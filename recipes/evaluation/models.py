"""The models that are evaluated: folders, checkpoints, names on the hub, models behind a server."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.engines.checkpoints import last_checkpoint
from recipes.errors import RecipeError
from recipes.evaluation.cache import hash_model
from recipes.evaluation.openai_server import Server, ServerSampler
from recipes.evaluation.questions import Question
from recipes.evaluation.sampling import Sampler
from recipes.evaluation.vllm_engine import Engine, VllmSampler
from recipes.model_files import weight_files

EXPORTED = ("huggingface", "actor/huggingface", "global_step_*/actor/huggingface", "*/global_step_*/actor/huggingface")


@dataclass(frozen=True)
class Model:
    """A folder with weights; `note` says which model was taken in place of the one that the user named."""

    folder: Path
    note: str = ""

    @property
    def name(self) -> str:
        """A short name for reports: the folder's, or experiment and step for a checkpoint."""
        parts = self.folder.parts
        if len(parts) > 3 and parts[-2:] == ("actor", "huggingface"):
            return f"{parts[-4]} {parts[-3]}"
        if len(parts) > 3 and parts[-2] == "snapshots":
            return parts[-3].removeprefix("models--").replace("--", "/")
        return parts[-1]


def find_model(asked: str, option: str = "--model_path") -> Model:
    """The folder of a model: a path, a run's checkpoints (the last whole step), or a name on the hub.

    Raises:
        RecipeError: there is none, it has no weights, or the folder holds the checkpoints of several runs. For a step
            that does not exist the message lists the steps of its own run.
    """
    path, note = Path(asked).expanduser().absolute(), ""
    step = next((folder for folder in (path, *path.parents) if folder.name.startswith("global_step_")), None)
    if not path.exists() and step:
        raise RecipeError(
            f"there is no {asked}; the checkpoints of {step.parent.name}: {_listed(step.parent)}",
            where=option,
            fix=f"name one of them, or {step.parent}, whose last whole step is taken",
        )
    if not path.exists():
        path = _downloaded(asked, option)
    elif not (path / "config.json").exists():
        root, path = path, _last_whole(path, option)
        several = len(_exported(root)) > 1
        note = f"{asked} is a checkpoint's root; evaluating {path}, its {'last whole' if several else 'only'} model"
        if several and path.parents[2] != root:
            raise RecipeError(
                f"{asked} holds several models: {_listed(root)}",
                where=option,
                fix=f"name one of them, or the folder of one run, whose last whole step is taken; the last is {path}",
            )
    if weight_files(path):
        return Model(path, note)
    merge = f"python -m verl.model_merger merge --backend fsdp --local_dir {path.parent} --target_dir {path}"
    sharded = any(path.parent.glob("model_world_size_*.pt"))
    raise RecipeError(
        f"{path} has a config.json but no weights",
        where=option,
        fix=merge if sharded else "train with trainer.save_hf_model=true, or name another folder",
    )


def _last_whole(root: Path, option: str) -> Path:
    """Return the last complete model: the engine's tracker names a step only after all its files are written."""
    models, named = _exported(root), last_checkpoint(root)
    if not models:
        raise RecipeError(
            f"{root} is not a model: it has no config.json, and no actor/huggingface below it",
            where=option,
            fix="name a folder with config.json, weights and tokenizer, such as global_step_<n>/actor/huggingface",
        )
    whole = [model for model in models if weight_files(model) and (named is None or _step(model) <= named.step)]
    return (whole or models)[-1]


def _exported(root: Path) -> list[Path]:
    """The exported models below a folder, by step."""
    folders = [path for pattern in EXPORTED for path in root.glob(pattern) if (path / "config.json").exists()]
    return sorted(folders, key=lambda path: (_step(path), str(path)))


def _step(model: Path) -> int:
    """The step that the folder `global_step_<n>/actor/huggingface` names; -1 where it names none."""
    step = re.fullmatch(r"global_step_(\d+)", model.parent.parent.name)
    return int(step[1]) if step else -1


def _listed(root: Path) -> str:
    return ", ".join(str(folder.relative_to(root)) for folder in _exported(root)) or "none"


def _downloaded(name: str, option: str) -> Path:
    """The folder of a model of the hub, downloaded where it is not in the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, ignore_patterns=["*.pth", "original/*", "*.gguf"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RecipeError(
            f"there is no folder {name}, and the Hugging Face hub gave no model of that name",
            where=option,
            fix=f"check the name, which is owner/name on the hub, and the network ({reason})",
        ) from error


@dataclass(frozen=True)
class Subject:
    """A model under evaluation.

    Attributes:
        label: "model", or "base" and "trained" in a comparison.
        name: for reports; `asked`: the user's text; `note`: the model taken in its place, or a warning.
        model_hash: identity for the cache.
        source: the model's folder, or the server that has it.
    """

    label: str
    name: str
    asked: str
    model_hash: str
    source: Path | Server
    note: str = ""

    def generator(self, engine: Engine) -> str:
        """Return the generator's part of the cache key: vLLM or a server, with the settings that change the answers."""
        return engine.generator(server=isinstance(self.source, Server))

    @property
    def address(self) -> str:
        """Return where the model is: its folder, or the server's address."""
        return self.source.api_base if isinstance(self.source, Server) else str(self.source)

    def start(self, questions: Sequence[Question], max_tokens: int, engine: Engine) -> Sampler:
        """A generator for this model; the engine's settings matter only in this process."""
        if isinstance(self.source, Server):
            return ServerSampler(self.source, engine)
        return VllmSampler(self.source, questions, max_tokens, engine)


def find_subject(label: str, asked: str, option: str, server: Server | None = None) -> Subject:
    """The model that `asked` names, run by vLLM in this process, or by `server`.

    A model behind a server is identified by its weights where `asked` is a folder here too, otherwise by its name.
    """
    if server and not Path(asked).expanduser().exists():
        identity = hashlib.sha256(f"{server.api_base}\n{server.model}".encode()).hexdigest()
        note = "known by its name on the server only: after other weights took that name, use --fresh"
        return Subject(label, server.model, asked, identity, server, note)
    model = find_model(asked, option)
    return Subject(label, model.name, asked, hash_model(model.folder), server or model.folder, model.note)
