"""Runs as their files show them, living or ended; nothing is written, and the trainer is not asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from recipes.config import Recipe, accounting, load, path_keys
from recipes.engines.checkpoints import Checkpoint, last_checkpoint
from recipes.errors import RecipeError, nearest
from recipes.monitor import rules
from recipes.monitor.early_stop import best_checkpoint
from recipes.monitor.metrics import Step, mean_validation, read_history, seconds_per_step, unreadable_lines
from recipes.monitor.rollouts import Rollouts
from recipes.paths import artifacts, checkpoint_dir, run_dir

State = Literal["starting", "running", "finished", "ended early"]
METRICS, CONFIG, LOG, LOCK = "metrics.jsonl", "config.yaml", "train.log", ".lock"


@dataclass(frozen=True)
class Run:
    """What a run's folder says.

    Attributes:
        folder: artifacts/runs/<experiment>.
        history: its steps.
        recipe: what it trains; None where config.yaml cannot be read.
        total: its steps, where known.
        state: running means that its launcher lives.
        notes: what could not be read, in sentences.
        checkpoint, best: the last one, and the kept best (step, value).
        silent_s: seconds since metrics or log changed; None for a run that has ended.
    """

    folder: Path
    history: list[Step]
    recipe: Recipe | None
    total: int | None
    state: State
    notes: tuple[str, ...]
    checkpoint: Checkpoint | None
    best: tuple[int, float] | None
    silent_s: float | None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def step(self) -> int:
        return max((step.step for step in self.history), default=0)

    @property
    def accuracy(self) -> float | None:
        """The last validation, mean over data sources."""
        return next((value for step in reversed(self.history) if (value := mean_validation(step)) is not None), None)

    @property
    def left_s(self) -> float | None:
        """Seconds to go, by the last steps; None where that is not known."""
        typical = seconds_per_step(self.history)
        if self.total is None or typical is None or self.state != "running":
            return None
        return max(0, self.total - self.step) * typical

    @property
    def rollouts(self) -> Path:
        """Folder of the training responses."""
        configured = self.recipe.trainer.rollout_data_dir if self.recipe else None
        return Path(configured) if configured and Path(configured).is_dir() else self.folder / "rollouts"

    def findings(self, rollouts: Rollouts | None = None) -> list[rules.Finding]:
        """What the health rules say; a caller that asks again and again keeps the `Rollouts`, which read files once."""
        steps = [step.step for step in self.history if step.step]
        measured = (rollouts or Rollouts(self.rollouts)).of(steps)
        return rules.findings(rules.evidence(self.history, self.recipe, measured, self.silent_s))


def folders() -> list[Path]:
    """The folders of all runs, the one that changed last first."""
    root = artifacts() / "runs"
    found = [path for path in root.iterdir() if _is_run(path)] if root.is_dir() else []
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _is_run(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (METRICS, CONFIG))


def find(name: str) -> Path:
    """The folder of a run, by its name or path. Raises RecipeError naming the nearest."""
    for folder in (run_dir(name), Path(name)):
        if name and _is_run(folder):
            return folder.absolute()
    there = [path.name for path in folders()]
    root = artifacts() / "runs"
    close = nearest(name, there)
    listed = f"use one of {', '.join(there[:10])}" if there else "start one first: bash examples/.../....sh"
    raise RecipeError(f"there is no run {name!r}", where=str(root), fix=f"did you mean {close}?" if close else listed)


def read(folder: Path) -> Run:
    """A run as its files are now; what cannot be read is a note."""
    files = [folder / METRICS, *sorted(folder.glob(".attempt-*.jsonl"))]
    history, notes = read_history(*files), []
    if torn := unreadable_lines(*files):
        notes.append(f"{torn} line{'s' * (torn != 1)} of {METRICS} cannot be read and are left out")
    recipe, total = None, None
    try:
        recipe = load(str(folder / CONFIG), environ={})
        total = accounting(recipe, _rows(recipe)).total_steps or None
    except RecipeError as error:
        notes.append(f"{CONFIG} cannot be read, another version may have written it: {error.what}")
    if history and not any("critic/score/mean" in step.data or mean_validation(step) is not None for step in history):
        notes.append(f"{METRICS} has no metric that is known here: another version or program may have written it")
    alive = _alive(folder / LOCK)
    step = max((step.step for step in history), default=0)
    state: State = ("running" if history else "starting") if alive else "ended early"
    if not alive and total and step >= total:
        state = "finished"
    saved = Path(recipe.trainer.save_checkpoint_path or "") if recipe else checkpoint_dir(folder.name)
    signs = [file.stat().st_mtime for file in (*files, folder / LOG) if file.is_file()]
    return Run(
        folder=folder,
        history=history,
        recipe=recipe,
        total=total,
        state=state,
        notes=tuple(notes),
        checkpoint=last_checkpoint(saved),
        best=best_checkpoint(saved),
        silent_s=max(0.0, time.time() - max(signs)) if alive and signs else None,
    )


def _rows(recipe: Recipe) -> int:
    """Training rows, from the files' footers; 0 where they are gone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files = [key.path for key in path_keys(recipe) if key.key == "data.train_files"]
        return sum(pq.read_metadata(file).num_rows for file in files)
    except (OSError, pa.ArrowInvalid):
        return 0


def _alive(lock: Path) -> bool:
    """Whether the launcher that wrote its process id into the lock file still runs. The lock itself is not touched."""
    try:
        pid = int(lock.read_text(encoding="utf-8"))
        # An id may have been given to another process since, which then began after the file was written.
        return psutil.Process(pid).create_time() <= lock.stat().st_mtime + 1.0
    except (OSError, ValueError, psutil.Error):
        return False


def newest(names: Sequence[str]) -> list[Path]:
    """The folders of the runs of these names; without a name, the one that changed last. Raises RecipeError."""
    if names:
        return [find(name) for name in names]
    return folders()[:1] or [find("")]
