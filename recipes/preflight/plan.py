"""`--plan`: a run on one screen before it starts: memory, steps, rates, minutes, disk, and the commands of the walk."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from recipes import preflight
from recipes.config import Recipe, total_steps
from recipes.config import gpus as plans
from recipes.config.accounting import data_parallel, divisors, updates, used_rows
from recipes.config.objective import update_suffices
from recipes.config.resolve import MODEL
from recipes.config.variables import read_arguments, split_overlays
from recipes.data.custom import ready
from recipes.data.rows import read_rows, row_count
from recipes.engines.worked_answers import OF_TRAINER, messages_of
from recipes.errors import RecipeError, counted
from recipes.memory import fit, gpus
from recipes.memory.estimates import GIGABYTE
from recipes.model_files import local_model
from recipes.paths import relative_to_cwd, run_dir, script_command
from recipes.preflight import data_files, machine, memory, speed
from recipes.preflight.model import fast_tokenizer
from recipes.runs.metrics import duration
from recipes.runs.summary import any_launcher, launcher, typed_arguments, typed_variables

FEW_STEPS, ENOUGH_STEPS = 50, 100
"""A plan with fewer steps names a batch that makes enough of them."""
USUAL_RESPONSE = 0.43
"""Mean response over the limit, where nothing tells: 440 of 1,024 tokens (docs/PERFORMANCE.md)."""
START, FIRST = 70, 15
"""Seconds until the first generation, and what the first step takes longer than later ones."""
SAVED = 0.7e9
"""Bytes of a checkpoint written a second."""
MOST_ANSWERS = 2_000
"""Worked answers of a file that are counted."""
WRONG_BY = 1.5
"""Factor by which the time of a step may be wrong, the length of responses apart."""
UNKNOWN = "known when the data is made"
THINKING = "thinking comes on top, which they do not show"
REFUSED = "minutes and commands follow once nothing stops the run: see the error below"


class Answers(NamedTuple):
    """Worked answers of the training rows: how many, mean length in tokens (0: not counted), and a sentence."""

    rows: int
    mean: float
    said: str


def show(console: Console, recipe: Recipe, task: str, environ: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Print the plan and the checks' remarks; return the exit code, 2 where a check would stop the run.

    The commands repeat the user's `task`, `environ` and `overrides`.
    """
    notes = preflight.check_before_data(recipe, plan_only=recipe.resolution.planned_gpus is not None)
    heading = preflight.heading(recipe)
    recipe = ready(recipe, lambda _: None, make=False)
    found = preflight.dry(recipe, skip=("cluster", "memory"))
    try:
        of_memory = memory.check_memory(recipe)
    except RecipeError as refusal:
        of_memory = ["see the error below"]
        found.errors.append(refusal)
    answers = worked_answers(recipe)
    lines = [("plan", heading), *_lines(recipe, answers, of_memory, is_refused=bool(found.errors))]
    if not found.errors:
        lines += ("", ""), *walk(recipe, task, environ, overrides, is_worked=answers.rows > 0)
    lines += [("note", remark) for remark in [*notes, *found.remarks]]
    width, before = max(len(name) for name, _ in lines), ""
    for name, text in lines:
        console.print(f"{name if name != before else '':<{width}}  {text}".rstrip())
        before = name
    for error in found.errors:
        console.print(f"\nerror: {error}")
    return 2 if found.errors else 0


def _lines(recipe: Recipe, answers: Answers, memory: Sequence[str], is_refused: bool) -> Iterator[tuple[str, str]]:
    rows, data = used_rows(recipe, row_count(recipe)), recipe.data
    rank = recipe.worker.actor.model.lora.rank
    trained = f"LoRA of rank {rank}" if rank else "all weights are trained"
    kind = "GPU" if recipe.hardware == "gpu" else "rank without a GPU"
    yield "model", f"{_model(recipe)}, {trained}; {recipe.n_gpus} x {kind}"
    for line in memory:
        yield "memory", line
    step = f"{data.rollout_batch_size} prompts x {recipe.worker.rollout.n} responses"
    yield "rows", f"{counted(rows, 'row') if rows else UNKNOWN}; {step}, {counted(updates(recipe), 'update')} a step"
    yield "steps", _steps(recipe, rows)
    lr, key = recipe.worker.actor.optim.lr, "worker.actor.optim.lr"
    meant = f", which is meant for all weights: adapters want ten times as much, LR={fit.FASTER_LORA * lr:g}"
    yield "rate", f"learning rate {lr:g}" + meant * bool(rank and not recipe.source_of(key).chosen)
    thinks = _can_think(recipe) and data.enable_thinking is not False
    said = f"{answers.said if rows else UNKNOWN}" + f"; {THINKING}" * bool(thinks and answers.mean)
    yield "answers", f"at most {data.max_response_length:,} tokens; {said}"
    if _can_think(recipe):
        off = "; ENABLE_THINKING=false turns it off" * (recipe.engine == "verl")  # EasyR1's templates take nothing
        on = f"on: it counts as part of the answer, and may take thousands of tokens{off}"
        yield "thinking", on if thinks else "off"
    for line in [REFUSED] if is_refused else _time(recipe, rows, 0 if thinks else answers.mean):
        yield "time", line
    yield "disk", _disk(recipe, rows)


