"""The plan of an evaluation: made from options and a recipe, and checked before anything is generated."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from recipes.config import Recipe, load, path_keys, visible_gpus
from recipes.config.checks import without_effect
from recipes.config.names import native, template_arguments
from recipes.config.resolve import MODEL, replaced
from recipes.config.rewards import problems
from recipes.config.schema import BY_CONVERSION, leaves, template_text
from recipes.config.variables import table, variable_settings
from recipes.data.custom import convert_one, of_converted, ready
from recipes.engines.checkpoints import BEST, best_checkpoint, step_of
from recipes.engines.columns import answer_column, prompt_column, prompt_template
from recipes.engines.verl.tools import tool_settings
from recipes.errors import RecipeError, raise_together
from recipes.evaluation.cache import evaluations, hash_file
from recipes.evaluation.models import EvaluatedModel, find_evaluated_model, find_model
from recipes.evaluation.openai_server import Server
from recipes.evaluation.options import TWINS, Options
from recipes.evaluation.questions import VERL_ROWS, RowFormat, described, has_images, outside_pictures
from recipes.evaluation.scoring import Reward, recipe_reward
from recipes.evaluation.vllm_engine import Engine
from recipes.files import json_sha256
from recipes.paths import command_line, relative_to_cwd, run_dir
from recipes.responses.measures import Sampling
from recipes.runs import folder as runs
from recipes.settings import flatten
from recipes.yaml_text import flow

Log = Callable[[str], None]


@dataclass(frozen=True)
class EvaluationPlan:
    task: str  # names the folder of the reports
    subjects: tuple[EvaluatedModel, ...]  # one model, or base and trained in that order
    data: Path  # parquet file
    reward: Reward  # scores the responses
    sampled: Sampling  # of the sampled pass
    greedy: Sampling | None  # of the greedy pass; None for the signal probe
    read: RowFormat = VERL_ROWS  # what of a row is prompt and ground truth
    batch: int | None = None  # prompts per training step, for the probe's effective batch
    engine: Engine = field(default_factory=Engine)
    options: Options = field(default_factory=Options)  # what is asked, and where results go
    samples: int = 200  # most questions in the report's table

    def __post_init__(self) -> None:
        if self.kind == "analyse" and self.sampled.n == 1:
            what = "analyse compares the answers of a group, and --rollout_n 1 makes groups of one"
            raise RecipeError(what, where="--rollout_n", fix="use the n of training, such as 16; 2 is the least")
        if self.options.filter_out and self.kind != "analyse":
            raise RecipeError("it needs the signal probe", where="--filter_out", fix="add the word analyse")
        self.check_filter_out()

    def check_filter_out(self) -> None:
        """Raise RecipeError if the probe may not write its file; called before the sampling and again after it."""
        target = self.options.filter_out
        same = target and target.resolve() == self.data.resolve()
        if target and target.suffix != ".parquet":  # a reader of rows goes by the name
            what = f"the rows are written as parquet, and {target} is named otherwise"
            raise RecipeError(what, where="--filter_out", fix=f"--filter_out {target.with_suffix('.parquet')}")
        if target and (same or (target.exists() and not self.options.overwrite)):
            fix = "name another file" if same else "name another file, or add --overwrite"
            raise RecipeError(f"{target} exists", where="--filter_out", fix=fix)

    @property
    def kind(self) -> str:
        """ "analyse", "evaluation" or "comparison"."""
        if self.greedy is None:
            return "analyse"
        return "comparison" if len(self.subjects) == 2 else "evaluation"

    @cached_property
    def prompts_hash(self) -> str:
        """A hash of the prompts: of the file, of the pictures outside it, and of what is read as the prompt where that
        is not verl's column."""
        parts, usual = [self.read.prompt, self.read.template, self.read.images], VERL_ROWS
        file, outside = hash_file(self.data), outside_pictures(self.data, self.read)
        if not outside and parts == [usual.prompt, usual.template, usual.images]:
            return file
        return json_sha256([file, *parts, *[outside] * bool(outside)])

    def identity(self, questions: int) -> dict[str, Any]:
        """Everything that decides the figures of a report.

        Two evaluations with equal identities read the same cached responses: without --fresh their figures are equal.
        """
        return {
            "kind": self.kind,
            "models": {subject.label: subject.model_hash for subject in self.subjects},
            "data": {"sha256": hash_file(self.data), "questions": questions, **described(self.data)},
            "read": self.read._asdict(),
            "limit": self.options.limit,
            "reward": {
                "path": str(self.reward.path),
                "sha256": self.reward.sha256,
                "arguments": self.reward.arguments,
            },
            "sampled": asdict(self.sampled),
            "greedy": self.greedy and asdict(self.greedy),
            "engine": ", ".join(dict.fromkeys(subject.generator(self.engine) for subject in self.subjects)),
            "batch": self.batch,
        }


