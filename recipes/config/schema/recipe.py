"""The whole recipe."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PrivateAttr

from recipes.config.layers import DEFAULT, Source
from recipes.config.schema.algorithm import Algorithm
from recipes.config.schema.data import Data
from recipes.config.schema.field import Section, key
from recipes.config.schema.trainer import Trainer
from recipes.config.schema.worker import Worker

EngineName = Literal["verl", "easyr1"]
Hardware = Literal["cpu", "gpu"]


class Recipe(Section):
    """A resolved recipe: every key has its value, and `source_of` says which layer set it."""

    name: str = key("recipe", "name of the recipe; default: the file's")
    engine: EngineName = key("verl", "trainer that runs the recipe")
    hardware: Hardware = key("cpu", "machine class, which chooses configs/hardware/HARDWARE.yaml")
    prepare: list[str] = key(list, "script and arguments that make the data when it is missing")
    data: Data = Data()
    algorithm: Algorithm = Algorithm()
    worker: Worker = Worker()
    trainer: Trainer = Trainer()
    verl: dict[str, Any] = key(dict, "verl's own keys, dotted, handed to it as they are")

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)
    _embedded_on: bool = PrivateAttr(default=False)

    @property
    def embedded_on(self) -> bool:
        """Whether the `embedded` block of the recipe (tiny model, tiny data) took part."""
        return self._embedded_on

    def source_of(self, path: str) -> Source:
        """The layer that set the key at `path`; the schema's default where none did."""
        return self._sources.get(path, DEFAULT)

    @property
    def sources(self) -> dict[str, Source]:
        """Every key that a layer set, with that layer."""
        return dict(self._sources)

    def value(self, path: str) -> Any:
        """The value at a dotted path, for instance `worker.rollout.n`."""
        found: Any = self
        for part in path.split("."):
            found = getattr(found, part)
        return found

    @property
    def n_gpus(self) -> int:
        """GPUs of all machines (ranks, without GPUs)."""
        return self.trainer.nnodes * self.trainer.n_gpus_per_node
