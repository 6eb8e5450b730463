"""Publishing a trained model: a model card beside the weights, how to serve them, and a push to a hub.

`python scripts/publish.py EXPERIMENT` writes the card where none is; `--push OWNER/NAME` uploads the folder besides.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml

from recipes import paths
from recipes.config import Recipe, load, path_keys, to_yaml
from recipes.config.checks import ENGINES
from recipes.config.rewards import shown_reward
from recipes.data.manifests import Manifest, find_manifest
from recipes.drawing import templates
from recipes.engines.checkpoints import Checkpoint, checkpoint_at, last_checkpoint, saved_steps
from recipes.errors import RecipeError, reported_errors
from recipes.files import write_whole
from recipes.model_files import local_model
from recipes.provenance import git_commit
from recipes.runs.folder import RunFiles
from recipes.runs.folder import find as find_run
from recipes.runs.metrics import Step, read_history, validation
from recipes.runs.validations import learning_curve

CARD = "README.md"
"""The name under which hubs show a model's card."""
UNKNOWN = "unknown"
"""The hub's value for a licence that is not stated."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Validation:
    """One row of the card: accuracy of one data source at one step; interval and questions where the run has them."""

    step: int
    source: str
    accuracy: float
    interval: str = "-"
    questions: int | None = None


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
        write_whole(path, card(recipe, checkpoint, licence))
    return path


def card(recipe: Recipe, checkpoint: Checkpoint, licence: str | None = None) -> str:
    """The model card as Markdown with the hub's metadata: recipe, data, steps, accuracy with intervals, licence."""
    experiment = recipe.trainer.experiment_name or recipe.name
    base = str(recipe.worker.actor.model.model_path)
    rows, change = validations(paths.run_dir(experiment), checkpoint.step)
    fields = metadata(recipe, rows, licence or licence_of(base))
    return (
        templates(Path(__file__).parent, html=False)
        .get_template("model_card.md.j2")
        .render(
            metadata=yaml.safe_dump(fields, sort_keys=False, allow_unicode=True).strip(),
            experiment=experiment,
            base_model=_portable(base),
            step=checkpoint.step,
            recipe=recipe,
            algorithm=recipe.algorithm.preset or recipe.algorithm.adv_estimator,
            engine=ENGINES[recipe.engine],
            validations=rows,
            change=change,
            data=data_table(recipe),
            serve=serve_command(recipe, Path(".")),
            messages=json.dumps(_first_prompt(recipe), ensure_ascii=False),
            reward=shown_reward(recipe),
            commit=git_commit(),
            configuration=_without_paths(to_yaml(recipe)).strip(),
        )
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
            metric_value=round(row.accuracy, 4),
        )
        for source, row in last.items()
    ]
    card = ModelCardData(
        license=licence,
        base_model=None if Path(base).is_dir() else base,
        library_name="transformers",
        pipeline_tag="image-text-to-text" if recipe.worker.rollout.limit_images else "text-generation",
        tags=["grpo", "reinforcement-learning", recipe.engine, recipe.name],
        model_name=experiment if results else None,
        eval_results=results or None,
    )
    return card.to_dict()  # type: ignore[no-untyped-call]  # huggingface_hub does not type it


def licence_of(model: str) -> str:
    """The licence that a local model's card states; `unknown` without one. The repository's own models have its own."""
    from huggingface_hub import metadata_load

    folder = local_model(model)
    if folder is None:
        return UNKNOWN
    if folder.resolve().is_relative_to(paths.ROOT / "recipes"):
        return "apache-2.0"
    try:
        fields = metadata_load(folder / CARD) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return UNKNOWN  # no card, or one whose metadata is broken
    return str(fields.get("license") or UNKNOWN)


def validations(run: Path, upto: int) -> tuple[list[Validation], str]:
    """First and last validation up to a step, and the paired change between them in a sentence, where there is one.

    Intervals come from the responses of validations of one data source, where at least two were kept.
    """
    history = [step for step in read_history(run / "metrics.jsonl") if step.step <= upto and validation(step)]
    try:
        curve = learning_curve(run, upto)
    except RecipeError:
        rows = [Validation(step.step, *each) for step in _ends(history) for each in validation(step).items()]
        return rows, ""
    rows, paired = [], curve.paired
    for step in _ends(history):
        accuracies = validation(step)
        measured = curve.validation.get(step.step) if len(accuracies) == 1 else None
        for source, accuracy in accuracies.items():
            if measured is None or measured.low is None:
                rows.append(Validation(step.step, source, accuracy))
            else:
                ends = f"{measured.low:.3f} to {measured.high:.3f}"
                rows.append(Validation(step.step, source, measured.value, ends, paired.questions if paired else None))
    if paired is None:
        return rows, ""
    change = paired.difference
    ends = "" if change.low is None else f" (95% {change.low:+.3f} to {change.high:+.3f})"
    return rows, (
        f"Change from step {paired.first} to {paired.last} on the same {paired.questions} questions: "
        f"{change.value:+.3f}{ends}, exact McNemar p = {paired.mcnemar.p_value:.2g}."
    )


def _ends(history: list[Step]) -> list[Step]:
    return history if len(history) < 2 else [history[0], history[-1]]


class DataFile(NamedTuple):
    """A row of the card's table of data; the manifest is None where the file has none."""

    split: str
    file: str
    manifest: Manifest | None


def data_table(recipe: Recipe) -> list[DataFile]:
    """The recipe's data files with their manifests."""
    splits = {"data.train_files": "training", "data.val_files": "validation"}
    files = [(splits[entry.key], Path(entry.path)) for entry in path_keys(recipe) if entry.key in splits]
    return [DataFile(split, file.name, find_manifest(file)) for split, file in files]


def serve_command(recipe: Recipe, model: Path, *, here: bool = False) -> str:
    """`vllm serve` for a checkpoint, with as much context as the run trained with.

    Args:
        here: on this machine, with this repository's environment; otherwise with vLLM alone.
    """
    context = recipe.data.max_prompt_length + recipe.data.max_response_length
    arguments = [str(model), "--served-model-name", recipe.name, "--max-model-len", str(context)]
    return paths.script_command("serve.py", *arguments) if here else shlex.join(["vllm", "serve", *arguments])


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


@app.command()
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
        print(f"card: {paths.relative_to_cwd(path)}")
        print(f"serve: {serve_command(recipe, paths.relative_to_cwd(path.parent), here=True)}")
        if repository:
            print(f"pushed: {push(path.parent, repository, private=private)}")
        else:
            print("push it with --push OWNER/NAME")


def find(experiment: str, step: int | None) -> tuple[Recipe, Checkpoint]:
    """A run's recipe and one of its checkpoints, by default the last. Raises RecipeError where either is missing."""
    files = RunFiles(find_run(experiment))
    recipe = load(str(files.config), environ={})
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