TURNS = ("actor_rollout_ref.rollout.multi_turn.", "actor_rollout_ref.rollout.agent.default_agent_loop")
"""verl's names that let a model take several turns, or call tools."""

OF_EVALUATION = (*BY_CONVERSION, *table("read_by.yaml")["evaluation"])
"""Beginnings of the keys that an evaluation reads, or the conversion of its data."""
OF_TRAINING_ALONE, AS_TRAINED = (tuple(table("read_by.yaml")[name]) for name in ("training_alone", "as_trained"))
"""Beginnings of keys that shape answers, or scores, in training alone; and of those that an evaluation has as a run."""


def plan_of(options: Options, log: Log) -> EvaluationPlan:
    """The plan that the options ask for; other values come from the task's recipe or the run's configuration."""
    recipe = _recipe(options)
    raise_together([*problems(recipe)])
    if name := next((name for name, value in native(recipe).items() if name.startswith(TURNS) and value), None):
        where, fix = recipe.source_of(f"verl.{name}").where, "validate as training does, with trainer.val_only=true"
        raise RecipeError(f"{name} trains with tools or turns, which an evaluation does not have", where=where, fix=fix)
    for option, path in TWINS.items():
        own, source = getattr(options, option), recipe.source_of(path)
        if own is not None and source.layer == "argument" and own != recipe.value(path):
            what = f"{path} is {own} as --{option}, but {recipe.value(path)} by the {source}"
            raise RecipeError(what, where=f"--{option}; {source}", fix="give one of the two")
    typed = {path: str(source) for path, source in recipe.sources.items() if source.by_user}
    acting = {source for path, source in typed.items() if path.replace("+", "").startswith(OF_EVALUATION)}
    unread = [source for source in dict.fromkeys(typed.values()) if source not in acting]
    if options.run:
        unread += dict.fromkeys(str(each.source) for each in variable_settings(os.environ))
    unread += _of_training_alone(recipe)
    served, base_served = bool(options.api_base), bool(options.base_api_base)
    idle = ("tensor_parallel_size",) * served + ("concurrency",) * (not (served or base_served))
    idle += ("gpu_memory_utilization",) * (served or not visible_gpus(os.environ))
    idle += ("base_api_base",) * (not (options.base_model_path or options.run))
    idle += ("overwrite",) * (not (options.output_dir or options.filter_out))
    unread += [f"--{name}" for name in idle if getattr(options, name) != getattr(Options, name)]
    of_server = ("data.override_chat_template", "worker.actor.model.trust_remote_code")
    if served and not recipe.worker.rollout.tools:  # with them the prompts are written here
        unread += [f"{key}, since a server has its own" for key in of_server if recipe.value(key)]
    notes = [found.what for found in without_effect(recipe) if found.what.startswith(OF_EVALUATION)]
    notes += [f"an evaluation does not read {', '.join(unread)}"] if unread else []
    for note in [*recipe.resolution.notes, *notes]:
        log(f"note: {note}")
    if options.analyse and options.base_model_path:
        raise RecipeError("analyse looks at one model", where="--base_model_path", fix="leave out one of the two")
    rollout = recipe.worker.rollout
    sampled = Sampling(
        n=_given(options.rollout_n, rollout.n),
        temperature=_given(options.temperature, rollout.temperature),
        top_p=_given(options.top_p, rollout.top_p),
        top_k=rollout.top_k,
        max_tokens=_given(options.max_tokens, recipe.data.max_response_length),
        seed=_given(options.seed, 0),
    )
    subjects = _subjects(options, recipe)
    if not options.data:
        recipe = ready(recipe, log)
    if changed := _unlike_the_run(options, recipe, subjects[-1], (*typed, *["data.val_files"] * bool(options.data))):
        log(f"note: unlike in the run that trained the model, {'; '.join(changed)}")
    if options.data:
        data = convert_one(options.data, recipe, command_line())
        read = _read(recipe if data == options.data else of_converted(recipe))
    else:
        data, read = _recipes_data(recipe, train=options.analyse)
    return EvaluationPlan(
        task=recipe.name,
        subjects=subjects,
        data=data,
        reward=recipe_reward(recipe),
        read=read,
        sampled=sampled,
        greedy=None if options.analyse else replace(sampled, n=1, temperature=0.0, top_p=1.0, top_k=-1),
        batch=recipe.data.rollout_batch_size if options.analyse else None,
        engine=_engine(options, recipe, data),
        options=options,
    )


