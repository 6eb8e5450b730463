"""The loop: RCE warm-up, then GRPO, with validation after every epoch, early stop, best checkpoint and exact resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.errors import RecipeError
from recipes.files import write_whole
from recipes.pointer_selector import checkpoints, losses
from recipes.pointer_selector.config import CurriculumConfig, GrpoConfig, KlConfig, PointerRecipe, RceConfig
from recipes.pointer_selector.dataset import Batch, PointerData, collate, shuffled
from recipes.pointer_selector.evaluation import Validator, logged_log_probs
from recipes.pointer_selector.metrics import Metrics, RunLog, findings_of_curves, findings_of_epoch
from recipes.pointer_selector.policy import PointerPolicy
from recipes.pointer_selector.workload import FrozenModel

LOGGED_BATCH = 64
"""Queries in a batch where no gradient is needed."""


def tau(step: int, total: int, start: float, end: float) -> float:
    """Return RCE's temperature at a step, linear from `start` at step 0 to `end` at the last one."""
    if total <= 1:
        return end
    return start + (end - start) * min(1.0, max(0.0, step / (total - 1)))


def learning_rate(step: int, total: int, peak: float, warmup_share: float) -> float:
    """Return the rate at a step: linear warm-up over the first share of the steps, then a half cosine to 0."""
    warmup = max(1, round(warmup_share * total))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def next_beta(beta: float, kl: float, config: KlConfig) -> float:
    """Return the adaptive weight of the KL: times `factor` above the target band, divided by it below, within bounds.

    Source: the adaptive KL controller of Schulman et al., PPO (2017), section 4, with a band for a target.
    """
    if not config.adaptive:
        return beta
    if kl > config.target_high:
        beta *= config.factor
    elif kl < config.target_low:
        beta /= config.factor
    return min(config.beta_max, max(config.beta_min, beta))


def candidates_kept(epoch: int, epochs: int, config: CurriculumConfig) -> int:
    """Return the number of each group's best candidates that take part in this epoch, from 0; 0 means all."""
    return config.early_candidates if epoch < config.early_share * epochs else config.late_candidates


@dataclass(frozen=True)
class Tables:
    """Numbers of the logged candidates that stay the same during an epoch; the warm-up has rewards only."""

    rewards: Tensor  # [M]
    old: Tensor | None = None  # [M, S], log-probabilities when the epoch began
    reference: Tensor | None = None  # [M, S], log-probabilities of the warm-up policy


Loss = tuple[Tensor, dict[str, Tensor | float]]


def rce_step(policy: PointerPolicy, batch: Batch, tables: Tables, temperature: float) -> Loss:
    """Return the warm-up's loss on a batch, and its metrics."""
    rewards, mask, steps = _groups(batch, tables)
    log_probs, entropies = policy.of_batch(batch)
    loss = losses.rce_loss(batch.picks_by_group(log_probs), steps, rewards, mask, temperature)
    return loss, {
        "actor/rce_loss": loss.detach(),
        "actor/rce_tau": temperature,
        "actor/entropy": entropies.sum() / batch.steps.sum(),
        "critic/rewards/mean": rewards[mask].mean(),
    }


def grpo_step(policy: PointerPolicy, batch: Batch, tables: Tables, config: GrpoConfig, beta: float, keep: int) -> Loss:
    """Return GRPO's loss with KL weight `beta` on each group's `keep` best candidates (0: all), and its metrics."""
    rewards, mask, steps = _groups(batch, tables)
    mask = losses.keep_top_candidates(rewards, mask, keep)
    advantages, zero_variance = losses.group_advantages(
        rewards, mask, config.advantage, floor=config.advantage_floor, clip=config.advantage_clip
    )
    log_probs, entropies = policy.of_batch(batch)
    loss, metrics = losses.grpo_loss(
        batch.picks_by_group(log_probs),
        _logged(tables.old, batch, steps),
        _logged(tables.reference, batch, steps),
        advantages,
        steps,
        mask,
        clip=config.clip,
        kl_beta=beta,
        level=config.level,
        kl_over=config.kl.over,
    )
    values = advantages[mask]
    return loss, {
        **metrics,
        "actor/kl_coef": beta,
        "actor/entropy": entropies.sum() / batch.steps.sum(),
        "critic/rewards/mean": rewards[mask].mean(),
        "critic/advantages/mean": values.mean(),
        "critic/advantages/std": values.std(unbiased=False),
        "critic/advantages/max": values.max(),
        "critic/advantages/min": values.min(),
        "critic/equal_groups": zero_variance.to(values.dtype).mean(),
    }