def _model(recipe: Recipe) -> str:
    """A name on the hub, or a folder as it is typed here."""
    name = str(recipe.worker.actor.model.model_path)
    return str(relative_to_cwd(Path(name))) if Path(name).is_absolute() else name


def _steps(recipe: Recipe, rows: int) -> str:
    """Steps in all, the rows that no epoch uses, and a batch that makes enough steps."""
    batch, epochs, steps = recipe.data.rollout_batch_size, recipe.trainer.total_epochs, total_steps(recipe, rows)
    if recipe.trainer.max_steps is not None:
        return f"{steps:,}, as MAX_STEPS says"
    if not rows:
        return UNKNOWN
    left = rows % batch
    text = f"{steps:,} in all" + f"; {counted(left, 'row')} of each epoch not used" * bool(left)
    n, ranks = recipe.worker.rollout.n, data_parallel(recipe)
    enough = [size for size in divisors(batch) if rows // size * epochs >= ENOUGH_STEPS and size * n % ranks == 0]
    if steps >= FEW_STEPS or not enough:
        return text
    size = enough[-1]
    return f"{text}; few: TRAIN_BATCH_SIZE={size} GLOBAL_BATCH_SIZE={size} makes {rows // size * epochs:,}"


def _can_think(recipe: Recipe) -> bool:
    """True for a model that is listed as one that thinks, or whose chat template asks about thinking."""
    name = str(recipe.worker.actor.model.model_path)
    folder = local_model(name)
    templates = [folder / each for each in ("chat_template.jinja", "tokenizer_config.json")] if folder else []
    asks = any(each.is_file() and "enable_thinking" in each.read_text(encoding="utf-8") for each in templates)
    return asks or re.fullmatch(r"Qwen/Qwen3-[\d.]+B(-A\d+B)?", name) is not None


def worked_answers(recipe: Recipe) -> Answers:
    """Count the tokens of worked answers, the first ones of each file."""
    files = [key.path for key in data_files.files(recipe, "data.train_files") if Path(key.path).is_file()]
    rows = [row for file in files for row in islice(read_rows(file, ["extra_info"]), MOST_ANSWERS)]
    extras = [row.get("extra_info") for row in rows]  # EasyR1's may be a text
    answers = [messages_of(extra.get("solution")) for extra in extras if isinstance(extra, dict)]
    texts = ["\n".join(each["content"] for each in messages) for messages in answers if messages]
    folder = fast_tokenizer(recipe)
    if not texts:
        return Answers(0, 0, "no worked answers tell how long answers are")
    if folder is None:
        return Answers(len(texts), 0, "worked answers are not counted: the tokenizer is not on this machine")
    from tokenizers import Tokenizer

    tokens = [len(each.ids) for each in Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(texts)]
    mean, limit = sum(tokens) / len(tokens), recipe.data.max_response_length
    cut = sum(each > limit for each in tokens) / len(tokens)
    said = f"worked answers have {mean:,.0f} on average, {max(tokens):,} at most: {cut:.0%} would be cut"
    return Answers(len(texts), mean, said)


def _card(recipe: Recipe) -> speed.Card | None:
    """The measured card that the run's GPUs are; None where no figure is known."""
    if recipe.resolution.planned_gpus is None:
        here = gpus.model()
        return next((card for card in speed.CARDS.values() if here and card.name.split()[0] in here[0]), None)
    size = recipe.resolution.planned_gpus[0].total >> 20
    return next((card for label, card in speed.CARDS.items() if gpus.LABELS_MIB[label] == size), None)


def work_of(recipe: Recipe, response: float) -> speed.Work | None:
    """The work of the recipe's step, at a mean length of responses; None for an unknown model or GPU."""
    plan, data, rollout = plans.plan_of(recipe), recipe.data, recipe.worker.rollout
    if plan is None or recipe.hardware != "gpu":
        return None
    held = plan.cached_responses * plan.longest / (plan.prompt + response)  # of this length, in vLLM's cache
    return speed.Work(
        shape=plan.shape,
        rows=data.rollout_batch_size * rollout.n,
        prompts=data.rollout_batch_size,
        prompt=data.max_prompt_length / 2,
        response=response,
        most=data.max_response_length,
        gpus=recipe.n_gpus,
        nodes=recipe.trainer.nnodes,
        tensor=rollout.tensor_parallel_size,
        sequences=max(1, min(plan.sequences, int(held))),
        update_tokens=plan.update_tokens,
        forward_tokens=plan.forward_tokens,
        recompute=plan.recompute,
        lora=plan.lora > 0,
        on_host=plan.offload_all,
        passes=plan.reference + (recipe.engine == "easyr1" or not update_suffices(recipe)),
        images=rollout.limit_images > 0,
        easyr1=recipe.engine == "easyr1",
    )


def _time(recipe: Recipe, rows: int, mean: float) -> Iterator[str]:
    """Lines on the seconds of a step and the time in all, from measured rates."""
    limit, steps = recipe.data.max_response_length, total_steps(recipe, rows)
    expected = min(limit, mean or USUAL_RESPONSE * limit)
    work, card = work_of(recipe, expected), _card(recipe)
    if work is None:
        yield "not known: no figures without a GPU, or without the model's sizes"
        return
    if card is None:
        card = speed.CARDS["80"]
        yield f"no figure for this GPU; with the same settings as many {card.name} would take:"
    usual, most = (speed.seconds(replace(work, response=tokens), card).step for tokens in (expected, limit))
    yield f"{_range(usual)} a step with answers of {expected:,.0f} tokens, {duration(most)} if all reach the limit"
    if steps:
        saving = machine.saves_in(recipe, steps) * machine.checkpoint_bytes(recipe) / SAVED
        yield f"{_range(START + FIRST + steps * usual + saving)} in all, without validations"


def _range(seconds: float) -> str:
    return f"about {duration(seconds)} ({duration(seconds / WRONG_BY)} to {duration(seconds * WRONG_BY)})"


def _disk(recipe: Recipe, rows: int) -> str:
    one, every, steps = machine.checkpoint_bytes(recipe), recipe.trainer.save_freq, total_steps(recipe, rows)
    if every <= 0 or not one:
        none = "no checkpoints are saved, which an evaluation needs: SAVE_FREQ=20 saves one every 20 steps"
        return none if every <= 0 else "not known: the model's sizes are not known here"
    kept = machine.most_checkpoints(recipe, machine.saves_in(recipe, steps) if steps else 1_000)
    when = "at the end" if kept == 1 else f"every {every} steps and at the end, at most {kept} at a time"
    return f"a checkpoint of {_size(one)} {when}: {_size(kept * one)}"


def _size(count: float) -> str:
    return f"{count / GIGABYTE:,.1f} GB" if count >= GIGABYTE / 10 else f"{count / 1e6:,.1f} MB"


def walk(
    recipe: Recipe, task: str, environ: Mapping[str, str], overrides: Sequence[str], is_worked: bool
) -> list[tuple[str, str]]:
    """The commands from the probe to the evaluation, with the user's words; a warm start is one with `is_worked`."""
    files, words = split_overlays(overrides)
    planned = recipe.resolution.planned_gpus
    if planned:
        environ = {**environ, "HARDWARE": ""}  # a HARDWARE=cpu of this machine is not for those that are planned
    replaced = ("trainer.n_gpus_per_node",) if planned else ()
    number = f"GPUS_PER_NODE={len(planned)} " if planned else ""
    settings = dict.fromkeys(each.setting for each in read_arguments(words) if each.key not in ("gpus", MODEL))
    model = _model(recipe)
    probe = script_command("eval.py", task, "analyse", "--model_path", model, *files, *settings)
    lines = [("probe", typed_variables(environ, (MODEL,)) + probe)]
    if is_worked:
        variables = number + typed_variables(environ, (*replaced, *OF_TRAINER))
        arguments = typed_arguments(overrides, ("gpus", *replaced, *OF_TRAINER))
        command = f"{variables}{any_launcher(task, 'sft.sh')}{arguments}"
        lines.append(("warm start", f"{command}    # if the probe says so; it prints the commands that go on from it"))
    variables, arguments = typed_variables(environ, replaced), typed_arguments(overrides, ("gpus", *replaced))
    lines.append(("train", f"{number}{variables}{launcher(task)}{arguments}"))
    evaluate = script_command("eval.py", "reward", "--run", str(relative_to_cwd(run_dir(recipe.experiment))))
    return [*lines, *[("evaluate", evaluate)] * (recipe.trainer.save_freq > 0)]