def _of_training_alone(recipe: Recipe) -> list[str]:
    """Settings, which nobody typed, that shape answers or scores of the training, and that an evaluation lacks."""
    known, precision = leaves(Recipe), "fp32" if recipe.hardware == "cpu" else None
    return [
        f"{path}={flow(value)}"
        for path, value in flatten(recipe.model_dump()).items()
        if path.replace("+", "").startswith(OF_TRAINING_ALONE)
        and ".compilation_config" not in path
        and not recipe.source_of(path).by_user
        and value not in (None, {}, precision, known[path].default if path in known else None)
    ]


def _unlike_the_run(options: Options, recipe: Recipe, trained: EvaluatedModel, chosen: Sequence[str]) -> list[str]:
    """Settings of conversations and sampling that differ from those of the run whose checkpoint is evaluated, and
    files that are no longer as they were, unless the user has `chosen` them by these keys."""
    folder, place = options.run, Path(str(recipe.trainer.save_checkpoint_path))
    if isinstance(trained.source, Path) and len(trained.source.parts) > 3:
        above = trained.source.parents[:4]  # EXPERIMENT/global_step_N/actor/huggingface
        place = next((each for each in above if (each / runs.RECORD).is_file()), above[2])
        folder = folder or run_dir(place.name)
    if folder is None or not (folder / "config.yaml").is_file():
        return []
    try:
        run = _of_run(folder)
    except RecipeError:
        return []  # of another version, or of another schema
    if run.name != recipe.name:
        return []
    asked = [path for option, path in TWINS.items() if getattr(options, option) is not None]
    if not (recipe.worker.rollout.tools and run.worker.rollout.tools):
        asked += ["worker.rollout.tool_", "worker.rollout.max_t"]  # they mean nothing without tools
    ours, theirs = (flatten(each.model_dump()) for each in (recipe, run))
    pairs = {path: (ours.get(path), theirs.get(path)) for path in {**theirs, **ours} if path.startswith(AS_TRAINED)}
    pairs = {path: pair for path, pair in pairs.items() if not path.startswith(tuple(asked))}
    said = [f"{path} is {flow(here)}, not {flow(there)}" for path, (here, there) in pairs.items() if here != there]
    return said + _changed_files(options, recipe, trained, chosen, place)


