"""Warm start: supervised fine-tuning (SFT) on the worked answers of a recipe's rows, by verl's `sft_trainer`.

GRPO learns only from groups whose scores differ. A model that answers nothing right first learns from worked answers.
`python -m recipes.sft TASK [--option value ...] [key=value ...]` writes them as chat messages, starts verl's trainer,
and puts the model in `artifacts/models/<experiment>`, where MODEL_PATH finds it.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from jinja2 import TemplateError
from omegaconf import OmegaConf
from rich.console import Console

from recipes import paths, usage
from recipes.config import Recipe, load, tasks
from recipes.config.checks import of_another_kind
from recipes.config.names import verl_package
from recipes.config.resolve import MODEL, replaced
from recipes.config.rewards import reward_call
from recipes.config.schema import BY_CONVERSION, Setting, Source
from recipes.config.variables import Argument, control, read_arguments, split_overlays, table, variable_settings
from recipes.data.custom import of_converted, ready
from recipes.data.lengths import chat_tokenizer
from recipes.data.rows import IMAGE_MARK, place_of
from recipes.engines import versions
from recipes.engines.checkpoints import name_the_type, step_of
from recipes.engines.verl import translation as verl
from recipes.engines.worked_answers import OF_TRAINER, answer_spans, messages_of, packed
from recipes.errors import RecipeError, reported_errors
from recipes.files import write_json
from recipes.model_files import local_model
from recipes.paths import relative_to_cwd
from recipes.preflight import refuse_planned
from recipes.preflight.machine import check_gpus
from recipes.preflight.model import check_context, check_model, check_weights
from recipes.preflight.reward import check_reward
from recipes.preflight.tools import calls_without_tools, check_tools, prompt_schemas
from recipes.runs.folder import lock_run, script
from recipes.runs.metrics import MetricsFollower, Step
from recipes.runs.process import Child
from recipes.runs.summary import any_launcher, typed_variables
from recipes.runs.supervise import supervise, watchdog_seconds
from recipes.runs.terminal import Progress
from recipes.settings import flatten, merge, refuse_two_values, validated
from recipes.yaml_text import parse, read

SETTINGS = paths.CONFIGS / "sft" / "settings.yaml"
OF_RECIPE = (*BY_CONVERSION, *table("read_by.yaml")["warm_start"])
"""Beginnings of the recipe's keys that a warm start reads, or the conversion of its rows."""
SAME_AS_ACTOR = {
    "actor_rollout_ref.model.": "model.",
    "actor_rollout_ref.actor.fsdp_config.": "engine.",
    "trainer.device": "trainer.device",
    "data.apply_chat_template_kwargs": "data.apply_chat_template_kwargs",
}
"""Prefix of verl's keys for GRPO -> prefix of the same keys for its supervised trainer."""
WORKED = "solution"
"""Field of `extra_info` that holds a row's worked answer, as the model should write it."""
LINES = 50
"""The most steps that are printed; a longer run prints every n-th."""


@dataclass(frozen=True)
class Plan:
    """A warm start: the recipe that it belongs to, verl's configuration, and the overrides of verl's defaults."""

    recipe: Recipe
    settings: Any  # verl's sft_trainer_engine.yaml as Hydra composes it
    typed: list[str]  # what the user set of it
    given: list[Argument]  # the user's other arguments, which set keys of the recipe
    files: list[str]  # the user's further recipe files
    overrides: list[str]  # of verl's defaults: by the recipe, configs/sft/settings.yaml, and the user

    @property
    def experiment(self) -> str:
        """Name of the run and of the model."""
        return str(self.settings.trainer.experiment_name)

    @property
    def longest(self) -> int:
        """Tokens of the longest row that is trained on."""
        return min(int(self.settings.data.max_length), int(self.settings.data.max_token_len_per_gpu))

    @property
    def rows(self) -> Path:
        """Parquet file of the chat messages that are trained on."""
        return paths.run_dir(self.experiment) / "sft.parquet"

    @property
    def model(self) -> Path:
        """Hugging Face folder of the trained model."""
        return paths.model_dir(self.experiment)


