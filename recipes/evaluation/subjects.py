"""Who is asked: a model with its identity for the cache, and how to start a generator for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.cache import hash_model
from recipes.evaluation.models import find_model
from recipes.evaluation.questions import Question
from recipes.evaluation.sampling import Sampler
from recipes.evaluation.sampling.openai_server import Server, ServerSampler
from recipes.evaluation.sampling.vllm_engine import Engine, VllmSampler


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
