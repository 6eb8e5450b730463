"""Environment variables, `--options` and `key=value` arguments: one table, variable -> key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

from recipes.config.layers import Name, Setting, parse_as
from recipes.config.schema import Source
from recipes.errors import RecipeError, did_you_mean


@dataclass(frozen=True)
class Variable:
    """A variable that sets a key, and the keys in `also`. Several names are separated by blanks.

    Attributes:
        aliases: other names of the same standing.
        options: short names as an option of the command line, where --name in small letters is not the usual one.
        guesses: names that other programs use for the same thing. They are taken where no proper name is set, with a
            note that says so.
    """

    name: str
    key: str
    aliases: str = ""
    also: tuple[str, ...] = ()
    options: str = ""
    guesses: str = ""

    @property
    def names(self) -> list[str]:
        return [self.name, *self.aliases.split()]

    @property
    def all_names(self) -> list[str]:
        """Names, aliases and guesses."""
        return [*self.names, *self.guesses.split()]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.also)


class Control(NamedTuple):
    """A variable that steers the launcher and sets no key."""

    name: str
    doc: str


_MODEL, _ACTOR, _ROLLOUT = "worker.actor.model", "worker.actor", "worker.rollout"
# Each row sets a recipe key; verl's name is the key's `verl=` in config/schema, written by engines/verl.py.
VARIABLES: tuple[Variable, ...] = (
    Variable("ENGINE", "engine"),
    Variable(
        "MODEL_PATH",
        f"{_MODEL}.model_path",
        options="model",
        guesses="MODEL MODEL_NAME MODEL_NAME_OR_PATH MODEL_ID BASE_MODEL",
    ),
    Variable("TRAIN_FILES", "data.train_files", options="data", guesses="TRAIN_FILE TRAIN_DATA TRAIN_DATA_PATH"),
    Variable(
        "VAL_FILES",
        "data.val_files",
        "TEST_FILES",
        options="val_data",
        guesses="VAL_FILE VAL_DATA_PATH TEST_FILE TEST_DATA EVAL_FILES",
    ),
    Variable("VAL_SHARE", "data.val_share"),
    Variable("DATA_SOURCE", "data.data_source"),
    Variable("SYSTEM_PROMPT", "data.system_prompt"),
    Variable("FORMAT_PROMPT", "data.format_prompt", options="template"),
    Variable("MAX_PROMPT_LENGTH", "data.max_prompt_length", guesses="MAX_PROMPT_LEN PROMPT_LENGTH"),
    Variable(
        "MAX_RESPONSE_LENGTH",
        "data.max_response_length",
        guesses="MAX_RESPONSE_LEN RESPONSE_LENGTH MAX_COMPLETION_LENGTH MAX_NEW_TOKENS MAX_TOKENS",
    ),
    Variable("ROLLOUT_BATCH_SIZE", "data.rollout_batch_size", "TRAIN_BATCH_SIZE", guesses="TRAIN_BSZ PROMPTS_PER_STEP"),
    Variable("VAL_BATCH_SIZE", "data.val_batch_size"),
    Variable("MIN_PIXELS", "data.min_pixels"),
    Variable("MAX_PIXELS", "data.max_pixels"),
    Variable("SEED", "data.seed", also=(f"{_ROLLOUT}.seed",), guesses="RANDOM_SEED"),
    Variable("ALGORITHM", "algorithm.preset", guesses="ALGO"),
    Variable("ADV_ESTIMATOR", "algorithm.adv_estimator", guesses="ADVANTAGE_ESTIMATOR"),
    Variable("NORM_ADV_BY_STD", "algorithm.norm_adv_by_std", "NORM_ADV_BY_STD_IN_GRPO"),
    Variable("DISABLE_KL", "algorithm.disable_kl"),
    Variable("USE_KL_LOSS", "algorithm.use_kl_loss"),
    Variable("KL_COEF", "algorithm.kl_coef", guesses="KL_COEFF KL_COEFFICIENT KL_WEIGHT"),
    Variable("KL_PENALTY", "algorithm.kl_penalty"),
    Variable("KL_LOSS_COEF", "algorithm.kl_loss_coef"),
    Variable("KL_LOSS_TYPE", "algorithm.kl_loss_type"),
    Variable("ONLINE_FILTERING", "algorithm.online_filtering"),
    Variable("GLOBAL_BATCH_SIZE", f"{_ACTOR}.global_batch_size", "PPO_MINI_BATCH_SIZE", guesses="MINI_BATCH_SIZE"),
    Variable(
        "MICRO_BATCH_SIZE",
        f"{_ACTOR}.micro_batch_size_per_device_for_update",
        "MICRO_BATCH_SIZE_FOR_UPDATE",
        guesses="PPO_MICRO_BATCH_SIZE PPO_MICRO_BATCH_SIZE_PER_GPU MICRO_BATCH_SIZE_PER_GPU",
    ),
    Variable("MICRO_BATCH_SIZE_FOR_EXPERIENCE", f"{_ACTOR}.micro_batch_size_per_device_for_experience"),
    Variable("LR", f"{_ACTOR}.optim.lr", "LEARNING_RATE", guesses="ACTOR_LR"),
    Variable("LR_SCHEDULER_TYPE", f"{_ACTOR}.optim.lr_scheduler_type", guesses="LR_SCHEDULER SCHEDULER"),
    Variable("WEIGHT_DECAY", f"{_ACTOR}.optim.weight_decay"),
    Variable("LR_WARMUP_RATIO", f"{_ACTOR}.optim.lr_warmup_ratio", guesses="WARMUP_RATIO"),
    Variable("MAX_GRAD_NORM", f"{_ACTOR}.max_grad_norm", guesses="GRAD_CLIP"),
    Variable("PPO_EPOCHS", f"{_ACTOR}.ppo_epochs"),
    Variable("LORA_RANK", f"{_MODEL}.lora.rank", guesses="LORA_R"),
    Variable("LORA_ALPHA", f"{_MODEL}.lora.alpha"),
    Variable("ENTROPY_COEFF", f"{_ACTOR}.entropy_coeff", guesses="ENTROPY_COEF"),
    Variable("CLIP_RATIO_LOW", f"{_ACTOR}.clip_ratio_low"),
    Variable("CLIP_RATIO_HIGH", f"{_ACTOR}.clip_ratio_high"),
    Variable("LOSS_AGG_MODE", f"{_ACTOR}.loss_agg_mode"),
    Variable("PADDING_FREE", f"{_ACTOR}.padding_free"),
    Variable(
        "ROLLOUT_N",
        f"{_ROLLOUT}.n",
        guesses="NUM_GENERATIONS GROUP_SIZE NUM_ROLLOUTS N_ROLLOUTS NUM_RESPONSES N_RESPONSES N_SAMPLES",
    ),
    Variable("TEMPERATURE", f"{_ROLLOUT}.temperature", guesses="TEMP ROLLOUT_TEMPERATURE"),
    Variable("TOP_P", f"{_ROLLOUT}.top_p"),
    Variable("TOP_K", f"{_ROLLOUT}.top_k"),
    Variable("TENSOR_PARALLEL_SIZE", f"{_ROLLOUT}.tensor_parallel_size", guesses="TP TP_SIZE ROLLOUT_TP"),
    Variable(
        "GPU_MEMORY_UTIL",
        f"{_ROLLOUT}.gpu_memory_utilization",
        "GPU_MEMORY_UTILIZATION",
        guesses="GPU_UTIL GPU_MEM_UTIL",
    ),
    Variable(
        "REWARD_FUNCTION",
        "worker.reward.reward_function",
        options="reward_func",
        guesses="REWARD_FUNC REWARD_FN REWARD_FILE REWARD_PATH",
    ),
    Variable(
        "TOTAL_EPOCHS", "trainer.total_epochs", options="epochs", guesses="EPOCHS NUM_EPOCHS N_EPOCHS NUM_TRAIN_EPOCHS"
    ),
    Variable(
        "MAX_STEPS",
        "trainer.max_steps",
        guesses="STEPS NUM_STEPS TOTAL_STEPS TRAIN_STEPS TRAINING_STEPS TOTAL_TRAINING_STEPS",
    ),
    Variable("NNODES", "trainer.nnodes", guesses="N_NODES NUM_NODES"),
    Variable(
        "GPUS_PER_NODE",
        "trainer.n_gpus_per_node",
        "N_GPUS_PER_NODE",
        options="n_gpus",
        guesses="N_GPUS N_GPU NUM_GPUS NGPUS NGPU GPUS NPROC_PER_NODE",
    ),
    Variable("PROJECT_NAME", "trainer.project_name"),
    Variable("EXPERIMENT_NAME", "trainer.experiment_name", guesses="EXP_NAME EXPERIMENT EXP RUN_NAME RUN_ID"),
    Variable("LOGGER", "trainer.logger", guesses="LOGGERS"),
    Variable("VAL_FREQ", "trainer.val_freq", "TEST_FREQ", guesses="EVAL_FREQ EVAL_STEPS VAL_STEPS"),
    Variable("VAL_BEFORE_TRAIN", "trainer.val_before_train"),
    Variable("SAVE_FREQ", "trainer.save_freq", guesses="SAVE_STEPS SAVE_INTERVAL SAVE_EVERY"),
    Variable("SAVE_LIMIT", "trainer.save_limit", guesses="SAVE_TOTAL_LIMIT"),
    Variable("CHECKPOINT_DIR", "trainer.save_checkpoint_path", guesses="CKPT_DIR CHECKPOINT_PATH SAVE_DIR"),
    Variable("RESUME", "trainer.find_last_checkpoint"),
    Variable("RESUME_FROM", "trainer.load_checkpoint_path", guesses="RESUME_FROM_CHECKPOINT"),
)

CONTROLS: tuple[Control, ...] = (
    Control("HARDWARE", "cpu or gpu: the hardware file to use; default: gpu if the machine has one"),
    Control(
        "EMBEDDED",
        "1 or 0: use the recipe's tiny model and data; default: 1 on a cpu (custom: unless you give a model or data)",
    ),
    Control("DRY_RUN", "1: print the resolved recipe, the trainer's command and the accounting, and stop"),
    Control("ARTIFACTS_DIR", "folder for everything a run makes; default: artifacts"),
    Control(
        "MAX_ROLLOUT_KL",
        "nats a token that vLLM may differ from the trainer on prompts with images; default: 0.01 in fp32, else 0.02",
    ),
    Control(
        "WATCHDOG_MINUTES",
        "minutes without output and work before a run is given up, longer by what it measured; default: 5",
    ),
    Control("IGNORE_VARIABLES", "names, joined by commas, that belong to another program and are no typing mistake"),
)

_SIZES = "ROLLOUT_BATCH_SIZE (prompts a step), GLOBAL_BATCH_SIZE (prompts an update) or MICRO_BATCH_SIZE (a pass)"
AMBIGUOUS = {
    "BATCH_SIZE": _SIZES,
    "BSZ": _SIZES,
    "MAX_LENGTH": "MAX_PROMPT_LENGTH or MAX_RESPONSE_LENGTH",
    "MAX_LEN": "MAX_PROMPT_LENGTH or MAX_RESPONSE_LENGTH",
    "CLIP_RATIO": "CLIP_RATIO_LOW or CLIP_RATIO_HIGH",
    "BETA": "KL_COEF",
    "DATASET": "TRAIN_FILES or VAL_FILES",
    "DATA_PATH": "TRAIN_FILES or VAL_FILES",
    "OUTPUT_DIR": "ARTIFACTS_DIR or CHECKPOINT_DIR",
}
"""Names that may mean several keys, or belong to another program: they set nothing, and a note says so."""

# Families of variables that belong to other programs, so that a likeness to one of ours is chance.
_OTHERS = (
    "AWS_", "AZURE_", "CONDA_", "CUDA_", "DOCKER_", "GIT_", "GITHUB_", "GOOGLE_", "HF_", "JAX_", "KUBERNETES_", "LC_",
    "LS_", "MKL_", "MLFLOW_", "NCCL_", "NVIDIA_", "OMP_", "OPENAI_", "PIP_", "PYTHON", "PYTORCH_", "RAY_", "SLURM_",
    "SSH_", "SWANLAB_", "TF_", "TOKENIZERS_", "TORCH_", "TRANSFORMERS_", "UV_", "VERL_", "VIRTUAL_", "VLLM_", "WANDB_",
    "TMP", "XDG_"
)  # fmt: skip


def variable_names(variables: Iterable[Variable] = VARIABLES) -> set[str]:
    """Every variable that means something here: names, aliases, guesses, and the launcher's own."""
    names = {name for variable in variables for name in variable.all_names}
    return names | {control.name for control in CONTROLS}


