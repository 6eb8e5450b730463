"""The models that are evaluated: folders, checkpoints, names on the hub, models behind a server."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.engines.checkpoints import checkpoint_at, last_checkpoint, saved_steps
from recipes.errors import RecipeError, first_line
from recipes.evaluation.cache import hash_model
from recipes.evaluation.openai_server import Server, ServerSampler
from recipes.evaluation.questions import Question
from recipes.evaluation.vllm_engine import Engine, VllmSampler
from recipes.model_files import TOKENIZERS, weight_files
from recipes.paths import in_artifacts


def find_model(name: str, option: str = "--model_path") -> Path:
    """The folder of a model: a folder, a checkpoint, a run's checkpoints (the last whole step), or a hub name.

    Raises RecipeError where no such model is found, or it has no weights.
    """
    name = in_artifacts(name)
    path = Path(name).expanduser().absolute()
    folder = _exported(path, option) if path.exists() else _downloaded(name, path, option)
    if weight_files(folder):
        return folder
    merge = f"python -m verl.model_merger merge --backend fsdp --local_dir {folder.parent} --target_dir {folder}"
    sharded = any(folder.parent.glob("model_world_size_*.pt"))
    fix = merge if sharded else "train with trainer.save_hf_model=true, or name another folder"
    raise RecipeError(f"{folder} has a config.json but no weights", where=option, fix=fix)


def _exported(path: Path, option: str) -> Path:
    """The folder with config.json: the path itself, or `huggingface` below it or below a run's last whole step.

    The engine's tracker names a step only after all its files are written.
    """
    for folder in (path, path / "huggingface", path / "actor" / "huggingface"):
        if (folder / "config.json").exists():
            return folder
    named = last_checkpoint(path)
    steps = [checkpoint_at(path, step) for step in saved_steps(path) if named is None or step <= named.step]
    models = [step.model for step in steps if step and step.model]
    if not models:
        what = f"{path} is not a model: it has no config.json, and no step below it has actor/huggingface with weights"
        fix = "name a folder with config.json, weights and tokenizer, or train with trainer.save_hf_model=true"
        raise RecipeError(what, where=option, fix=fix)
    return models[-1]


def _downloaded(name: str, path: Path, option: str) -> Path:
    """The folder of a model of the hub, which is downloaded if it is not in the local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # No name of the hub is a step that is not there, or more than owner and name.
    for folder in (path, *path.parents):
        if folder.name.startswith("global_step_"):
            steps = ", ".join(map(str, saved_steps(folder.parent)))
            has = f"has the steps {steps}" if steps else "has no checkpoint"
            raise RecipeError(f"there is no {folder}", where=option, fix=f"{folder.parent} {has}")
    if name.count("/") > 1:
        fix = "name one that exists, or owner/name on the hub"
        raise RecipeError(f"there is no folder {name}", where=option, fix=fix)
    try:
        return Path(snapshot_download(name, ignore_patterns=["*.pth", "original/*", "*.gguf"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        what = f"there is no folder {name}, and the Hugging Face hub gave no model of that name"
        fix = f"check the name, which is owner/name on the hub, and the network ({first_line(error)})"
        raise RecipeError(what, where=option, fix=fix) from error


@dataclass(frozen=True)
class EvaluatedModel:
    label: str  # "model", or "base" and "trained" in a comparison
    name: str  # in reports
    model_hash: str  # identity for the cache
    source: Path | Server  # the model's folder, or the server that runs the model
    note: str = ""  # which model was taken in place of the one named, or a warning

    def generator(self, engine: Engine) -> str:
        """The generator's part of the cache key: vLLM or a server, with the settings that change the answers."""
        return engine.generator(server=isinstance(self.source, Server))

    @property
    def address(self) -> str:
        """Return where the model is: its folder, or the server's address."""
        return self.source.api_base if isinstance(self.source, Server) else str(self.source)

    def start(
        self, questions: Sequence[Question], max_tokens: int, engine: Engine, data: Path
    ) -> ServerSampler | VllmSampler:
        """A generator for this model."""
        if isinstance(self.source, Server):
            return ServerSampler(self.source, engine, max_tokens, questions)
        return VllmSampler(self.source, questions, max_tokens, engine, data)


def find_evaluated_model(label: str, name: str, option: str, server: Server | None = None) -> EvaluatedModel:
    """The model that `name` names, run by vLLM in this process, or by `server`.

    A model behind a server is identified by its weights if `name` is also a folder here, else by address and name.
    """
    path = Path(in_artifacts(name)).expanduser().absolute()
    if server and not path.exists():
        named = "\n".join(filter(None, [server.api_base, server.model, server.tokenizer]))
        identity = hashlib.sha256(named.encode()).hexdigest()
        note = "known by its name on the server only: after other weights took that name, use --fresh"
        return EvaluatedModel(label, server.model, identity, server, note)
    folder = find_model(name, option)
    if not server and not any((folder / file).is_file() for file in TOKENIZERS):
        raise RecipeError(f"{folder} has no tokenizer", where=option, fix="put its tokenizer's files there")
    note = f"{in_artifacts(name)} holds checkpoints; evaluating {folder}" if path.exists() and path != folder else ""
    parts, shown = folder.parts, folder.name
    if len(parts) > 3 and parts[-2:] == ("actor", "huggingface"):  # of a checkpoint: experiment and step
        shown = f"{parts[-4]} {parts[-3]}"
    elif len(parts) > 3 and parts[-2] == "snapshots":  # of the hub's cache
        shown = parts[-3].removeprefix("models--").replace("--", "/")
    source = replace(server, tokenizer=str(folder)) if server and server.tokenizer else server or folder
    return EvaluatedModel(label, shown, hash_model(folder), source, note)
