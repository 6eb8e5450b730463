"""The training loop: RCE warm-up, then GRPO; validation after every epoch, early stopping, best checkpoint kept.

An interrupted run goes on after its last finished phase and reaches the same weights: no random state crosses phases.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from recipes.config.schema import leaves
from recipes.errors import RecipeError
from recipes.files import Tail, write_json, write_whole
from recipes.pointer_selector import losses, selector
from recipes.pointer_selector.config import GrpoConfig, PointerRecipe
from recipes.pointer_selector.dataset import Batch, Prepared, collate, shot_num
from recipes.pointer_selector.evaluation import TRAINING, VALIDATION, logged_log_probs, validate
from recipes.pointer_selector.selector import PointerPolicy
from recipes.settings import flatten

PROGRESS = "progress.json"
KL_LOW, KL_HIGH = 0.01, 0.1
"""The band of `actor/kl_loss` that the adaptive weight aims at."""
KL_FACTOR, BETA_MIN, BETA_MAX = 1.5, 1e-3, 10.0
"""Factor by which the adaptive weight of the KL changes, and its bounds."""
Metrics = Mapping[str, float | str]


def learning_rate(step: int, total: int, peak: float, warmup_share: float) -> float:
    """Return the rate at a step: linear warm-up over the first share of the steps, then a half cosine to 0."""
    warmup = max(1, round(warmup_share * total))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def next_beta(beta: float, kl: float) -> float:
    """Return the adaptive weight of the KL: raised above the target band, lowered below it, within bounds.

    Source: the adaptive KL controller of Schulman et al., PPO (2017), section 4, with a band for a target.
    """
    if kl > KL_HIGH:
        beta *= KL_FACTOR
    elif kl < KL_LOW:
        beta /= KL_FACTOR
    return min(BETA_MAX, max(BETA_MIN, beta))


Tables = dict[str, Tensor]
"""Values of the logged candidates that are constant during an epoch: `rewards` [M]; in GRPO also log-probabilities
[M, S], `old` under the policy at the start of the epoch, and `reference` under the warm-up policy."""
Loss = tuple[Tensor, dict[str, Tensor | float]]


def rce_step(policy: PointerPolicy, batch: Batch, tables: Tables, temperature: float) -> Loss:
    """The warm-up's loss on a batch, and its metrics."""
    rewards, mask = _grouped(tables["rewards"], batch), batch.by_group(batch.candidates)
    log_probs, entropies = policy.step_log_probs(batch.inputs, batch.pointers, batch.steps)
    steps = batch.picks_by_group(batch.steps)
    loss = losses.rce_loss(batch.picks_by_group(log_probs), steps, rewards, mask, temperature)
    return loss, {
        "actor/rce_loss": loss.detach(),
        "actor/rce_tau": temperature,
        "actor/entropy": entropies.sum() / batch.steps.sum(),
        "critic/rewards/mean": rewards[mask].mean(),
    }


def grpo_step(policy: PointerPolicy, batch: Batch, tables: Tables, config: GrpoConfig, beta: float, keep: int) -> Loss:
    """GRPO's loss with KL weight `beta` on each group's `keep` best candidates (0: all), and its metrics."""
    rewards = _grouped(tables["rewards"], batch)
    mask = losses.keep_top_candidates(rewards, batch.by_group(batch.candidates), keep)
    advantages, zero_variance = losses.group_advantages(rewards, mask, config.advantage)
    log_probs, entropies = policy.step_log_probs(batch.inputs, batch.pointers, batch.steps)
    steps = batch.picks_by_group(batch.steps)
    old, reference = (
        _grouped(tables[name], batch)[..., : steps.shape[-1]].masked_fill(~steps, 0.0) for name in ("old", "reference")
    )
    log_probs = batch.picks_by_group(log_probs)
    loss, metrics = losses.grpo_loss(log_probs, old, reference, advantages, steps, mask, config, beta)
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


def _grouped(table: Tensor, batch: Batch) -> Tensor:
    """The rows of a table [M, ...] that belong to a batch's candidates, as [G, N, ...]."""
    return batch.by_group(table[batch.rows.cpu()].to(batch.query.device))


