"""Where training stands: everything that a resumed run needs besides weights and optimiser."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Best:
    """A validation that was the best so far, and the checkpoint folder with its weights."""

    folder: str
    phase: str
    epoch: int
    step: int
    value: float


@dataclass
class Progress:
    """Counts and curves.

    Attributes:
        phase: "rce" or "grpo".
        entered: whether the phase's optimiser and tables exist.
        epoch: finished epochs of the phase.
        batch: finished batches of the epoch under way.
        step: updates of all phases.
        beta: weight of the KL term.
        sums: sums of the epoch's metrics so far, with their count under "batches".
        train_curve, validation_curve: the phase's value after each epoch, the state before the first one in front.
        best: best of all phases; `warm_up`: what GRPO began from.
        stale: epochs since the phase's best.
        ends: how each finished phase ended.
    """

    phase: str = "rce"
    entered: bool = False
    epoch: int = 0
    batch: int = 0
    step: int = 0
    beta: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    train_curve: list[float] = field(default_factory=list)
    validation_curve: list[float] = field(default_factory=list)
    best: Best | None = None
    warm_up: Best | None = None
    stale: int = 0
    ends: dict[str, str] = field(default_factory=dict)

    def begin(self, phase: str, beta: float) -> None:
        """Enter a phase."""
        self.phase, self.entered, self.beta = phase, True, beta
        self.epoch = self.batch = self.stale = 0
        self.sums, self.train_curve, self.validation_curve = {}, [], []

    def add(self, metrics: dict[str, float]) -> None:
        """Count one update and its metrics; of the largest ratio the largest is kept, of everything else the sum."""
        self.batch, self.step = self.batch + 1, self.step + 1
        for name, value in metrics.items():
            before = self.sums.get(name, 0.0)
            self.sums[name] = max(before, value) if name == "actor/ratio_max" else before + value
        self.sums["batches"] = self.sums.get("batches", 0.0) + 1

    def end_epoch(self) -> dict[str, float]:
        """Finish an epoch; returns the means of its metrics."""
        count = self.sums.pop("batches")
        means = {name: value if name == "actor/ratio_max" else value / count for name, value in self.sums.items()}
        self.epoch, self.batch, self.sums = self.epoch + 1, 0, {}
        return means

    def note(self, value: float, train_value: float, folder: str) -> bool:
        """Record a validation; true if it is the best of its phase. A later equal one is not better."""
        is_best = not self.validation_curve or value > max(self.validation_curve)
        self.validation_curve.append(value)
        self.train_curve.append(train_value)
        self.stale = 0 if is_best else self.stale + 1
        if self.best is None or value > self.best.value:
            self.best = Best(folder, self.phase, self.epoch, self.step, value)
        return is_best

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Progress:
        marks = {name: Best(**saved[name]) if saved[name] else None for name in ("best", "warm_up")}
        return cls(**{**saved, **marks})
