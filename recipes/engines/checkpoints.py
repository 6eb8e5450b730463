"""Checkpoints: each engine's files, the last whole step, the best one, merged adapters, a resumed run's optimiser."""

import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from recipes.files import whole_folder, write_json, write_whole
from recipes.model_files import weight_files

STOP_REQUEST = "stop"
"""File in the folder of the checkpoints; while it is there, the present step is saved and the last."""
BEST, BEST_FACTS = "best", "best.json"

MODEL, OPTIMIZER, EXTRA = "model", "optim", "extra_state"
EVERYTHING = frozenset({MODEL, OPTIMIZER, EXTRA})
"""Parts of a saved step: weights, optimiser state, schedule and random state. Names of files begin with the part."""
_RANK = re.compile(r"(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")
_STEP_FOLDER = re.compile(r"global_step_(\d+)")

LORA_PREFIX = "base_model.model."
BASE = ".base_layer."
FSDP1 = "_fsdp_wrapped_module."
"""Part that FSDP1 adds to the names of modules."""
ADAPTERS = (".lora_A.default.weight", ".lora_B.default.weight")
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""Name of a dtype in a safetensors file -> its name in a configuration."""


@dataclass(frozen=True)
class Layout:
    """Names of an engine's checkpoint files; the ranks' files have the same names for both engines."""

    tracker: str  # names the last step that was saved; the engine writes it after everything else
    loader: str  # file in a step's folder with the dataloader's state: how far the training rows were read
    # Tracker's text -> the step that it names; raises ValueError, KeyError or TypeError if it names none.
    read: Callable[[str], int]
    # (Step, tracker's present text) -> its new text, which may keep other facts of the present text.
    write: Callable[[int, str], str]
    takes_parts: bool  # whether the engine can be told to load only some parts of a step

    def files_of(self, step: Path, ranks: int, parts: Iterable[str]) -> list[Path]:
        """The files that the engine opens when it resumes from a step's folder.

        verl: verl/utils/checkpoint/fsdp_checkpoint_manager.py:176 (`def load_checkpoint`) and
        verl/trainer/ppo/v1/trainer_base.py:850 (`def _load_checkpoint`). `ranks` are those of all machines.
        """
        names = [f"{part}_world_size_{ranks}_rank_{rank}.pt" for part in sorted(parts) for rank in range(ranks)]
        return [*(step / "actor" / name for name in names), step / self.loader]


def _easyr1_tracker(step: int, before: str) -> str:
    try:
        facts = dict(json.loads(before))
    except (ValueError, TypeError):
        facts = {}
    return json.dumps({**facts, "last_global_step": step}, indent=2)


VERL = Layout("latest_checkpointed_iteration.txt", "data.pt", int, lambda step, _: str(step), True)
EASYR1 = Layout(
    "checkpoint_tracker.json",
    "dataloader.pt",
    lambda text: int(json.loads(text)["last_global_step"]),
    _easyr1_tracker,
    False,
)
LAYOUTS = {"verl": VERL, "easyr1": EASYR1}


@dataclass(frozen=True)
class Checkpoint:
    """A saved step; `model` is the folder that vLLM and transformers load, None if no whole model was saved."""

    step: int
    folder: Path
    model: Path | None

    def holds(self) -> frozenset[str]:
        """The parts for which the checkpoint has at least one file."""
        return frozenset(part for part, _ in self._files())

    def ranks(self) -> int | None:
        """The number of ranks that wrote the checkpoint, by its file names; None if they disagree or there are none."""
        sizes = {int(ranks) for _, ranks in self._files()}
        return sizes.pop() if len(sizes) == 1 else None

    def _files(self) -> list[tuple[str, str]]:
        names = (_RANK.fullmatch(file.name) for file in (self.folder / "actor").glob("*.pt"))
        return [(name[1], name[2]) for name in names if name]


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint that an engine's tracker in the folder names; None where there is no tracker or no such step."""
    for layout in LAYOUTS.values():
        step = _tracked(folder, layout)
        if step is not None:
            return checkpoint_at(folder, step)
    return None


