"""Duration of a run, from steps that it, or an earlier run of the same sizes, has measured."""

from __future__ import annotations

from pathlib import Path

from recipes.config import Recipe
from recipes.config.layers import flatten, read
from recipes.errors import RecipeError, counted
from recipes.paths import run_dir
from recipes.runs.metrics import duration, read_history, seconds_per_step

SIZES = (
    *("name", "engine", "hardware", "trainer.nnodes", "trainer.n_gpus_per_node", "algorithm.adv_estimator"),
    *("worker.actor.model.model_path", "worker.actor.model.lora.rank", "worker.rollout.n"),
    *("data.rollout_batch_size", "data.max_prompt_length", "data.max_response_length"),
)
"""Keys that decide what a step takes; a run is an example for another where they are the same."""
LOOKED_AT = 10
"""So many runs, the last ones, are looked at."""


def estimate(recipe: Recipe, steps: int) -> str:
    """A line on the time that so many further steps will take, by a run that was measured here."""
    if steps <= 0:
        return "time: none, every step is saved already"
    own = run_dir(recipe.trainer.experiment_name or recipe.name)
    others = [path.parent for path in own.parent.glob("*/metrics.jsonl") if path.parent != own]
    others.sort(key=lambda folder: (folder / "metrics.jsonl").stat().st_mtime, reverse=True)
    for folder in [own, *others[:LOOKED_AT]]:
        if not _has_same_sizes(recipe, folder / "config.yaml"):
            continue
        if seconds := seconds_per_step(read_history(folder / "metrics.jsonl")):
            time = f"about {duration(steps * seconds)} for {counted(steps, 'step')}"
            return f"time: {time}, at {seconds:.3g} s a step as measured in the run {folder.name}"
    return "time: known after the first step; no run of these sizes has been measured here"


def _has_same_sizes(recipe: Recipe, config: Path) -> bool:
    try:
        earlier = flatten(read(config))
    except RecipeError:
        return False  # missing, or written by another version
    return all(earlier.get(key) == recipe.value(key) for key in SIZES)