def plan(task: str, arguments: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Read variables and arguments: the recipe's, or those of verl's supervised trainer.

    Raises RecipeError where Hydra refuses one, for instance a key that verl's trainer does not have.
    """
    keys = flatten(_compose([]))
    set_already = keys | flatten(read(SETTINGS))
    free = tuple(f"{name}." for name, value in keys.items() if value == {})
    groups = {name.split(".")[0] for name in keys} - {"data", "trainer"}
    settings = [each for each in variable_settings(environ) if each.path in OF_TRAINER]
    recipes_own = {name: text for name, text in environ.items() if name not in {each.spelled for each in settings}}
    typed, given, stated = [_of_trainer(each) for each in settings], [], list(settings)
    files, others = split_overlays(arguments)
    for each in read_arguments(others):
        name = each.key.lstrip("+")
        known = name in keys or name.startswith(free) or name.split(".")[0] in groups
        is_trainers = known and name != "engine" and not name.startswith(OF_BOTH)  # `engine` alone is the recipe's key
        path = next((path for path, key in OF_TRAINER.items() if each.key in (path, key)), None)
        setting = Setting(path or name, each.text, Source("argument", " ".join(each.words)), each.words[0])
        stated += [setting] * (path is not None or is_trainers)
        if path:
            typed.append(_of_trainer(setting))
        elif is_trainers:
            needed = NEEDED.get(name, "")
            fix = INSTEAD.get(name) or ("" if needed in each.text else f"give {needed} too")
            if fix and parse(each.text) != set_already.get(name):
                what = f"{name}={each.text} is not for a warm start, which sets or needs another value"
                raise RecipeError(what, where=" ".join(each.words), fix=fix)
            mistake = of_another_kind(name, parse(each.text), keys.get(name), "verl")
            if mistake and each.key == name:
                raise RecipeError(mistake[0], where=" ".join(each.words), fix=mistake[1].replace(" +", " ++"))
            typed.append(f"++{name}={each.text}" if name.startswith(free) else f"{each.key}={each.text}")
        else:
            given.append(each)
    refuse_two_values(stated)
    words = dict.fromkeys(each.words for each in given)  # once, where an option sets several keys
    recipe = load(task, arguments=[*files, *(word for each in words for word in each)], environ=recipes_own)
    return composed(recipe, typed, given, files)


def _of_trainer(setting: Setting) -> str:
    """An override of verl's trainer. Raises RecipeError for a value that the recipe's key refuses, such as LR=inf."""
    validated(Recipe, *merge(Recipe, [setting]))
    return f"{OF_TRAINER[setting.path]}={setting.value}"


OF_BOTH = ("data.train_files", "data.val_files", "data.apply_chat_template_kwargs", "trainer.n_gpus_per_node")
"""Keys of verl's supervised trainer that are the recipe's here: rows are written anew, as chat messages, and the
training after the warm start renders the template alike."""


ALONE = "leave it out: a warm start runs on one machine, and begins anew in a folder of its own"
INSTEAD = {
    "model.path": "set MODEL_PATH",
    "trainer.device": "set HARDWARE",
    "data.messages_key": "leave it out: the rows are written with verl's columns",
    **dict.fromkeys(("trainer.default_local_dir", "trainer.resume_mode", "trainer.nnodes"), ALONE),
}
"""Keys of verl's supervised trainer that the warm start replaces, or that would keep it from ending -> what to do."""
NEEDED = {"trainer.logger": "file", "checkpoint.save_contents": "hf_model"}
"""Keys whose list must hold an entry, by which the launcher follows the trainer, or finds the model."""


def composed(recipe: Recipe, typed: list[str], given: list[Argument], files: list[str]) -> Plan:
    """Stack verl's defaults, the recipe, `configs/sft/settings.yaml`, and what the user typed; later wins."""
    layers = {**_of_recipe(recipe), **flatten(read(SETTINGS))}
    overrides = [*(_forced(name, value) for name, value in layers.items()), *typed]
    return Plan(recipe, OmegaConf.create(_compose(overrides)), typed, given, files, overrides)


def with_data(chosen: Plan, log: Callable[[str], None], make: bool = True) -> Plan:
    """The plan on the files that `ready` converts or makes."""
    return composed(ready(chosen.recipe, log, make=make), chosen.typed, chosen.given, chosen.files)


def _compose(overrides: Sequence[str]) -> Any:
    """verl's configuration of the supervised trainer with `overrides`, in Hydra's form."""
    package = verl_package()
    if package is None:
        raise RecipeError("verl is not installed", where=sys.executable, fix="bash scripts/setup_env.sh")
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    try:
        with initialize_config_dir(f"{package}/trainer/config", version_base=None):
            return OmegaConf.to_container(compose("sft_trainer_engine", list(overrides)))
    except HydraException as error:
        what = " ".join(str(error).split())
        fix = "--help lists the options; python -m verl.trainer.sft_trainer --cfg job shows the other keys"
        raise RecipeError(what, where="a variable, an option or an argument", fix=fix) from error


def remarks(recipe: Recipe) -> list[str]:
    """Notes on settings that do not apply, and on those that only the training after a warm start reads."""
    later = [str(each) for path, each in recipe.sources.items() if each.by_user and not path.startswith(OF_RECIPE)]
    waiting = f"a warm start does not read, and the training after it does: {', '.join(later)}"
    return [*recipe.resolution.notes, *([waiting] if later else [])]


def row_remarks(recipe: Recipe) -> list[str]:
    """Remarks on the worked answers, and what the check of the reward says, which tries them; nothing stops here."""
    if not rows_are_here(recipe):
        return []
    remarks, recipe = calls_without_tools(recipe), replaced(recipe, {"data.val_files": []}, "a warm start has none")
    for check in (check_tools, *([check_reward] if reward_call(recipe) else [])):
        try:
            said = check(recipe)
            remarks += said if check is check_reward else []  # what the tools answer is said before the training
        except RecipeError as error:
            remarks.append(f"the training after the warm start would stop: {error.what}")
    return remarks


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    """The keys that the supervised trainer takes from the recipe; the model is built as GRPO's actor is."""
    keys = {
        "data.max_length": recipe.data.max_prompt_length + recipe.data.max_response_length,
        "trainer.project_name": recipe.trainer.project_name,
        "trainer.experiment_name": f"{recipe.experiment}_sft",
        "trainer.n_gpus_per_node": recipe.trainer.n_gpus_per_node,
        "trainer.logger": ["console", "file"],
    }
    for name, value in verl.translate(of_converted(recipe)).items():
        for prefix, ours in SAME_AS_ACTOR.items():
            if name.startswith(prefix):
                keys[ours + name.removeprefix(prefix)] = value
    return keys


def _forced(name: str, value: Any) -> str:
    """An override that sets a key, whether verl's configuration has it or not."""
    return f"++{verl.override(name, value, known=True)}"


def worked_rows(chosen: Plan) -> tuple[list[dict[str, Any]], int]:
    """Each training row's prompt and worked answer as chat messages, and the number of rows that are too long.

    Raises RecipeError for a row with an image or without a worked answer, for a chat template that fails or writes the
    prompt in other tokens when the answer follows, and where no row is short enough.
    """
    data, model = chosen.settings.data, chosen.settings.model
    tokenizer = chat_tokenizer(
        model.tokenizer_path or model.path, model.custom_chat_template, trust_remote_code=bool(model.trust_remote_code)
    )
    schemas = prompt_schemas(chosen.recipe)
    template = {**data.apply_chat_template_kwargs, **({"tools": schemas} if schemas else {})}
    kept, long, rows, lacking = [], 0, 0, list[str]()
    files = chosen.recipe.data.train_files
    for file in [files] if isinstance(files, str) else files:
        pictures = chosen.recipe.data.image_key
        there = [name for name in ("prompt", "extra_info", pictures) if name in pq.read_schema(file).names]
        if "prompt" not in there:
            what, fix = "a warm start reads the column prompt, and this file has none", "rename its column of messages"
            raise RecipeError(what, where=file, fix=fix)
        for number, row in enumerate(pq.read_table(file, columns=there).to_pylist()):
            worked, rows = (row.get("extra_info") or {}).get(WORKED), rows + 1
            if row.get(pictures) or IMAGE_MARK in str(row["prompt"]):
                what = f"row {number} has an image, and a warm start imitates texts"
                raise RecipeError(what, where=file, fix="train with GRPO alone")
            answer = messages_of(worked)
            if not answer:
                lacking.append(place_of(row.get("extra_info")) or f"row {number} of {file}")
            if lacking:
                continue
            messages = [*row["prompt"], *answer]
            try:
                whole, _ = answer_spans(tokenizer, messages, template)
            except (TemplateError, TypeError, ValueError) as error:
                raise RecipeError(
                    f"row {number}: the chat template refuses it: {error}",
                    where=f"chat template of {model.path}; {file}",
                    fix="set data.apply_chat_template_kwargs so that answers begin where the prompt ends (a reasoning "
                    "model's enable_thinking), or take another template by data.override_chat_template",
                ) from error
            if len(whole) > chosen.longest:
                long += 1
            else:
                kept.append({"messages": packed(messages)} | ({"tools": json.dumps(schemas)} if schemas else {}))
    if lacking:
        raise RecipeError(
            f"{len(lacking):,} of {rows:,} rows have no worked answer, which a warm start imitates",
            where=f"the first: {lacking[0]}, {WORKED}",
            fix=f"give each row a response as the model should write it in the column {WORKED!r}, a text or "
            "messages of assistant and tool, or train with GRPO alone",
        )
    if not kept:
        what = f"no row is at most {chosen.longest} tokens long"
        fix = "raise MAX_RESPONSE_LENGTH or MAX_PROMPT_LENGTH, and data.max_token_len_per_gpu where it is smaller"
        raise RecipeError(what, where="data.max_length, data.max_token_len_per_gpu", fix=fix)
    return kept, long


def write_rows(chosen: Plan) -> tuple[int, int]:
    """Write the rows of `worked_rows`; return their number, and that of the rows that are too long."""
    kept, long = worked_rows(chosen)
    chosen.rows.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(kept), chosen.rows)
    return len(kept), long