@dataclass(frozen=True)
class Best:
    """A validation that was the best so far."""

    phase: str
    epoch: int
    step: int
    value: float


@dataclass
class Progress:
    """Progress of a run after its finished phases: `progress.json` beside the checkpoints."""

    step: int = 0  # updates of all phases
    best: Best = Best("", 0, 0, -1.0)  # over all phases; the initial -1.0 is below any validation
    ends: dict[str, str] = field(default_factory=dict)  # how each finished phase ended


class RunLog:
    """`metrics.jsonl`, a line for each update and validation, and TensorBoard's files.

    Lines of steps behind `after` belong to an interrupted phase, which is trained again, and so does a validation at
    this step that begins a phase: they are left out.
    """

    def __init__(self, folder: Path, after: int) -> None:
        def is_kept(line: bytes) -> bool:
            step, data = json.loads(line).values()
            return step < after or (step == after and data.get("training/epoch") != 0)

        path = folder / "metrics.jsonl"
        lines = takewhile(is_kept, Tail(path).read() if after else [])
        write_whole(path, "".join(f"{line.decode()}\n" for line in lines))
        self._file = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

    def write(self, step: int, metrics: Metrics) -> None:
        """Append the metrics of one step."""
        self._file.write(json.dumps({"step": step, "data": metrics}) + "\n")
        self._file.flush()
        for name, value in metrics.items():
            if not isinstance(value, str):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._board.close()


def findings(metrics: Mapping[str, float], curves: Sequence[tuple[float, float]]) -> list[str]:
    """Return remarks on an epoch, from its mean metrics and its phase's (training, validation) accuracies so far.

    The curves begin with the state before the first epoch. A large KL is no finding: good runs have one.
    """
    found, validation = [], [value for _, value in curves]
    kl = metrics.get("actor/kl_loss", KL_LOW)
    if kl < KL_LOW:
        found.append(f"KL {kl:.4f} is below {KL_LOW}: the policy hardly leaves its start; raise GRPO_LR")
    best = validation.index(max(validation))
    fell, rose = validation[best] - validation[-1], curves[-1][0] - curves[best][0]
    if fell > 0.005 and rose > 0:
        found.append(f"over-fitting since epoch {best}: validation fell by {fell:.1%}, training rose by {rose:.1%}")
    return found


SHOWN = {"actor/rce_loss": "loss", "actor/pg_loss": "loss", "actor/kl_loss": "kl", "actor/pg_clipfrac": "clip"}
SHOWN["actor/entropy"] = "entropy"
"""Metric -> its short name in the line that is printed for an epoch."""


def epoch_line(metrics: Mapping[str, float]) -> str:
    """Return the figures of an epoch on one line: accuracies by shots, accuracy on training queries, losses."""
    shots = {
        int(name.rpartition("@")[2]): value
        for name, value in metrics.items()
        if name.startswith("val-core/") and "@" in name
    }
    parts = ["val", *(f"{count}-shot {value:.1%}" for count, value in sorted(shots.items()))]
    parts += [f" train {metrics[TRAINING]:.1%}"] if TRAINING in metrics else []
    return " ".join([*parts, *(f" {short} {metrics[name]:.3f}" for name, short in SHOWN.items() if name in metrics)])


