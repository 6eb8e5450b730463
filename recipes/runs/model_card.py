"""The model card of a finished run: recipe, data, held-out results and configuration, beside the saved weights."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import yaml

from recipes import paths
from recipes.config import Recipe, path_keys, to_yaml
from recipes.config.checks import ENGINES
from recipes.config.rewards import shown_reward
from recipes.data.manifests import find_manifest
from recipes.drawing import templates
from recipes.engines.checkpoints import Checkpoint
from recipes.files import write_whole
from recipes.model_files import local_model
from recipes.runs.compare import mean_of, shown, title
from recipes.runs.responses import read_dump, validation_files

CARD = "README.md"
"""The name under which hubs show a model's card."""


def write_card(recipe: Recipe, model: Path, step: int) -> Path:
    """Write the card into the folder of a step's weights; one that is there stays, since somebody may have edited it.

    Returns:
        The card.
    """
    path = model / CARD
    if not path.exists():
        write_whole(path, card(recipe, step))
    return path


def card(recipe: Recipe, step: int) -> str:
    """The card as Markdown with the hub's metadata."""
    from huggingface_hub import ModelCardData

    experiment = recipe.trainer.experiment_name or recipe.name
    base = str(recipe.worker.actor.model.model_path)
    fields = ModelCardData(
        license=licence_of(base),
        base_model=None if Path(base).is_dir() else base,
        library_name="transformers",
        pipeline_tag="image-text-to-text" if recipe.worker.rollout.limit_images else "text-generation",
        tags=["grpo", "reinforcement-learning", recipe.engine, recipe.name],
    )
    files = {at: file for at, file in validation_files(paths.run_dir(experiment)).items() if at <= step}
    ends = {at: read_dump(files[at]) for at in sorted({min(files), max(files)})} if files else {}
    rows = [Path(entry.path) for entry in path_keys(recipe) if entry.key in ("data.train_files", "data.val_files")]
    template = templates(Path(__file__).parent, html=False).get_template("model_card.md.j2")
    return template.render(
        metadata=yaml.safe_dump(fields.to_dict(), sort_keys=False).strip(),  # type: ignore[no-untyped-call]
        experiment=experiment,
        base_model=os.path.relpath(base, paths.ROOT) if Path(base).is_relative_to(paths.ROOT) else base,
        step=step,
        recipe=recipe,
        algorithm=recipe.algorithm.preset or recipe.algorithm.adv_estimator,
        engine=ENGINES[recipe.engine],
        heading=title(next((dump.measure for dump in ends.values()), "accuracy")),
        validations=[(at, shown(mean_of(dump), dump.measure)) for at, dump in ends.items()],
        data=[(path.name, find_manifest(path)) for path in rows],
        serve=shlex.join(["vllm", "serve", *serve_arguments(recipe, Path("."))]),
        reward=shown_reward(recipe),
        commit=paths.git_commit(),
        configuration=_without_paths(to_yaml(recipe)).strip(),
    )


def licence_of(model: str) -> str:
    """The licence that a local model's card states; `unknown` without one. The repository's own models have its own."""
    from huggingface_hub import metadata_load

    folder = local_model(model)
    if folder is None:
        return "unknown"
    if folder.resolve().is_relative_to(paths.ROOT / "recipes"):
        return "apache-2.0"
    try:
        fields = metadata_load(folder / CARD) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return "unknown"  # no card, or one whose metadata is broken
    return str(fields.get("license") or "unknown")


def serve_arguments(recipe: Recipe, model: Path) -> list[str]:
    """Arguments of `vllm serve` for a checkpoint, with as much context as the run trained with."""
    return [str(model), "--served-model-name", recipe.name, "--max-model-len", str(recipe.longest)]


def closing_lines(recipe: Recipe, checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Write the card of a run's last checkpoint; the lines that say where it is, how to serve it and how to upload."""
    if checkpoint.model is None:
        return []
    model = paths.relative_to_cwd(checkpoint.model)
    card = paths.relative_to_cwd(write_card(recipe, checkpoint.model, checkpoint.step))
    return [
        ("serve", paths.script_command("serve.py", *serve_arguments(recipe, model))),
        ("model card", str(card)),
        ("upload", shlex.join(["hf", "upload", "OWNER/NAME", str(model)])),
    ]


def _without_paths(text: str) -> str:
    """Configuration without this machine's folders."""
    return text.replace(f"{paths.artifacts()}/", "artifacts/").replace(f"{paths.ROOT}/", "")