def counted(chosen: Plan, rows: int, long: int) -> str:
    """The line on the numbers of rows that are trained on, and left out, and of updates."""
    steps, asked = steps_of(chosen, rows), int(chosen.settings.trainer.total_training_steps or 0)
    more = f" (MAX_STEPS is {asked:,}, and the epochs end before; TOTAL_EPOCHS sets them)" * (asked > steps)
    left_out = f"{long:,} left out (longer than {chosen.longest} tokens)"
    return f"{rows:,} worked answers, {left_out}, {steps:,} updates{more}"


def rows_are_here(recipe: Recipe) -> bool:
    """Return whether all files of training rows are on this machine."""
    files = recipe.data.train_files
    return all(Path(file).is_file() for file in ([files] if isinstance(files, str) else files))


def try_rows(chosen: Plan) -> str:
    """The line on the rows without writing them; it says so where rows or tokenizer are not on this machine."""
    model = chosen.settings.model
    if not rows_are_here(chosen.recipe) or local_model(model.tokenizer_path or model.path) is None:
        return "note: worked answers are not counted: the rows or the model's tokenizer are not on this machine yet"
    kept, long = worked_rows(chosen)
    return counted(chosen, len(kept), long)


def command(chosen: Plan) -> list[str]:
    """The argument vector that starts verl's supervised trainer on this node's GPUs, or on CPU ranks."""
    places = {"data.train_files": chosen.rows, "trainer.default_local_dir": paths.checkpoint_dir(chosen.experiment)}
    ranks = f"--nproc_per_node={chosen.settings.trainer.n_gpus_per_node}"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks]
    module = "recipes.engines.verl.sft" if chosen.recipe.hardware == "cpu" else "verl.trainer.sft_trainer"
    words = [*chosen.overrides, *(_forced(name, str(place)) for name, place in places.items())]
    hydra = [f"hydra.run.dir={verl.quoted(str(paths.run_dir(chosen.experiment)))}", "hydra.output_subdir=null"]
    return [*start, "-m", module, *words, *hydra, "hydra/job_logging=stdout"]