def _groups(batch: Batch, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards [G, N], candidates [G, N] and picks [G, N, S] of a batch, group by group."""
    rewards = tables.rewards[batch.rows.cpu()].to(batch.query)
    return batch.by_group(rewards), batch.by_group(batch.candidates), batch.picks_by_group(batch.steps)


def _logged(table: Tensor | None, batch: Batch, steps: Tensor) -> Tensor:
    """Return the rows of a table [M, S] that a batch holds, by group [G, N, S]."""
    if table is None:
        raise ValueError("GRPO has entered without the log-probabilities of the logged candidates")
    values = table[batch.rows.cpu()][..., : steps.shape[-1]].to(batch.query.device)
    return batch.by_group(values).masked_fill(~steps, 0.0)


def update(
    policy: PointerPolicy, optimizer: torch.optim.Optimizer, loss: Tensor, lr: float, max_grad_norm: float
) -> Tensor:
    """Make one optimiser step; returns the gradient's norm before clipping."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(trained, max_grad_norm)
    optimizer.step()
    return norm


def to_floats(metrics: dict[str, Tensor | float], device: torch.device) -> dict[str, float]:
    """Return all metrics as numbers, with one transfer from the device."""
    values = [torch.as_tensor(value, dtype=torch.float64, device=device) for value in metrics.values()]
    return dict(zip(metrics, torch.stack(values).tolist(), strict=True))


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
    """Progress of training; saved with every checkpoint."""

    phase: str = "rce"
    entered: bool = False  # whether the phase's optimiser and tables exist
    epoch: int = 0  # finished epochs of the phase
    batch: int = 0  # finished batches of the epoch under way
    step: int = 0  # updates of all phases
    beta: float = 0.0  # weight of the KL term
    sums: dict[str, float] = field(default_factory=dict)  # of the epoch's metrics, with their count under "batches"
    train_curve: list[float] = field(default_factory=list)  # values before and after each epoch of the phase
    validation_curve: list[float] = field(default_factory=list)
    best: Best | None = None  # of all phases
    warm_up: Best | None = None  # what GRPO began from
    stale: int = 0  # epochs since the phase's best
    ends: dict[str, str] = field(default_factory=dict)  # how each finished phase ended

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

    def require_best(self) -> Best:
        """Return the best validation; every phase begins with one."""
        if self.best is None:
            raise ValueError("no validation was noted yet")
        return self.best

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Progress:
        marks = {name: Best(**saved[name]) if saved[name] else None for name in ("best", "warm_up")}
        return cls(**{**saved, **marks})


@dataclass(frozen=True)
class EpochReport:
    """Figures of an epoch, for a caller to print; epoch 0 is the state before the first one."""

    phase: str
    epoch: int
    epochs: int
    step: int
    metrics: dict[str, float]
    findings: list[str]
    is_best: bool


class Trainer:
    """Trains one policy, from the folder's last checkpoint where there is one.

    Args:
        recipe: resolved.
        parts: the data by split, the training part already filtered.
        model: the frozen model that answers in validation; None to rank logged candidates.
        folder: where checkpoints go.
        logs: where metrics go.
        on_epoch: called after every epoch.
        device: where the policy lives.

    Raises:
        RecipeError: from `run`, for a checkpoint of another recipe or data, or gradients that are not finite.
    """

    def __init__(
        self,
        recipe: PointerRecipe,
        parts: dict[str, PointerData],
        model: FrozenModel | None,
        folder: Path,
        logs: Sequence[RunLog] = (),
        on_epoch: Callable[[EpochReport], None] = lambda report: None,
        device: torch.device | None = None,
    ) -> None:
        self.recipe, self.folder, self.logs, self.on_epoch = recipe, folder, logs, on_epoch
        self.device = device or torch.device("cpu")
        self.train = parts["train"]
        self.validator = Validator(recipe, self.train, parts["validation"], model)
        values = losses.rewards(self.train, recipe.reward)
        if recipe.grpo.epochs:
            losses.require_differences(values, self.train, recipe.reward.mode)
        self.tables = Tables(torch.from_numpy(values))
        torch.manual_seed(recipe.trainer.seed)
        self.policy = self._new_policy()
        if recipe.trainer.start_from:
            self._load(Path(recipe.trainer.start_from))
        self.optimizer = self._new_optimizer("rce")
        self.progress = Progress()
        self.fingerprint = checkpoints.fingerprint(recipe, self.train, parts["validation"])

    def run(self) -> Progress:
        """Train to the end; returns where training stands. A finished run returns at once."""
        self._resume()
        phases = ["rce", "grpo"] if self.recipe.grpo.epochs else ["rce"]
        for phase in phases[phases.index(self.progress.phase) if self.progress.entered else 0 :]:
            if not (self.progress.entered and self.progress.phase == phase):
                self._enter(phase)
            self._epochs(phase)
        return self.progress

    def _enter(self, phase: str) -> None:
        if phase == "grpo":  # starts from the best warm-up policy, which also becomes the reference of the KL term
            self.progress.warm_up = self.progress.require_best()
            self._load(self.folder / self.progress.warm_up.folder)
            self._set_reference(self.policy)
            self.tables = replace(self.tables, reference=logged_log_probs(self.policy, self.train, LOGGED_BATCH))
        self.progress.begin(phase, self.recipe.grpo.kl.beta)
        self.optimizer = self._new_optimizer(phase)
        self._after_epoch({})

    def _epochs(self, phase: str) -> None:
        progress, patience = self.progress, self.recipe.trainer.early_stop_patience
        epochs = self._settings(phase).epochs
        progress.ends[phase] = f"ran all {epochs} epochs"
        while progress.epoch < epochs:
            if patience and progress.stale >= patience:
                progress.ends[phase] = f"stopped early after epoch {progress.epoch} of {epochs}"
                break
            self._epoch(phase)
            means = progress.end_epoch()
            if phase == "grpo":
                progress.beta = next_beta(progress.beta, means["actor/kl_loss"], self.recipe.grpo.kl)
            self._after_epoch(means)

    def _epoch(self, phase: str) -> None:
        """Run the rest of the epoch under way."""
        progress, trainer = self.progress, self.recipe.trainer
        batches = shuffled(len(self.train), self.recipe.data.batch_size, trainer.seed, phase, progress.epoch)
        total = self._settings(phase).epochs * len(batches)
        if phase == "grpo" and progress.batch == 0:
            self.tables = replace(self.tables, old=logged_log_probs(self.policy, self.train, LOGGED_BATCH))
        self.policy.train(phase == "rce")  # GRPO compares log-probabilities, which dropout would blur
        for queries in batches[progress.batch :]:
            metrics = self._update(queries, progress.epoch * len(batches) + progress.batch, total)
            progress.add(metrics)
            self._log(metrics)
            if trainer.save_steps and progress.step % trainer.save_steps == 0 and progress.batch < len(batches):
                self._save()

    def _update(self, queries: np.ndarray, done: int, total: int) -> dict[str, float]:
        """Make one update on the batch of these queries, after `done` of the phase's `total` updates."""
        rce, grpo, phase = self.recipe.rce, self.recipe.grpo, self.progress.phase
        inputs = self.policy, collate(self.train, queries).to(self.device), self.tables
        if phase == "rce":
            loss, metrics = rce_step(*inputs, tau(done, total, rce.tau_start, rce.tau_end))
        else:
            keep = candidates_kept(self.progress.epoch, grpo.epochs, grpo.curriculum)
            loss, metrics = grpo_step(*inputs, grpo, self.progress.beta, keep)
        lr = learning_rate(done, total, self._settings(phase).lr, self.recipe.trainer.warmup_share)
        norm = update(self.policy, self.optimizer, loss, lr, self.recipe.trainer.max_grad_norm)
        floats = to_floats({**metrics, "actor/grad_norm": norm, "actor/lr": lr}, self.device)
        if not math.isfinite(floats["actor/grad_norm"]):
            raise RecipeError(
                f"the gradient is not finite at step {self.progress.step + 1}",
                where=f"the batch of queries {', '.join(self.train.query_ids[query] for query in queries)}",
                fix="lower the learning rate; the last checkpoint is whole",
            )
        return floats

    def _log(self, metrics: Metrics) -> None:
        for log in self.logs:
            log.write(self.progress.step, metrics)

    def _after_epoch(self, means: dict[str, float]) -> None:
        """Validate, keep the best, save, report."""
        progress = self.progress
        metrics, value, train_value = self.validator(self.policy)
        at_start_of_grpo = progress.phase == "grpo" and progress.epoch == 0
        folder = f"global_step_{progress.step}"
        if at_start_of_grpo and progress.warm_up:
            folder = progress.warm_up.folder
        is_best = progress.note(value, train_value, folder)
        if not at_start_of_grpo:  # there the step was saved already, with the weights that the warm-up ended with
            self._save()
        report = {**means, **metrics}
        findings = findings_of_epoch(report, is_best)
        findings += findings_of_curves(progress.train_curve, progress.validation_curve)
        self._log({**metrics, "training/epoch": float(progress.epoch), "training/phase": progress.phase})
        epochs = self._settings(progress.phase).epochs
        self.on_epoch(EpochReport(progress.phase, progress.epoch, epochs, progress.step, report, findings, is_best))

    def _settings(self, phase: str) -> RceConfig | GrpoConfig:
        return self.recipe.rce if phase == "rce" else self.recipe.grpo

    def _new_policy(self) -> PointerPolicy:
        return PointerPolicy(self.recipe.policy, self.train.queries.width, self.train.examples.width).to(self.device)

    def _new_optimizer(self, phase: str) -> torch.optim.Optimizer:
        frozen = set(self.policy.backbone()) if phase == "grpo" and self.recipe.grpo.freeze_backbone else set()
        trained = [parameter for parameter in self.policy.parameters() if parameter not in frozen]
        decay = self.recipe.trainer.weight_decay
        return torch.optim.AdamW(trained, lr=self._settings(phase).lr, weight_decay=decay, fused=True)

    def _load(self, folder: Path) -> None:
        """Take over the weights of a checkpoint of the same architecture and number of shots."""
        loaded, config = checkpoints.load_policy(folder)
        checkpoints.require_like(self.policy, loaded, config, self.recipe.data.shot_num, str(folder))
        self.policy.load_state_dict(loaded.state_dict())

    def _set_reference(self, policy: PointerPolicy) -> None:
        reference = self._new_policy().eval()
        reference.load_state_dict(policy.state_dict())
        self.validator.reference = reference

    def _save(self) -> None:
        progress = self.progress
        state = {
            "progress": progress.as_dict(),
            "fingerprint": self.fingerprint,
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            "old": self.tables.old,
            "reference": self.tables.reference,
        }
        saved = checkpoints.save(self.folder, progress.step, self.policy, self.recipe.data.shot_num, state)
        marks = {"best.json": progress.best, "warm_up.json": progress.warm_up}
        for name, mark in marks.items():
            if mark is not None:
                write_whole(self.folder / name, json.dumps(asdict(mark)) + "\n")
        write_whole(self.folder / checkpoints.LATEST, f"{progress.step}\n")
        checkpoints.prune(self.folder, {saved.name, *(mark.folder for mark in marks.values() if mark is not None)})

    def _resume(self) -> None:
        latest = checkpoints.latest(self.folder)
        if latest is None:
            return
        if not self.recipe.trainer.resume:
            raise RecipeError(
                "the experiment has a checkpoint, and trainer.resume is off",
                where=str(latest),
                fix="choose another EXPERIMENT_NAME, or remove the folder",
            )
        state = checkpoints.read_state(latest)
        checkpoints.require_same(state["fingerprint"], self.fingerprint, str(latest))
        self.progress = Progress.from_dict(state["progress"])
        self.policy.load_state_dict(checkpoints.load_policy(latest)[0].state_dict())
        self.optimizer = self._new_optimizer(self.progress.phase)
        self.optimizer.load_state_dict(state["optimizer"])
        self.tables = replace(self.tables, old=state["old"], reference=state["reference"])
        torch.set_rng_state(state["random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state_all(state["random_cuda"])
        if self.progress.phase == "grpo":
            warm_up = self.progress.warm_up or self.progress.require_best()
            self._set_reference(checkpoints.load_policy(self.folder / warm_up.folder)[0])