def _tracked(folder: Path, layout: Layout) -> int | None:
    try:
        return layout.read((folder / layout.tracker).read_text(encoding="utf-8").strip())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def checkpoint_at(folder: Path, step: int) -> Checkpoint | None:
    """The checkpoint of one step, or None."""
    saved = folder / f"global_step_{step}"
    if not saved.is_dir():
        return None
    model = saved / "actor" / "huggingface"
    return Checkpoint(step, saved, model if weight_files(model) else None)


@dataclass(frozen=True)
class Expected:
    """The files that the checkpoints of a run have to contain."""

    layout: Layout
    ranks: int  # number of training ranks on all machines
    parts: Callable[[int], frozenset[str] | None]  # step -> parts that it was saved with; None where not recorded

    def damage(self, checkpoint: Checkpoint) -> str:
        """The file of a checkpoint that is missing or damaged, in words; empty if it is whole.

        If a step's parts are not recorded, its weights must be there, and every part that has a file must be whole.
        """
        parts = self.parts(checkpoint.step) or (checkpoint.holds() | {MODEL})
        root = checkpoint.folder.parent
        for file in self.layout.files_of(checkpoint.folder, self.ranks, parts):
            if problem := _damage(file):
                return f"{file.relative_to(root)} {problem}"
        return ""


def _damage(file: Path) -> str:
    """The damage of a file of torch.save, a zip archive whose directory is at its end, in words; empty if none."""
    try:
        if file.stat().st_size == 0:
            return "is empty"
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            begin = min((entry.header_offset for entry in entries), default=1)
            inside = sum(entry.compress_size for entry in entries) <= file.stat().st_size
            names = [entry.filename.partition("/")[2] for entry in entries]
            # An optimiser without state, such as SGD, has no tensors; the last entry that torch writes is then enough.
            stateless = file.name.startswith("optim") and ".data/serialization_id" in names
            tensors = not _RANK.fullmatch(file.name) or stateless or any(name.startswith("data/") for name in names)
    except FileNotFoundError:
        return "is missing"
    except zipfile.BadZipFile:
        return "is cut off"
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    return "" if begin == 0 and inside and tensors and "data.pkl" in names else "does not hold what torch writes"


def resumable(folder: Path, expected: Expected) -> tuple[Checkpoint | None, list[str]]:
    """The last whole checkpoint, None where there is none, and what is wrong with later ones.

    The step that the tracker names is tried first, then earlier ones, newest first. If that step or the tracker is
    missing, all steps are tried, newest first.
    """
    layout = expected.layout
    tracked, steps = _tracked(folder, layout), _step_folders(folder)
    problems, candidates = [], steps[::-1]
    if tracked in steps:
        candidates = [step for step in candidates if step <= tracked]
    elif (folder / layout.tracker).is_file():
        problems = [f"{layout.tracker} names no step that is there"]
    elif steps:
        problems = [f"{layout.tracker} is missing"]
    for step in candidates:
        checkpoint = checkpoint_at(folder, step)
        assert checkpoint is not None
        damage = expected.damage(checkpoint)
        if not damage:
            return checkpoint, problems
        problems.append(damage)
    if not (folder / layout.tracker).is_file():
        return None, []  # the first save was interrupted, or there was none
    return None, problems


def whole_model(folder: Path) -> Checkpoint | None:
    """The last step whose model for vLLM and transformers is whole, whatever else of the step is damaged."""
    from safetensors import SafetensorError, safe_open

    for step in reversed(_step_folders(folder)):
        checkpoint = checkpoint_at(folder, step)
        files = sorted(checkpoint.model.glob("*.safetensors")) if checkpoint and checkpoint.model else []
        try:
            for file in files:
                safe_open(file, framework="np")  # compares the file's size with its header
        except (SafetensorError, OSError):
            continue
        if files:
            return checkpoint
    return None


def go_on_from(checkpoint: Checkpoint, layout: Layout = VERL) -> None:
    """Have the engine resume from this checkpoint: write its step into the engine's tracker."""
    tracker = checkpoint.folder.parent / layout.tracker
    before = tracker.read_text(encoding="utf-8") if tracker.is_file() else ""
    write_whole(tracker, layout.write(checkpoint.step, before))


