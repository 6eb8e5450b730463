"""Destinations of metrics (an append-only history, TensorBoard, W&B), and what they point at."""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TextIO

from recipes.errors import RecipeError
from recipes.pointer_selector.config import PointerRecipe

if TYPE_CHECKING:
    import wandb
    from torch.utils.tensorboard import SummaryWriter

Metrics = Mapping[str, float | str]


class RunLog:
    """Write the metrics of a run to its folder: `metrics.jsonl`, as verl's file logger does, TensorBoard, W&B.

    Raises:
        RecipeError: a logger that was asked for is not installed.
    """

    def __init__(self, folder: Path, recipe: PointerRecipe) -> None:
        self._closing = ExitStack()
        self._file: TextIO | None = None
        self._board: SummaryWriter | None = None
        self._run: wandb.Run | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for name in recipe.trainer.logger:
            try:
                getattr(self, f"_open_{name}")(folder, recipe)
            except ImportError as error:
                fix = f"pip install {name}, or leave it out of LOGGER"
                raise RecipeError(f"the logger {name} is not installed", where="trainer.logger", fix=fix) from error

    def _open_console(self, folder: Path, recipe: PointerRecipe) -> None:
        """Do nothing: the command prints a line an epoch in any case."""

    def _open_file(self, folder: Path, recipe: PointerRecipe) -> None:
        path = folder / "metrics.jsonl"
        half_a_line = path.is_file() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        self._file = self._closing.enter_context(path.open("a", encoding="utf-8"))
        if half_a_line:  # of a killed run; what is appended must not join it
            self._file.write("\n")

    def _open_tensorboard(self, folder: Path, recipe: PointerRecipe) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(folder / "tensorboard"))
        self._closing.callback(self._board.close)

    def _open_wandb(self, folder: Path, recipe: PointerRecipe) -> None:
        import wandb

        project = recipe.trainer.project_name
        mode: Literal["offline"] | None = None if os.environ.get("WANDB_MODE") or wandb.api.api_key else "offline"
        name, config = recipe.trainer.experiment_name, recipe.model_dump()
        run = wandb.init(project=project, name=name, id=name, resume="allow", config=config, dir=str(folder), mode=mode)
        self._run = run
        self._closing.callback(run.finish)

    def write(self, step: int, data: Metrics) -> None:
        """Append the metrics of one step; numbers that are not finite are null in the file."""
        if self._file is not None:
            finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in data.items()}
            self._file.write(json.dumps({"step": step, "data": finite}) + "\n")
            self._file.flush()
        if self._board is not None:
            for name, value in data.items():
                if not isinstance(value, str):
                    self._board.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log(dict(data), step=step)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()


def memory_peak_mib() -> float:
    """Return the largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


KL_LOW, KL_HIGH = 0.01, 0.1
CLIPPED_HIGH, RATIO_HIGH, ZERO_VARIANCE_HIGH, ADVANTAGE_LOW = 0.3, 10.0, 0.5, 0.05


def findings_of_epoch(data: Mapping[str, float], rising: bool = False) -> list[str]:
    """Return findings on the means of one GRPO epoch; metrics that are absent are not judged.

    A large KL or many clipped ratios are no finding while validation is `rising`, the best of its phase.
    """
    findings = []
    kl, beta = data.get("actor/kl_loss"), data.get("actor/kl_coef", 1.0)
    sampled = data.get("val-aux/pointer_selector/kl_on_policy")
    if kl is not None and kl < KL_LOW:
        remedy = "lower KL_BETA or raise GRPO_LR" if beta > 0 else "raise GRPO_LR or GRPO_EPOCHS"
        findings.append(f"KL {kl:.4f} is below {KL_LOW}: the policy hardly leaves its start; {remedy}")
    if beta > 0 and kl is not None and sampled is not None and kl > KL_HIGH and kl > 3 * max(sampled, KL_LOW):
        findings.append(
            f"the penalty reads {kl:.3g}, but sampled sequences say the KL is {sampled:.2f}: candidates that the "
            "policy gave up inflate it; grpo.kl.over=policy weights them by how likely they still are"
        )
    elif beta > 0 and kl is not None and kl > KL_HIGH and not rising:  # without a weight nothing is to be held
        findings.append(f"KL {kl:.3f} is above {KL_HIGH}: raise KL_BETA, lower GRPO_LR, or stop earlier")
    clipped = data.get("actor/pg_clipfrac", 0)
    if clipped > CLIPPED_HIGH and not rising:
        findings.append(f"{clipped:.0%} of the ratios are clipped, which teaches nothing: lower GRPO_LR")
    ratio = data.get("actor/ratio_max", 1)
    if ratio > RATIO_HIGH:
        findings.append(f"a ratio reached {ratio:.0f}: updates within an epoch are too large")
    zero_variance = data.get("critic/equal_groups", 0)
    deviation = data.get("critic/advantages/std")
    if zero_variance > ZERO_VARIANCE_HIGH:
        findings.append(f"{zero_variance:.0%} of the groups have equal rewards: use a graded reward")
    elif deviation is not None and deviation < ADVANTAGE_LOW:
        findings.append(f"advantages have a deviation of {deviation:.3f}: rewards hardly differ within groups")
    return findings


def findings_of_curves(train: Sequence[float], validation: Sequence[float]) -> list[str]:
    """Return findings on a phase's curves, the state before its first epoch included: over-fitting, or no gain."""
    if len(validation) < 2:
        return []
    best = max(range(len(validation)), key=validation.__getitem__)
    fell = validation[best] - validation[-1]
    rose = train[-1] - train[best] if len(train) == len(validation) else 0.0
    findings = []
    if fell > 0.005 and rose > 0:
        text = f"over-fitting since epoch {best}: validation fell by {fell:.1%} while training rose by {rose:.1%}"
        findings.append(f"{text}; the checkpoint of the best epoch is kept")
    if best == 0:
        findings.append("no epoch of this phase was better on validation than its start")
    return findings