def _changed_files(
    options: Options, recipe: Recipe, trained: EvaluatedModel, chosen: Sequence[str], place: Path
) -> list[str]:
    """Rows, reward, tools and template that the record in `place` has otherwise, those of `chosen` keys left out."""
    said: list[str] = []
    best = best_checkpoint(place) if BEST in Path(trained.address).parts else None
    attempts, step = runs.recorded(place), step_of(trained.address) or (best and best.step)
    made = runs.attempt_of(attempts, step) if step else next(reversed(attempts), None)
    of_rows = ("data.train_files", "data.val_files", "data.seed", *BY_CONVERSION)
    rows = runs.TRAINING_ROWS if options.analyse else runs.VALIDATION_ROWS
    keys = {rows: of_rows, runs.REWARD: ("worker.reward.reward_",)}
    for name, begins in {**keys, runs.TOOLS: (runs.TOOLS,), runs.TEMPLATE: (runs.TEMPLATE,)}.items():
        then = made and made.content.get(name)
        if then and not any(path.startswith(begins) for path in chosen):
            now = runs.digest_of(recipe, name)
            said += [runs.Change(name, then, now, "", content=True).described] * (now not in (None, then))
    return said


def target_folder(plan: EvaluationPlan, identity: dict[str, Any]) -> Path:
    """`--output_dir`, which may exist only to be overwritten, or a folder named after a hash of the identity."""
    output = plan.options.output_dir
    if output is None:
        key = json_sha256(identity)[:8]
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", plan.subjects[-1].name).strip("-")
        return evaluations() / plan.task / f"{plan.kind}-{slug}-{key}"
    replaceable = (output / "report.json").is_file() or (output.is_dir() and not any(output.iterdir()))
    if output.exists() and not (replaceable and plan.options.overwrite):
        fix = "name another folder" + ", or add --overwrite" * replaceable
        raise RecipeError(f"{output} exists" + ", and is no report" * (not replaceable), where="--output_dir", fix=fix)
    return output


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _recipe(options: Options) -> Recipe:
    """The task's recipe with the model that is evaluated, whose sizes decide, or the run's resolved configuration."""
    if options.run is None:
        if not options.task:
            raise RecipeError("no task is named", where="the first argument", fix="name one, or a run with --run")
        here = bool(options.model_path) and not options.api_base
        model = [f"{MODEL}={find_model(options.model_path)}"] if here else []
        return load(options.task, arguments=[*options.words, *model])
    if not (options.run / "config.yaml").is_file():
        runs = sorted(str(relative_to_cwd(each.parent)) for each in run_dir("").glob("*/config.yaml"))
        fix = f"give one of {', '.join(runs)}" if runs else "train first, or give a run's folder"
        raise RecipeError("this is not the folder of a run: it has no config.yaml", where=str(options.run), fix=fix)
    recipe = _of_run(options.run, options.words)
    if options.task and options.task != recipe.name:
        raise RecipeError(f"{options.run} is a run of {recipe.name}", where=options.task, fix="leave the task out")
    return recipe


def _of_run(folder: Path, words: Sequence[str] = ()) -> Recipe:
    """The recipe of a run; what is gone from the artifacts where it ran is taken from those where its folder is now."""
    recipe, moved = load(str(folder / "config.yaml"), arguments=words, environ={}), dict[str, Any]()
    then, now = (Path(str(place)).absolute().parent.parent for place in (recipe.trainer.save_checkpoint_path, folder))
    for each in path_keys(recipe):
        path = Path(each.path)
        if path.is_relative_to(then) and not path.exists() and (here := now / path.relative_to(then)).exists():
            value = moved.get(each.key, recipe.value(each.key))
            texts = [text.replace(each.path, str(here)) for text in (value if isinstance(value, list) else [value])]
            moved[each.key] = texts if isinstance(value, list) else texts[0]
    return replaced(recipe, moved, f"as {folder / 'config.yaml'} says, and moved since") if moved else recipe


def _recipes_data(recipe: Recipe, *, train: bool) -> tuple[Path, RowFormat]:
    """The training or validation file of a recipe whose data is ready."""
    key = "data.train_files" if train else "data.val_files"
    files = [Path(entry.path) for entry in path_keys(recipe) if entry.key == key]
    if len(files) != 1:
        fix = f"choose with --data: {', '.join(map(str, files))}" if files else "name one with --data"
        raise RecipeError(f"the recipe names {len(files)} data files, and an evaluation takes one", where=key, fix=fix)
    if not files[0].is_file():
        raise RecipeError(f"there is no data file {files[0]}", where=key, fix="make it, or name one with --data")
    return files[0], _read(recipe)


