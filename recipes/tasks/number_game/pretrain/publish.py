"""The finished folder: weights, processor, and a manifest that says how they came about and how good they are."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks.number_game.pretrain.train import Plan

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

TINY = ROOT / "recipes" / "tasks" / "number_game" / "tiny"
MANIFEST = "manifest.json"


def refuse_existing(out: Path) -> None:
    """Raise a `RecipeError` where `out` exists: a finished model is never overwritten."""
    if out.exists():
        raise RecipeError(f"{out} exists", where="--out", fix="choose another folder, or delete this one first")


def save(model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, folder: Path) -> None:
    """Weights in bfloat16, configuration, generation settings, tokenizer, processor and chat template."""
    import torch

    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors keeps its files from others


def publish(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    out: Path,
    plan: Plan,
    *,
    facts: dict[str, Any],
    assess: Callable[[Any, Any], dict[str, Any]],
) -> dict[str, Any]:
    """Write `out` in one move, assessed as it was saved, with `manifest.json`; returns the manifest.

    Args:
        facts: for the manifest: command, screenshots, seconds.
        assess: (model, processor) -> how good they are; called with what was saved.
    """
    import torch
    import transformers
    from transformers import AutoModelForImageTextToText, AutoProcessor

    refuse_existing(out)
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save(model, processor, temporary)
    saved = AutoModelForImageTextToText.from_pretrained(temporary, dtype=torch.float32).eval()
    found = assess(saved, AutoProcessor.from_pretrained(temporary))
    files = sorted(temporary.iterdir())
    manifest = {
        "what": "a tiny Qwen2.5-VL for the number game, pretrained on demonstrations about real screenshots",
        **facts,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "parameters": sum(parameter.numel() for parameter in saved.parameters()),
        "bytes": sum(path.stat().st_size for path in files),
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "held_out": found,
        "plan": plan.as_dict(),
    }
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    temporary.rename(out)
    return manifest