def saved_steps(folder: Path) -> list[int]:
    """Steps that have files, whole or not; for a step beyond trainer.save_limit the engine leaves an empty folder."""
    return [step for step in _step_folders(folder) if any((folder / f"global_step_{step}" / "actor").glob("*"))]


def _step_folders(folder: Path) -> list[int]:
    names = (_STEP_FOLDER.fullmatch(path.name) for path in folder.glob("global_step_*") if path.is_dir())
    return sorted(int(name.group(1)) for name in names if name)


def keep_last(folder: Path, limit: int | None) -> None:
    """Delete all but the last `limit` steps; an engine counts only those that it has saved since its start."""
    for step in _step_folders(folder)[:-limit] if limit and limit > 0 else ():
        shutil.rmtree(folder / f"global_step_{step}", ignore_errors=True)


def request_stop(folder: Path) -> None:
    """Ask a running trainer to save its step and to end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP_REQUEST).touch()


def is_to_stop(folder: Path) -> bool:
    """Return whether the run was asked to end."""
    return (folder / STOP_REQUEST).exists()


def withdraw_stop(folder: Path) -> bool:
    """Withdraw a request to stop; return whether there was one."""
    was_there = is_to_stop(folder)
    (folder / STOP_REQUEST).unlink(missing_ok=True)
    return was_there


NUMBERS = "RECIPES_NUMBERS"
"""Variable of a trainer: metrics of the update that have to be numbers, by `trainer.stop_on_nan`."""
LOSSES, GRADIENT = ("actor/pg_loss", "actor/kl_loss", "actor/entropy"), "actor/grad_norm"


def numbers_variable(stop_on_nan: bool, scales_loss: bool) -> dict[str, str]:
    """The variable for a trainer; with a scaled loss (fp16) a gradient may overflow, and its update is left out."""
    return {NUMBERS: ",".join([*LOSSES, *([] if scales_loss else [GRADIENT])])} if stop_on_nan else {}


def refuse_nan(metrics: Mapping[str, Any], step: int) -> None:
    """Raise where one of an update's metrics is no number: the step is not saved, and the last checkpoint stays."""
    for name in filter(None, os.environ.get(NUMBERS, "").split(",")):
        if name in metrics and not math.isfinite(metrics[name]):
            raise FloatingPointError(f"step {step}: {name} is {metrics[name]}, not a number")


def refuse_nan_weights(module: Any, step: int | None) -> None:
    """Raise where one of a torch module's weights on this rank is no number, before they are saved."""
    for name, weight in module.named_parameters() if os.environ.get(NUMBERS) else ():
        own = weight.detach().to_local() if hasattr(weight, "to_local") else weight.detach()
        if not own.isfinite().all():
            raise FloatingPointError(f"step {step}: the weights {name} are not a number")


def keep_best(checkpoint: Checkpoint, facts: dict[str, Any]) -> Path:
    """Make a checkpoint the folder's `best`, which the limit on saved steps does not count and never deletes.

    Files are linked, so they take no room of their own until the step's folder is deleted; where the file system has no
    links they are copied. The earlier best stays until the new one is whole. `facts` are written beside the step.
    Raises OSError or RecipeError where there is no room, or no right to write.
    """
    best = checkpoint.folder.parent / BEST
    with whole_folder(best) as draft:
        shutil.copytree(checkpoint.folder, draft, copy_function=_link, dirs_exist_ok=True)
        write_json(draft / BEST_FACTS, {"step": checkpoint.step, **facts})
    return best


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


CHOSEN_BY = ("metric", "reward", "validation")
"""The metric, and digests of the reward and of the validation's questions and sampling."""


class Best(NamedTuple):
    """The kept best checkpoint, with its validation's value."""

    step: int
    value: float
    chosen_by: dict[str, str]


