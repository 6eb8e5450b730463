"""Metrics of a run: written as JSON lines and for TensorBoard, and judged after every epoch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from recipes.files import write_whole

Metrics = Mapping[str, float | str]
KL_LOW, KL_HIGH = 0.01, 0.1
"""The band of `actor/kl_loss` that the adaptive weight aims at."""
KL_ON_POLICY = "val-aux/pointer_selector/kl_on_policy"


class RunLog:
    """`metrics.jsonl`, and TensorBoard's files where tensorboard is installed.

    Args:
        folder: of the run.
        after: steps up to this one are kept; later ones are of a phase that was interrupted and is trained again.
    """

    def __init__(self, folder: Path, after: int) -> None:
        path = folder / "metrics.jsonl"
        kept = []
        for line in path.read_bytes().splitlines(keepends=True) if after and path.is_file() else ():
            if not line.endswith(b"\n") or json.loads(line)["step"] > after:
                break
            kept.append(line.decode())
        write_whole(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._board = None
        else:
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

    def write(self, step: int, metrics: Metrics) -> None:
        """Append the metrics of one step; numbers that are not finite are null in the file."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        self._file.write(json.dumps({"step": step, "data": finite}) + "\n")
        self._file.flush()
        for name, value in metrics.items() if self._board else ():
            if self._board and not isinstance(value, str):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Close both."""
        self._file.close()
        if self._board:
            self._board.close()


def findings(metrics: Mapping[str, float], rising: bool) -> list[str]:
    """Return what the means of an epoch of GRPO say; metrics that are absent are not judged.

    A large KL or many clipped ratios are no finding while validation is `rising`, the best of its phase.
    """
    if "actor/kl_loss" not in metrics:
        return []
    kl, beta, clipped = (metrics[f"actor/{name}"] for name in ("kl_loss", "kl_coef", "pg_clipfrac"))
    sampled, ratio, equal = metrics.get(KL_ON_POLICY, kl), metrics["actor/ratio_max"], metrics["critic/equal_groups"]
    raise_kl = beta > 0 and kl > KL_HIGH
    inflated = raise_kl and kl > 3 * max(sampled, KL_LOW)
    rules = {
        f"KL {kl:.4f} is below {KL_LOW}: the policy hardly leaves its start; raise GRPO_LR": kl < KL_LOW,
        f"the penalty reads {kl:.3g}, but sampled sequences have {sampled:.2f}: candidates that the policy gave "
        "up inflate it; see grpo.kl.over=policy": inflated,
        f"KL {kl:.3f} is above {KL_HIGH}: raise KL_BETA, or lower GRPO_LR": raise_kl and not inflated and not rising,
        f"{clipped:.0%} of the ratios are clipped: lower GRPO_LR": clipped > 0.3 and not rising,
        f"a ratio reached {ratio:.0f}: updates within an epoch are too large": ratio > 10,
        f"{equal:.0%} of the groups have equal rewards: use a graded reward": equal > 0.5,
    }
    return [text for text, holds in rules.items() if holds]


def over_fitting(train: Sequence[float], validation: Sequence[float]) -> list[str]:
    """Return what a phase's curves say, the state before its first epoch included: over-fitting, or no gain."""
    if len(validation) < 2:
        return []
    best = max(range(len(validation)), key=validation.__getitem__)
    fell, rose = validation[best] - validation[-1], train[-1] - train[best]
    found = ["no epoch of this phase was better on validation than its start"] if best == 0 else []
    if fell > 0.005 and rose > 0:
        found.append(f"over-fitting since epoch {best}: validation fell by {fell:.1%}, training rose by {rose:.1%}")
    return found