def run(chosen: Plan, console: Console, task: str) -> int:
    """Make the rows, train, and put the model where MODEL_PATH finds it; return the exit code.

    `task` is what the user typed; the commands printed at the end repeat it.
    """
    recipe, checkpoints = chosen.recipe, paths.checkpoint_dir(chosen.experiment)
    is_run, taken = (paths.run_dir(chosen.experiment) / "config.yaml").exists(), ""
    if chosen.model.exists():
        taken = "there is a model of that name already"
    elif is_run or (checkpoints.exists() and not chosen.rows.exists()):
        taken = "that is a run of GRPO, whose metrics and checkpoints a warm start would replace"
    if taken:
        where = f"EXPERIMENT_NAME={chosen.experiment}: {relative_to_cwd(chosen.model)}, {relative_to_cwd(checkpoints)}"
        raise RecipeError(taken, where=where, fix="EXPERIMENT_NAME=another_name")
    refuse_planned(recipe)
    check_gpus(recipe)
    versions.check(recipe.hardware)
    for remark in [*remarks(recipe), *check_model(recipe), *check_context(recipe), *check_weights(recipe)]:
        console.print(f"note: {remark}")
    given = recipe.data.train_files
    data = ", ".join(str(relative_to_cwd(Path(file))) for file in ([given] if isinstance(given, str) else given))
    chosen = with_data(chosen, console.print)
    with lock_run(chosen.experiment) as files:
        rows, long = write_rows(chosen)
        for remark in row_remarks(chosen.recipe):
            console.print(f"note: {remark}")
        console.print(counted(chosen, rows, long))
        steps = steps_of(chosen, rows)
        # verl saves at this step, if it reaches it
        chosen.overrides.append(_forced("trainer.total_training_steps", steps))
        shutil.rmtree(checkpoints, ignore_errors=True)  # left by an attempt that made no model
        files.metrics.unlink(missing_ok=True)
        files.log.unlink(missing_ok=True)
        about = {"task": f"{recipe.name}, warm start", "total": steps, "checkpoints": str(checkpoints)}
        write_json(files.folder / "about.json", about)  # what `monitor.py` shows of it
        model = relative_to_cwd(Path(chosen.settings.model.path))
        console.print(f"warm start of {model} on {data}; verl's output: {relative_to_cwd(files.log)}")
        environment = {**os.environ, **verl.environment(recipe, os.environ), "PYTHONPATH": paths.python_path()}
        environment["VERL_FILE_LOGGER_PATH"] = str(files.attempt)
        progress = Progress(console, steps)
        progress.phase("the supervised trainer starts")
        outcome = supervise(
            Child(command(chosen), environment, files.log, paths.ROOT),
            files.log,
            0,
            MetricsFollower(files.attempt, files.metrics),
            progress,
            watchdog_seconds(os.environ),
            [partial(_show, progress=progress, last=steps)],
        )
    if outcome.interrupted:
        console.print("stopped; the same command starts again from the beginning")
        return outcome.exit_code
    saved = max(checkpoints.glob("global_step_*/huggingface"), key=lambda path: step_of(str(path)) or 0, default=None)
    if outcome.exit_code or saved is None:
        cause = outcome.hung or (outcome.error and outcome.error.error) or "no model was saved"
        what = f"the supervised trainer ended with exit code {outcome.code}: {cause}"
        fix = (outcome.error and outcome.error.hint) or "mend what its last lines say, and start again"
        raise RecipeError(what, where=str(relative_to_cwd(files.log)), fix=fix)
    chosen.model.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(saved, chosen.model)
    name_the_type(chosen.model)
    shutil.rmtree(checkpoints)
    console.print("\n".join(next_commands(chosen, task, os.environ)))
    return 0


