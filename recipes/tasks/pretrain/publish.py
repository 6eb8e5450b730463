"""The finished folder: weights, tokenizer and a manifest that says how they came about and how good they are."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks.pretrain.assess import assess
from recipes.tasks.pretrain.task import Task
from recipes.tasks.pretrain.train import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MANIFEST = "manifest.json"


def refuse_existing(out: Path) -> None:
    """Raise a `RecipeError` where `out` exists: a finished model is never overwritten."""
    if out.exists():
        raise RecipeError(f"{out} exists", where="--out", fix="choose another folder, or delete this one first")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Weights in bfloat16, configuration, generation settings, and the tokenizer with its chat template inside."""
    import copy

    import torch

    copy.deepcopy(model).to("cpu", torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def publish(
    task: Task,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    plan: Plan,
    *,
    command: str,
    commit: str,
    device: str,
    steps: int,
    seconds: float,
    problems: int = 256,
    samples: int = 8,
) -> dict[str, Any]:
    """Write `out` in one move, assessed as it was saved, with `manifest.json`; returns the manifest.

    Args:
        device: where it was trained, in words; `seconds` is the time that the `steps` took there.
        problems, samples: held-out problems to assess on, and sampled responses to each.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    refuse_existing(out)
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save(model, tokenizer, temporary)
    saved = AutoModelForCausalLM.from_pretrained(temporary, dtype=torch.float32).to(model.device)
    seed = plan.seed + 1
    held_out = task.held_out(plan.settings, problems, seed)
    accuracy = assess(task, saved, AutoTokenizer.from_pretrained(temporary), held_out, samples=samples)
    files = sorted(path for path in temporary.iterdir())
    manifest = {
        "what": f"a tiny {task.architecture} for {task.title}, pretrained on demonstrations by imperfect annotators",
        "command": command,
        "commit": commit,
        "seed": plan.seed,
        "device": device,
        "trained_steps": steps,
        "training_seconds": round(seconds, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **_versions()},
        "parameters": sum(parameter.numel() for parameter in saved.parameters()),
        "bytes": sum(path.stat().st_size for path in files),
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "held_out": {"bucket": "test", "seed": seed, **{key: round(value, 4) for key, value in accuracy.items()}},
        "plan": plan.as_dict(),
    }
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    temporary.rename(out)
    return manifest


def current_commit(task: Task) -> str:
    """The checkout's commit, with `+changes` where what decides the model differs from it; `unknown` outside one."""
    decisive = [str(ROOT / "recipes" / "tasks" / name) for name in ("pretrain", task.name)]
    try:
        run = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        head = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*run[:3], "status", "--porcelain", "--", *decisive], capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed.stdout.strip() else "")


def _versions() -> dict[str, str]:
    import tokenizers
    import transformers

    return {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