def _read(recipe: Recipe) -> RowFormat:
    of_easyr1 = (answer_column(recipe), prompt_template(recipe)) if recipe.engine == "easyr1" else ("", "")
    data = recipe.data
    return RowFormat(prompt_column(recipe), *of_easyr1, data.image_key, data.image_dir or ".", data.video_key)


def _engine(options: Options, recipe: Recipe, data: Path) -> Engine:
    settings, tools = recipe.data, tool_settings(recipe)
    # The limit of a tiny model is that of its own data.
    limited = settings.filter_overlong_prompts and recipe.source_of("data.max_prompt_length").layer != "tiny"
    # On a machine without GPUs, a recipe for several GPUs is evaluated in one process.
    here = visible_gpus(os.environ)
    tensor_parallel_size = _given(
        options.tensor_parallel_size, recipe.worker.rollout.tensor_parallel_size if here else 1
    )
    if tensor_parallel_size > max(1, here) and not options.api_base:
        what = f"a model is spread over {tensor_parallel_size} GPUs, and this machine has {here}"
        raise RecipeError(what, where="--tensor_parallel_size", fix=f"--tensor_parallel_size {max(1, here)}")
    bounded = ("min_pixels", "max_pixels") if has_images(data, settings.image_key) else ()
    bounds = {name: getattr(settings, name) for name in bounded}
    return Engine(
        tensor_parallel_size,
        options.gpu_memory_utilization,
        template_text(settings.override_chat_template) or "",
        compilation=recipe.worker.rollout.engine_kwargs.get("compilation_config"),
        template_arguments=template_arguments(recipe),
        processor={name: value for name, value in bounds.items() if value is not None},
        of_easyr1=recipe.engine == "easyr1" and bool(bounded),
        prompt_tokens=settings.max_prompt_length if limited or tools else None,
        tools=tools,
        trust_remote_code=recipe.worker.actor.model.trust_remote_code,
    )


def _subjects(options: Options, recipe: Recipe) -> tuple[EvaluatedModel, ...]:
    """One model, or base and trained; for a run without further options, its last checkpoint and its base model."""
    trained_name, base_name = options.model_path, options.base_model_path
    if not trained_name and options.run:
        trained_name = str(recipe.trainer.save_checkpoint_path)
        if not options.api_base and not Path(trained_name).exists():  # a server's may lie elsewhere
            beside = relative_to_cwd(options.run.absolute().parent.parent / "checkpoints" / Path(trained_name).name)
            fix = f"move them to {beside}, or name one: --model_path FOLDER/global_step_N"
            raise RecipeError(f"the run's checkpoints are not in {trained_name}", where=str(options.run), fix=fix)
        base_name = base_name or ("" if options.analyse else recipe.worker.actor.model.model_path or "")
    if not trained_name:
        fix = "name a folder, a checkpoint, or a run (--run)"
        raise RecipeError("no model is named", where="--model_path", fix=fix)

    model, tools = recipe.worker.actor.model, recipe.worker.rollout.tools
    tokenizer = (model.tokenizer_path or model.model_path or "") if tools else ""

    def find(label: str, name: str, option: str, api_base: str) -> EvaluatedModel:
        server = Server(api_base, name, options.concurrency, tokenizer) if api_base else None
        return find_evaluated_model(label, name, option, server)

    trained = find("trained" if base_name else "model", trained_name, "--model_path", options.api_base)
    if not base_name:
        return (trained,)
    base = find("base", base_name, "--base_model_path", options.base_api_base or options.api_base)
    if base.model_hash == trained.model_hash:
        what = "base and trained are the same model, file by file"
        raise RecipeError(what, where="--base_model_path", fix="name the model that training began from")
    return (base, trained)
