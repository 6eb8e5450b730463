"""The loop: RCE warm-up, then GRPO, with validation after every epoch, early stop, best checkpoint and exact resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from recipes.errors import RecipeError
from recipes.pointer_selector import checkpoints, health, schedules
from recipes.pointer_selector.batches import collate, shuffled
from recipes.pointer_selector.config import GrpoConfig, PointerRecipe, RceConfig
from recipes.pointer_selector.data import PointerData
from recipes.pointer_selector.frozen_model import FrozenModel
from recipes.pointer_selector.measuring import Validator, logged_log_probs
from recipes.pointer_selector.metrics import Sinks
from recipes.pointer_selector.phases import Step, Tables, grpo_step, rce_step, to_floats, update
from recipes.pointer_selector.policy import PointerPolicy
from recipes.pointer_selector.progress import Best, Progress
from recipes.pointer_selector.rewards import require_differences, rewards

LOGGED_BATCH = 64
"""Queries in a batch where no gradient is needed."""


@dataclass(frozen=True)
class EpochReport:
    """What a caller may print after an epoch; epoch 0 is the state before the first one."""

    phase: str
    epoch: int
    epochs: int
    step: int
    metrics: dict[str, float]
    findings: list[health.Finding]
    is_best: bool


class Trainer:
    """Trains one policy, from the folder's last checkpoint where there is one.

    Args:
        recipe: resolved.
        parts: the data by split, the training part already filtered.
        judge: the frozen model that answers in validation; None to rank logged candidates.
        folder: where checkpoints go.
        sinks: where metrics go.
        on_epoch: told about every epoch.
        device: where the policy lives.

    Raises:
        RecipeError: from `run`, for a checkpoint of another recipe or data, or gradients that are not finite.
    """

    def __init__(
        self,
        recipe: PointerRecipe,
        parts: dict[str, PointerData],
        judge: FrozenModel | None,
        folder: Path,
        sinks: Sinks,
        on_epoch: Callable[[EpochReport], None] = lambda report: None,
        device: torch.device | None = None,
    ) -> None:
        self.recipe, self.folder, self.sinks, self.on_epoch = recipe, folder, sinks, on_epoch
        self.device = device or torch.device("cpu")
        self.train = parts["train"]
        self.validator = Validator(recipe, self.train, parts["validation"], judge)
        values = rewards(self.train, recipe.reward)
        if recipe.grpo.epochs:
            require_differences(values, self.train, recipe.reward.mode)
        self.tables = Tables(torch.from_numpy(values))
        torch.manual_seed(recipe.trainer.seed)
        self.policy = self._new_policy()
        self.optimizer: torch.optim.Optimizer | None = None
        self.progress = Progress()
        self.fingerprint = checkpoints.fingerprint(recipe, self.train, parts["validation"])

    def run(self) -> Progress:
        """Train to the end; returns where training stands. A finished run returns at once."""
        self._resume()
        plan = [] if self.recipe.trainer.warm_up_from else ["rce"]
        plan += ["grpo"] if self.recipe.grpo.epochs else []
        for phase in plan[plan.index(self.progress.phase) if self.progress.entered else 0 :]:
            if not (self.progress.entered and self.progress.phase == phase):
                self._enter(phase)
            self._epochs(phase)
        return self.progress

    # --- phases -------------------------------------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        if phase == "grpo":
            self._start_from_warm_up()
        self.progress.begin(phase, self.recipe.grpo.kl.beta)
        self.optimizer = self._new_optimizer(phase)
        self._after_epoch({})

    def _start_from_warm_up(self) -> None:
        """GRPO starts from the best warm-up policy, which also becomes the reference of the KL term."""
        source = self.recipe.trainer.warm_up_from
        folder = Path(source) if source else self.folder / self.progress.best.folder
        loaded, config = checkpoints.load_policy(folder)
        checkpoints.require_shots(config, self.recipe.data.shot_num, str(folder))
        checkpoints.require_like(self.policy, loaded, str(folder))
        self.policy.load_state_dict(loaded.state_dict())
        self.progress.warm_up = Best("global_step_0", "rce", 0, 0, float("nan")) if source else self.progress.best
        self._set_reference(self.policy)
        self.tables = replace(self.tables, reference=logged_log_probs(self.policy, self.train, LOGGED_BATCH))

    def _epochs(self, phase: str) -> None:
        progress, epochs, patience = (
            self.progress,
            self._settings(phase).epochs,
            self.recipe.trainer.early_stop_patience,
        )
        progress.ends[phase] = f"ran all {epochs} epochs"
        while progress.epoch < epochs:
            if patience and progress.stale >= patience:
                progress.ends[phase] = f"stopped early after epoch {progress.epoch} of {epochs}"
                break
            self._epoch(phase)
            means = progress.end_epoch()
            if phase == "grpo":
                progress.beta = schedules.next_beta(progress.beta, means["actor/kl_loss"], self.recipe.grpo.kl)
            self._after_epoch(means)

    def _epoch(self, phase: str) -> None:
        """The rest of the epoch under way."""
        progress, trainer = self.progress, self.recipe.trainer
        batches = shuffled(len(self.train), self.recipe.data.batch_size, trainer.seed, phase, progress.epoch)
        total = self._settings(phase).epochs * len(batches)
        if phase == "grpo" and progress.batch == 0:
            self.tables = replace(self.tables, old=logged_log_probs(self.policy, self.train, LOGGED_BATCH))
        self.policy.train(phase == "rce")  # GRPO compares log-probabilities, which dropout would blur
        for queries in batches[progress.batch :]:
            done = progress.epoch * len(batches) + progress.batch
            lr = schedules.learning_rate(done, total, self._settings(phase).lr, trainer.warmup_share)
            metrics = self._update(self._step(phase, done, total), queries, lr)
            progress.add(metrics)
            self.sinks.write(progress.step, metrics)
            if trainer.save_steps and progress.step % trainer.save_steps == 0 and progress.batch < len(batches):
                self._save()

    def _step(self, phase: str, done: int, total: int) -> Step:
        if phase == "rce":
            return rce_step(schedules.tau(done, total, self.recipe.rce.tau_start, self.recipe.rce.tau_end))
        config = self.recipe.grpo
        return grpo_step(
            config, self.progress.beta, schedules.candidates_kept(self.progress.epoch, config.epochs, config.curriculum)
        )

    def _update(self, step: Step, queries: np.ndarray, lr: float) -> dict[str, float]:
        loss, metrics = step(self.policy, collate(self.train, queries).to(self.device), self.tables)
        norm = update(self.policy, self.optimizer, loss, lr, self.recipe.trainer.max_grad_norm)
        floats = to_floats({**metrics, "actor/grad_norm": norm, "actor/lr": lr})
        if not np.isfinite(floats["actor/grad_norm"]):
            names = [self.train.query_ids[query] for query in queries]
            raise RecipeError(
                f"the gradient is not finite at step {self.progress.step + 1}",
                where=f"the batch of queries {', '.join(names)}",
                fix="lower the learning rate; the last checkpoint is whole",
            )
        return floats

    def _after_epoch(self, means: dict[str, float]) -> None:
        """Validate, judge, keep the best, save, tell."""
        progress = self.progress
        metrics, value, train_value = self.validator(self.policy)
        at_start_of_grpo = progress.phase == "grpo" and progress.epoch == 0
        folder = progress.warm_up.folder if at_start_of_grpo else f"global_step_{progress.step}"
        is_best = progress.note(value, train_value, folder)
        if not at_start_of_grpo or self.recipe.trainer.warm_up_from:
            self._save()  # after a warm-up the step was saved already, with the weights that the warm-up ended with
        findings = health.judge_epoch({**means, **metrics}, is_best) + health.judge_fit(
            progress.train_curve, progress.validation_curve
        )
        self.sinks.write(
            progress.step, {**metrics, "training/epoch": float(progress.epoch), "training/phase": progress.phase}
        )
        epochs = self._settings(progress.phase).epochs
        report = {**means, **metrics}
        self.on_epoch(EpochReport(progress.phase, progress.epoch, epochs, progress.step, report, findings, is_best))

    # --- state --------------------------------------------------------------------------------------------------

    def _settings(self, phase: str) -> RceConfig | GrpoConfig:
        return self.recipe.rce if phase == "rce" else self.recipe.grpo

    def _new_policy(self) -> PointerPolicy:
        return PointerPolicy(self.recipe.policy, self.train.queries.width, self.train.examples.width).to(self.device)

    def _new_optimizer(self, phase: str) -> torch.optim.Optimizer:
        frozen = (
            {id(x) for x in self.policy.backbone()} if phase == "grpo" and self.recipe.grpo.freeze_backbone else set()
        )
        trained = [x for x in self.policy.parameters() if id(x) not in frozen]
        return torch.optim.AdamW(
            trained, lr=self._settings(phase).lr, weight_decay=self.recipe.trainer.weight_decay, fused=True
        )

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
                checkpoints.point(self.folder, name, asdict(mark))
        checkpoints.point_latest(self.folder, progress.step)
        checkpoints.prune(self.folder, {saved.name, *(mark.folder for mark in marks.values() if mark is not None)})

    def _resume(self) -> None:
        found = checkpoints.latest(self.folder)
        if found is None:
            return
        if not self.recipe.trainer.resume:
            raise RecipeError(
                "the experiment has a checkpoint, and trainer.resume is off",
                where=str(found),
                fix="choose another EXPERIMENT_NAME, or remove the folder",
            )
        state = checkpoints.read_state(found)
        checkpoints.require_same(state["fingerprint"], self.fingerprint, str(found))
        self.progress = Progress.from_dict(state["progress"])
        self.policy.load_state_dict(checkpoints.load_policy(found)[0].state_dict())
        self.optimizer = self._new_optimizer(self.progress.phase)
        self.optimizer.load_state_dict(state["optimizer"])
        self.tables = replace(self.tables, old=state["old"], reference=state["reference"])
        torch.set_rng_state(state["random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state_all(state["random_cuda"])
        if self.progress.phase == "grpo":
            self._set_reference(checkpoints.load_policy(self.folder / self.progress.warm_up.folder)[0])
