"""Loggers (a JSON-lines history that is only appended to, TensorBoard, W&B), and what the metrics point at.

A logger has `write(step, data)` and `close()`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class MetricsFile:
    """`{"step": n, "data": {...}}` a line, as verl's own file logger writes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        half_a_line = path.is_file() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        self.file = path.open("a", encoding="utf-8")
        if half_a_line:  # of a killed run; what is appended must not join it
            self.file.write("\n")

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
        self.close = self.writer.close

    def write(self, step: int, data: Mapping[str, float | str]) -> None:
        for name, value in data.items():
            if not isinstance(value, str):
                self.writer.add_scalar(name, value, step)


class Wandb:
    """Weights & Biases; offline without a login, so that it never waits for a key."""

    def __init__(self, folder: Path, project: str, experiment: str, config: dict[str, Any], mode: str) -> None:
        import wandb

        self.run = wandb.init(
            project=project, name=experiment, id=experiment, resume="allow", config=config, dir=str(folder), mode=mode
        )
        self.close = self.run.finish

    def write(self, step: int, data: Mapping[str, float | str]) -> None:
        self.run.log(dict(data), step=step)


def memory_peak_mib() -> float:
    """Largest resident size of this process so far, in MiB; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)


KL_LOW, KL_HIGH = 0.01, 0.1
CLIPPED_HIGH, RATIO_HIGH, ZERO_VARIANCE_HIGH, ADVANTAGE_LOW = 0.3, 10.0, 0.5, 0.05


@dataclass(frozen=True)
class Finding:
    """What is wrong with a run, and what to try; `code` is stable, `text` is for people."""

    code: str
    text: str


def findings_of_epoch(data: Mapping[str, float], rising: bool = False) -> list[Finding]:
    """Findings on the means of one GRPO epoch; metrics that are absent are not judged.

    `rising`: the epoch validated best so far, so that a large KL or many clipped ratios are a price that pays.
    """
    findings: dict[str, str] = {}
    kl, beta = data.get("actor/kl_loss"), data.get("actor/kl_coef", 1.0)
    sampled = data.get("val-aux/pointer_selector/kl_on_policy")
    if kl is not None and kl < KL_LOW:
        remedy = "lower KL_BETA or raise GRPO_LR" if beta > 0 else "raise GRPO_LR or GRPO_EPOCHS"
        findings["kl_low"] = f"KL {kl:.4f} is below {KL_LOW}: the policy hardly leaves its start; {remedy}"
    if beta > 0 and kl is not None and sampled is not None and kl > KL_HIGH and kl > 3 * max(sampled, KL_LOW):
        findings["kl_inflated"] = (
            f"the penalty reads {kl:.3g}, but sampled sequences say the KL is {sampled:.2f}: candidates that the "
            "policy gave up inflate it; grpo.kl.over=policy weights them by how likely they still are"
        )
    elif beta > 0 and kl is not None and kl > KL_HIGH and not rising:  # without a weight nothing is to be held
        findings["kl_high"] = f"KL {kl:.3f} is above {KL_HIGH}: raise KL_BETA, lower GRPO_LR, or stop earlier"
    clipped = data.get("actor/pg_clipfrac", 0)
    if clipped > CLIPPED_HIGH and not rising:
        findings["clip_high"] = f"{clipped:.0%} of the ratios are clipped, which teaches nothing: lower GRPO_LR"
    ratio = data.get("actor/ratio_max", 1)
    if ratio > RATIO_HIGH:
        findings["ratio_high"] = f"a ratio reached {ratio:.0f}: updates within an epoch are too large"
    zero_variance = data.get("critic/silent_groups", 0)
    deviation = data.get("critic/advantages/std")
    if zero_variance > ZERO_VARIANCE_HIGH:
        findings["silent"] = f"{zero_variance:.0%} of the groups have equal rewards: use a graded reward"
    elif deviation is not None and deviation < ADVANTAGE_LOW:
        findings["advantage_small"] = (
            f"advantages have a deviation of {deviation:.3f}: rewards hardly differ within groups"
        )
    return [Finding(code, text) for code, text in findings.items()]


def findings_of_curves(train: list[float], validation: list[float]) -> list[Finding]:
    """Findings on a phase's curves, epoch by epoch and the state before it first: over-fitting, or no gain at all."""
    if len(validation) < 2:
        return []
    best = max(range(len(validation)), key=validation.__getitem__)
    fell = validation[best] - validation[-1]
    rose = train[-1] - train[best] if len(train) == len(validation) else 0.0
    findings = []
    if fell > 0.005 and rose > 0:
        text = f"over-fitting since epoch {best}: validation fell by {fell:.1%} while training rose by {rose:.1%}"
        findings.append(Finding("over_fit", f"{text}; the checkpoint of the best epoch is kept"))
    if best == 0:
        findings.append(Finding("no_gain", "no epoch of this phase was better on validation than its start"))
    return findings
