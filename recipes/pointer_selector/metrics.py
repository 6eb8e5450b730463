"""Where metrics go: a JSON-lines history that is only ever appended to, TensorBoard, and W&B."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Sink(Protocol):
    """A place for metrics."""

    def write(self, step: int, data: Mapping[str, float | str]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """`{"step": n, "data": {...}}` a line, as verl's own file logger writes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        self.file = path.open("a", encoding="utf-8")

    def write(self, step: int, data: Mapping[str, float | str]) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in data.items()}
        self.file.write(json.dumps({"step": step, "data": finite}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def write(self, step: int, data: Mapping[str, float | str]) -> None:
        for name, value in data.items():
            if not isinstance(value, str):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """Weights & Biases; offline without a login, so that it never waits for a key."""

    def __init__(self, folder: Path, project: str, experiment: str, config: dict[str, Any], mode: str) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=project, name=experiment, id=experiment, resume="allow", config=config, dir=str(folder), mode=mode
        )

    def write(self, step: int, data: Mapping[str, float | str]) -> None:
        self.run.log(dict(data), step=step)

    def close(self) -> None:
        self.run.finish()


class Sinks:
    """Several places at once."""

    def __init__(self, sinks: list[Sink]) -> None:
        self.sinks = sinks

    def write(self, step: int, data: Mapping[str, float | str]) -> None:
        for sink in self.sinks:
            sink.write(step, data)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def _end_last_line(path: Path) -> None:
    """A killed run may leave half a line; what is appended must not join it."""
    if path.is_file() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