def next_commands(chosen: Plan, task: str, environ: Mapping[str, str]) -> list[str]:
    """The model, and the commands that probe and train it, with the data, reward and keys of the warm start."""
    model, left_out = str(relative_to_cwd(chosen.model)), (*OF_TRAINER, MODEL)
    variables, kept = typed_variables(environ, left_out), [each for each in chosen.given if each.key not in left_out]
    settings = dict.fromkeys(each.setting for each in kept)
    probe = paths.script_command("eval.py", task, "--model_path", model, "analyse", *chosen.files, *settings)
    words = dict.fromkeys(each.words for each in kept)
    train = shlex.join([*chosen.files, *(word for each in words for word in each), "--model_path", model])
    return [f"model     {model}", f"probe     {variables}{probe}", f"train     {variables}{any_launcher(task)} {train}"]


def steps_of(chosen: Plan, rows: int) -> int:
    """The updates of a warm start on `rows` rows, at most MAX_STEPS. Raises RecipeError for a batch above `rows`."""
    settings = chosen.settings
    most = int(settings.data.train_max_samples)
    rows = min(rows, most) if most > 0 else rows
    steps = rows // int(settings.data.train_batch_size) * int(settings.trainer.total_epochs)
    if steps < 1:
        what = f"{rows:,} worked answers are fewer than one update's {settings.data.train_batch_size}"
        raise RecipeError(what, where="data.train_batch_size", fix=f"TRAIN_BATCH_SIZE={max(1, rows // 4)}")
    return min(steps, int(settings.trainer.total_training_steps or steps))