class Trainer:
    """Trains one policy. A run that was interrupted goes on after its last finished phase.

    `log` is called with a step and its metrics, `show` with a line to print. Raises RecipeError where the folder holds
    a run of another recipe or other data, or no group has different rewards for GRPO; `run` where a gradient is not
    finite.
    """

    def __init__(self, recipe: PointerRecipe, prepared: Prepared, folder: Path, device: str | torch.device) -> None:
        self.recipe, self.folder, self.device = recipe, folder, torch.device(device)
        self.prepared, self.train = prepared, prepared.parts["train"]
        self.shot_num = shot_num(recipe, self.train)
        # The name by which `recipes.runs` knows a validation.
        self.measure = f"val-core/pointer_selector/{'acc' if self.train.has_truth else 'reward'}/mean@1"
        values = losses.rewards(self.train, recipe.reward)
        if recipe.grpo.epochs and len(losses.equal_groups(values, self.train)) == len(self.train.group_query):
            raise RecipeError(
                f"all rewards are equal in each of the {len(self.train.group_query)} groups, in query "
                f"{self.train.query_ids[0]!r} for instance, so GRPO has nothing to compare",
                where=f"reward.mode={recipe.reward.mode}",
                fix="log several candidates a query, choose another REWARD_MODE, or set GRPO_EPOCHS=0",
            )
        self.tables: Tables = {"rewards": torch.from_numpy(values)}
        keys, content = leaves(PointerRecipe), flatten(recipe.model_dump()).items()
        # The keys whose change makes another run, and the digest of the data: together they decide the result.
        self.identity = {path: value for path, value in content if keys[path].info.resume == "content"}
        self.identity["data"] = prepared.digest
        self.progress = self._read_progress()
        self.log: Callable[[int, Metrics], None] = lambda step, metrics: None
        self.show: Callable[[str], None] = lambda line: None
        torch.manual_seed(recipe.trainer.seed)
        self.policy = PointerPolicy(recipe.policy, *self.train.widths).to(self.device)
        self.reference: PointerPolicy | None = None
        if recipe.trainer.start_from and not self.progress.ends:
            self._load(Path(recipe.trainer.start_from))

    def run(self) -> Progress:
        """Train to the end; returns the progress. A finished run returns at once."""
        progress = self.progress
        for phase in ("rce", "grpo") if self.recipe.grpo.epochs else ("rce",):
            if phase not in progress.ends:
                progress.ends[phase] = self._phase(phase)
                if phase == "rce":
                    self._load(self.folder / selector.BEST)
                    self._save(selector.WARM_UP)
                write_json(self.folder / PROGRESS, {**asdict(progress), "identity": self.identity})
        return progress

    def _phase(self, phase: str) -> str:
        """Train a phase from its beginning; returns how it ended."""
        if phase == "grpo":  # from the best warm-up policy, which is also the reference of the KL term
            self._load(self.folder / selector.WARM_UP)
            self._save(selector.BEST)  # an interrupted phase may have left another one
            self.reference = deepcopy(self.policy).eval()
            self.tables["reference"] = logged_log_probs(self.policy, self.train)
        settings, trainer = getattr(self.recipe, phase), self.recipe.trainer
        trained, decay = self.policy.parameters(), trainer.weight_decay
        optimizer = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=decay, fused=True)
        beta, stale, curves = self.recipe.grpo.kl.beta, 0, list[tuple[float, float]]()
        self._validate(phase, 0, {}, curves)
        for epoch in range(settings.epochs):
            if trainer.early_stop_patience and stale >= trainer.early_stop_patience:
                return f"stopped early after epoch {epoch} of {settings.epochs}"
            means = self._epoch(phase, epoch, optimizer, beta)
            if phase == "grpo" and settings.kl.adaptive:
                beta = next_beta(beta, means["actor/kl_loss"])
            stale = 0 if self._validate(phase, epoch + 1, means, curves) else stale + 1
        return f"ran all {settings.epochs} epochs"

    def _epoch(self, phase: str, epoch: int, optimizer: torch.optim.Optimizer, beta: float) -> dict[str, float]:
        """Train an epoch, counted from 0; returns the means of its metrics, and the largest ratio."""
        settings, trainer, size = getattr(self.recipe, phase), self.recipe.trainer, self.recipe.data.batch_size
        order = np.random.default_rng([trainer.seed, epoch, *phase.encode()]).permutation(len(self.train))
        batches = np.split(order, range(size, len(order), size))
        if phase == "grpo":
            self.tables["old"] = logged_log_probs(self.policy, self.train)
        self.policy.train(phase == "rce")  # GRPO compares log-probabilities, which dropout would blur
        seen: dict[str, list[float]] = {}
        for number, queries in enumerate(batches):
            done, total = epoch * len(batches) + number, settings.epochs * len(batches)
            inputs = self.policy, collate(self.train, queries).to(self.device), self.tables
            if phase == "rce":  # tau is linear from tau_start at the first step to tau_end at the last one
                start, end = settings.tau_start, settings.tau_end
                loss, metrics = rce_step(*inputs, end if total == 1 else start + (end - start) * (done / (total - 1)))
            else:
                curriculum = settings.curriculum
                is_early = epoch < curriculum.early_share * settings.epochs
                keep = curriculum.early_candidates if is_early else curriculum.late_candidates
                loss, metrics = grpo_step(*inputs, settings, beta, keep)
            lr = learning_rate(done, total, settings.lr, trainer.warmup_share)
            optimizer.param_groups[0]["lr"] = lr
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), trainer.max_grad_norm)
            optimizer.step()
            self.progress.step += 1
            floats = {name: float(each) for name, each in {**metrics, "actor/grad_norm": norm, "actor/lr": lr}.items()}
            if not math.isfinite(floats["actor/grad_norm"]):
                what = f"the gradient is not finite at step {self.progress.step}"
                where = f"the batch of queries {', '.join(self.train.query_ids[query] for query in queries)}"
                raise RecipeError(what, where=where, fix="lower the learning rate")
            self.log(self.progress.step, floats)
            for name, value in floats.items():
                seen.setdefault(name, []).append(value)
        return {name: max(each) if name == "actor/ratio_max" else sum(each) / len(each) for name, each in seen.items()}

    def _validate(self, phase: str, epoch: int, means: dict[str, float], curves: list[tuple[float, float]]) -> bool:
        """Validate, keep the best of the run, report; returns whether it is the best of the phase.

        Adds the accuracies on training and validation queries to the phase's `curves`.
        """
        progress = self.progress
        metrics = validate(self.recipe, self.prepared, self.policy, self.reference)
        value = metrics[VALIDATION]
        if value > progress.best.value:
            progress.best = Best(phase, epoch, progress.step, value)
            self._save(selector.BEST)
        self.log(
            progress.step, {**metrics, self.measure: value, "training/epoch": float(epoch), "training/phase": phase}
        )
        is_best = value > max((before for _, before in curves), default=-1.0)
        curves.append((metrics.get(TRAINING, math.nan), value))
        where = f"{phase} {epoch}/{getattr(self.recipe, phase).epochs} step {progress.step}"
        self.show(f"{where}  {epoch_line({**means, **metrics})}{'  best' if is_best else ''}")
        for finding in findings(means, curves):
            self.show(f"    {finding}")
        return is_best

    def _save(self, name: str) -> None:
        selector.save(self.folder / name, self.policy, self.shot_num, asdict(self.progress.best))

    def _load(self, folder: Path) -> None:
        """Take over the weights of a checkpoint of the same architecture and number of shots."""
        loaded, config = selector.load(folder)
        ours = selector.description(self.policy, self.shot_num)
        if differing := [f"{name}: {config[name]!r}, not {v!r}" for name, v in ours.items() if config[name] != v]:
            fix = "set SHOT_NUM and the keys of policy to those of the checkpoint"
            raise RecipeError(f"the checkpoint has {'; '.join(differing)}", where=str(folder), fix=fix)
        self.policy.load_state_dict(loaded.state_dict())

    def _read_progress(self) -> Progress:
        """The finished phases of this folder's run. Raises RecipeError where it is of another recipe or other data."""
        path = self.folder / PROGRESS
        if not path.is_file():
            return Progress()
        saved = json.loads(path.read_text(encoding="utf-8"))
        before, now = saved.pop("identity"), self.identity
        keys = sorted(before.keys() | now.keys())
        differing = [f"{k}: {before.get(k)!r} -> {now.get(k)!r}" for k in keys if before.get(k) != now.get(k)]
        if differing:
            what = f"the checkpoints are of another recipe or other data ({'; '.join(differing)})"
            where = str(self.folder)
            raise RecipeError(what, where=where, fix="set it back, or choose another EXPERIMENT_NAME for a new run")
        return Progress(**{**saved, "best": Best(**saved["best"])})
