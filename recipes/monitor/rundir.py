"""The files of a run: `config.yaml`, `command.sh`, `metrics.jsonl`, `train.log`; and one launcher at a time."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from recipes.errors import RecipeError
from recipes.monitor.metrics import adopt_leftovers
from recipes.paths import run_dir


@dataclass(frozen=True)
class RunFiles:
    """Where a run writes."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def command(self) -> Path:
        return self.folder / "command.sh"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def attempt(self) -> Path:
        """Metrics of the attempt that runs now, as the trainer writes them."""
        return self.folder / f".attempt-{os.getpid()}.jsonl"


@contextmanager
def opened(experiment: str) -> Iterator[RunFiles]:
    """The run's files, for this launcher alone. Raises RecipeError while another launcher has them."""
    files = RunFiles(run_dir(experiment))
    files.folder.mkdir(parents=True, exist_ok=True)
    with (files.folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise RecipeError(
                f"the run {experiment} is going on already, in process {lock.read().strip() or '?'}",
                where=str(files.folder),
                fix="wait for it, stop it, or choose another EXPERIMENT_NAME",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        adopt_leftovers(sorted(files.folder.glob(".attempt-*.jsonl")), files.metrics)
        yield files
        adopt_leftovers([files.attempt] if files.attempt.is_file() else [], files.metrics)


def write(files: RunFiles, config: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Write what this attempt runs; an older attempt's differing configuration is kept under a number.

    Args:
        files: of the run.
        config: the resolved recipe, as YAML.
        command: the trainer's argument vector.
        environment: what the trainer gets beyond the launcher's own environment.

    Returns:
        The length of the log so far, where this attempt's part begins.
    """
    if files.config.is_file() and files.config.read_text(encoding="utf-8") != config:
        taken = len(list(files.folder.glob("config.*.yaml")))
        files.config.rename(files.folder / f"config.{taken + 1}.yaml")
    files.config.write_text(config, encoding="utf-8")
    files.command.write_text(script(command, environment), encoding="utf-8")
    files.command.chmod(0o755)
    with files.log.open("a", encoding="utf-8") as log:
        log.write(f"==== attempt of {datetime.now().astimezone().isoformat(timespec='seconds')}\n")
    return files.log.stat().st_size


def script(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The trainer's command as a script that runs by itself."""
    lines = ["#!/usr/bin/env bash", "# What the launcher started; it watches the trainer, this script does not."]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    first, *rest = command
    arguments = "".join(f" \\\n    {shlex.quote(argument)}" for argument in rest)
    return "\n".join([*lines, f"exec {shlex.quote(first)}{arguments}"]) + "\n"