def best_checkpoint(folder: Path) -> Best | None:
    """The kept best in a folder of checkpoints; None where there is none."""
    try:
        facts = json.loads((folder / BEST / BEST_FACTS).read_text(encoding="utf-8"))
        return Best(int(facts["step"]), float(facts["value"]), {name: facts[name] for name in CHOSEN_BY})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def scalings(model: Any) -> dict[str, float]:
    """Name of each module that a peft model adapts -> its adapter's scaling: alpha / r, or a variant."""
    from peft.tuners.lora import LoraLayer

    maps = ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))
    return {name.replace(FSDP1, ""): module.scaling["default"] for name, module in maps}


def with_adapters(
    tensors: dict[str, Any], factors: Mapping[str, float], device: Any = None, dtype: Any = None
) -> dict[str, Any]:
    """Merge a peft model's adapters into its weights; return all tensors under the base model's names.

    Each adapted weight W becomes W + factor B A, computed in float32.

    Args:
        tensors: emptied here, so that no weight is in memory twice.
        factors: scaling of each adapted module, by its name in the peft model.
        device: where the sums are computed; None: where the tensors are.
        dtype: in which the sums are stored; None: in that of W.

    Raises:
        ValueError: an adapter has a part other than A and B of a linear layer; the merged model would lack it.
    """
    import torch

    adapters = {name: tensors.pop(name) for name in list(tensors) if name.endswith(ADAPTERS)}
    merged: dict[str, Any] = {}
    used: set[str] = set()
    for name in list(tensors):
        tensor = tensors.pop(name)
        stem, marked, _ = name.rpartition(BASE)
        low, high = (adapters.get(stem + suffix) for suffix in ADAPTERS)
        if marked and name.endswith(".weight") and low is not None and high is not None:
            base, low, high = (part.to(device=device, dtype=torch.float32) for part in (tensor, low, high))
            tensor = torch.addmm(base, high, low, alpha=factors[stem]).to(tensor.device, dtype or tensor.dtype)
            used |= {stem + suffix for suffix in ADAPTERS}
        merged[name.removeprefix(LORA_PREFIX).replace(BASE, ".")] = tensor.contiguous()
    if left := sorted(adapters.keys() - used) + [name for name in merged if ".lora_" in name]:
        raise ValueError(f"the saved model would lack a part of the adapters: {left[0]}")
    return merged


def name_the_type(folder: Path) -> None:
    """Set `dtype` in `config.json` to that of the safetensors files, if all share one; remove `attn_implementation`."""
    from safetensors import safe_open

    types = set()
    for shard in folder.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as file:
            types |= {TYPES.get(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    if not types or not (folder / "config.json").is_file():
        return
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if len(types) == 1 and None not in types:
        values["dtype"] = types.pop()
    values.pop("attn_implementation", None)  # of the run that saved the model, not of the model
    write_json(folder / "config.json", values)


def step_of(path: str) -> int | None:
    """Return the step of the innermost `global_step_<n>` in a path; None where there is none."""
    names = [_STEP_FOLDER.fullmatch(part) for part in Path(path).parts]
    return next((int(name.group(1)) for name in reversed(names) if name), None)


def set_again(config: Any, optimizer: Any, schedule: Any, *, rank: int, step: int | None = None) -> None:
    """Set the command's learning rate, betas and weight decay again after the checkpoint's have been loaded.

    `LambdaLR` does not save its functions, so the schedule's shape is the command's already. `step` is the checkpoint's
    where the schedule was not saved in it; the schedule then goes on from there. Rank 0 prints the rate.
    """
    if step is not None:
        schedule.last_epoch = step
    schedule.base_lrs = [config.lr for _ in schedule.base_lrs]
    rates = [config.lr * shape(schedule.last_epoch) for shape in schedule.lr_lambdas]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["initial_lr"] = config.lr
        group["lr"] = group["lr"].fill_(rate) if hasattr(group["lr"], "fill_") else rate
        group["weight_decay"] = config.weight_decay
        if "betas" in group:
            group["betas"] = tuple(config.betas)
    schedule._last_lr = rates
    if rank == 0:
        print(f"going on with learning rate {rates[0]:g}, weight decay {config.weight_decay:g}", flush=True)