def _show(step: Step, progress: Progress, last: int) -> None:
    """Print every n-th step and the last, at most `LINES`; metrics lines without a training loss are validations."""
    if (step.step == last or step.step % -(-last // LINES) == 0) and "train/loss" in step.data:
        progress.note(
            f"step {step.step} | loss {step.data['train/loss']:.4f} | grad-norm {step.data['train/grad_norm']:.3f} | "
            f"lr {step.data['train/lr']:.2g}"
        )


def show_help(console: Console, task: str | None) -> None:
    """Print the options that a warm start of a task reads, with their defaults."""
    if task is None:
        console.print("usage: [VARIABLE=value ...] bash scripts/sft.sh TASK [--option value ...] [key=value ...]")
        console.print(f"tasks: {', '.join(tasks())}; TASK --help lists the options")
        return
    chosen = plan(task, (), {"TINY": "0", "HARDWARE": "gpu"})
    defaults = {path: OmegaConf.select(chosen.settings, key) for path, key in OF_TRAINER.items()}
    usage.show_options(console, task, "sft.sh", lambda path: path in OF_TRAINER or path.startswith(OF_RECIPE), defaults)
    console.print(
        "Keys of verl's supervised trainer are key=value too: configs/sft/settings.yaml has those that are set."
    )


def main(
    task: Annotated[str | None, typer.Argument(help="a recipe in configs/, or the path of one")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="--option value or key=value")] = None,
    help: Annotated[bool, typer.Option("--help", "-h", help="show options and variables")] = False,
    dry: Annotated[bool, typer.Option("--dry_run", help="print what would run, and stop")] = False,
) -> None:
    """Supervised fine-tuning on the worked answers of a recipe's training rows, as a warm start for GRPO."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with reported_errors():
        if help or task is None:
            show_help(console, task)
            raise typer.Exit(0 if help else 2)
        chosen = plan(task, arguments or (), os.environ)
        if dry or control(os.environ, "DRY_RUN"):
            for remark in remarks(chosen.recipe):
                print(f"# note: {remark}")
            chosen = with_data(chosen, lambda line: print(f"# {line}"), make=False)
            print(OmegaConf.to_yaml(chosen.settings))
            print(script(command(chosen), {}))
            print(f"# {try_rows(chosen)}")
            for remark in row_remarks(chosen.recipe):
                print(f"# note: {remark}")
            if chosen.recipe.resolution.planned_gpus is None:
                check_gpus(chosen.recipe)
            return
        raise typer.Exit(run(chosen, console, task))


if __name__ == "__main__":
    usage.run(main)