def variable_settings(environ: Mapping[str, str], variables: Sequence[Variable] = VARIABLES) -> list[Setting]:
    """The settings that the environment makes, as text; an empty variable counts as unset.

    Raises RecipeError when two variables for one key disagree, or a variable looks like a mistyped one.
    """
    _refuse_mistyped(environ, variables)
    settings = []
    for variable in variables:
        given = _given(environ, variable.names)
        guessed = {} if given else _given(environ, variable.guesses.split())
        texts = given or guessed
        if len({text.strip() for text in texts.values()}) > 1:
            raise RecipeError(
                "two variables for one key disagree: " + ", ".join(f"{name}={text}" for name, text in texts.items()),
                where=f"both set {variable.key}",
                fix=f"unset {' or '.join(texts)}" if given else f"set {variable.name} instead",
            )
        for name, text in list(texts.items())[:1]:
            where = f"variable {name}={text}" + (f", read as {variable.name}" if guessed else "")
            note = f"the variable {name}={text} is read as {variable.name}" if guessed else ""
            source = Source("environment", where, note=note)
            settings += [Setting(key, text, source) for key in variable.keys]
    return settings


def _given(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The names that are set. TEMP counts as a temperature only where it is a number: elsewhere it is a folder."""
    given = {name: environ[name] for name in names if environ.get(name, "").strip()}
    if "TEMP" in given and not given["TEMP"].strip().replace(".", "", 1).isdigit():
        del given["TEMP"]
    return given


def ambiguous(environ: Mapping[str, str]) -> list[str]:
    """A note for each variable that is set, sets nothing, and may have been meant for one of ours."""
    return [
        f"the variable {name}={environ[name]} sets nothing here; if it is meant for this run, use {meant}"
        for name, meant in AMBIGUOUS.items()
        if environ.get(name, "").strip() and name not in _ignored(environ)
    ]


def _ignored(environ: Mapping[str, str]) -> set[str]:
    return {name.strip() for name in environ.get("IGNORE_VARIABLES", "").split(",")}


def mistyped(environ: Mapping[str, str], variables: Sequence[Variable] = VARIABLES) -> dict[str, str]:
    """Variables that are not ours but nearly: mistyped name -> the name that was meant."""
    names = {name: variable.name for variable in variables for name in variable.all_names}
    names |= {control.name: control.name for control in CONTROLS}
    foreign = _ignored(environ) | set(AMBIGUOUS)
    meant = {}
    for name, text in environ.items():
        if not text.strip() or name in names or name in foreign or name.startswith(_OTHERS):
            continue
        # Short words are alike by chance, so they have to share more.
        close = get_close_matches(name.upper(), names, n=1, cutoff=0.85 if len(name) > 4 else 0.8)
        if close:
            meant[name] = names[close[0]]
    return meant


def _refuse_mistyped(environ: Mapping[str, str], variables: Sequence[Variable]) -> None:
    if wrong := mistyped(environ, variables):
        (name, meant), *others = wrong.items()
        more = "".join(f"; {other}: did you mean {its}?" for other, its in others)
        raise RecipeError(
            f"the environment variable {name} is unknown here: did you mean {meant}?{more}",
            where=f"variable {name}={environ[name]}",
            fix=f"rename it to {meant}; if it belongs to another program, set IGNORE_VARIABLES={','.join(wrong)}",
        )


def is_on(environ: Mapping[str, str], name: str) -> bool | None:
    """A switch such as DRY_RUN or EMBEDDED; None where it is not set."""
    value = parse_as(environ.get(name, "").strip() or "null", bool | None)
    if value not in (True, False, None):
        raise RecipeError(f"{name}={environ[name]} is neither on nor off", where=f"variable {name}", fix="use 1 or 0")
    return value


def positive_number(environ: Mapping[str, str], name: str, example: str) -> float | None:
    """The number in a variable; None where it is not set. Raises RecipeError for what is no positive number."""
    text = environ.get(name, "").strip()
    try:
        value = float(text or "nan")
    except ValueError:
        value = 0.0
    if text and not value > 0:
        raise RecipeError(f"{name}={text} is not a positive number", where=f"variable {name}", fix=example)
    return value if text else None


def dry_run(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether DRY_RUN is on."""
    return bool(is_on(environ, "DRY_RUN"))


CONTROL_OPTIONS = ("hardware", "embedded")
"""Options that steer the launcher and are arguments too: `hardware=cpu`."""

FLAGS = ("dry_run", "help")
"""Options without a value; the launcher reads them before these."""


class Argument(NamedTuple):
    """One setting of the command line: a dotted key, its text, and the words as they were typed."""

    key: str
    text: str
    words: tuple[str, ...]


@cache
def options(variables: tuple[Variable, ...] = VARIABLES) -> dict[str, Variable]:
    """Every option without its dashes, the usual name of each variable first."""
    return {
        name: variable
        for variable in variables
        for name in (*variable.options.split(), *map(str.lower, variable.all_names))
    }


def usual_name(variable: Variable) -> str:
    """The option that the documentation uses."""
    return (variable.options or variable.name.lower()).split()[0]


def meaning(bare: str) -> str:
    """What to write instead of a name without dots that is no key; empty where no variable has that name."""
    variable = options().get(bare.lower())
    if variable:
        return f"write {variable.key}"
    return f"use {AMBIGUOUS[bare.upper()]}" if bare.upper() in AMBIGUOUS else ""


def argument_settings(
    arguments: Sequence[str], name: Name, variables: tuple[Variable, ...] = VARIABLES
) -> list[Setting]:
    """The settings that arguments make, as text; `name` turns a key as it is typed into the key that it means.

    Raises RecipeError for an argument that is neither an option nor `key=value`, for an unknown key, or for one key
    with two values.
    """
    settings: dict[str, Setting] = {}
    for key, text, words in read_arguments(arguments, variables):
        source = Source("argument", f"{'option' if words[0].startswith('--') else 'argument'} {' '.join(words)}")
        path = key if key in CONTROL_OPTIONS else name(key, source)
        earlier = settings.get(path)
        if earlier is not None and earlier.value != text:
            raise RecipeError(
                f"{path} is given twice: {earlier.value!r} and {text!r}",
                where=f"{earlier.source}; {source}",
                fix="give it once",
            )
        settings[path] = Setting(path, text, source, "" if path == key else key)
    return list(settings.values())


def read_arguments(words: Sequence[str], variables: tuple[Variable, ...] = VARIABLES) -> Iterator[Argument]:
    """Options and `key=value` arguments in their order; a variable's name stands for its keys in both.

    Dotted keys are not checked here. Raises RecipeError for an unknown option, one without a value, or an argument that
    is neither.
    """
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("--"):
            yield from _option(word, waiting, variables)
            continue
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise RecipeError(
                f"the argument {word!r} is not key=value",
                where="arguments",
                fix="for instance trainer.max_steps=1, or --max_steps 1; a data file is --data FILE",
            )
        variable = options(variables).get(key.strip().lower())
        for path in variable.keys if variable else (key.strip(),):
            yield Argument(path, text, (word,))


def _option(word: str, waiting: list[str], variables: tuple[Variable, ...]) -> Iterator[Argument]:
    """One option; its value may be the next word."""
    typed, equals, text = word[2:].partition("=")
    name = typed.replace("-", "_").lower()
    variable = options(variables).get(name)
    if variable is None and name not in CONTROL_OPTIONS:
        meant = did_you_mean(name, [*options(variables), *CONTROL_OPTIONS, *FLAGS]).replace("mean ", "mean --")
        raise RecipeError(
            f"unknown option --{typed}",
            where="arguments",
            fix=meaning(name) or meant or "see --help for every option; any other key is key=value",
        )
    if not equals:
        if not waiting or waiting[0].startswith("--"):
            raise RecipeError(f"the option --{typed} has no value", where="arguments", fix=f"write --{typed} VALUE")
        text = waiting.pop(0)
    for path in variable.keys if variable else (name,):
        yield Argument(path, text, (word,) if equals else (word, text))
