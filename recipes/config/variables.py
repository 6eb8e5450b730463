"""Environment variables, `--options` and `key=value` arguments: one table, variable -> key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import yaml

from recipes.config import verl_names
from recipes.config.layers import Setting, Source
from recipes.config.merge import NATIVE, check_names
from recipes.config.text import edits, parse
from recipes.errors import RecipeError


@dataclass(frozen=True)
class Variable:
    """A variable that sets a key.

    Attributes:
        name: the variable.
        key: the key it sets.
        aliases: other names that users know it by.
        also: keys that it sets besides.
        options: short names as an option of the command line, where --name in small letters is not the usual one.
    """

    name: str
    key: str
    aliases: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class Control:
    """A variable that steers the launcher and sets no key."""

    name: str
    doc: str


VARIABLES: tuple[Variable, ...] = (
    Variable("ENGINE", "engine"),
    Variable("MODEL_PATH", "worker.actor.model.model_path", options=("model",)),
    Variable("TRAIN_FILES", "data.train_files", options=("data",)),
    Variable("VAL_FILES", "data.val_files", ("TEST_FILES",), options=("val_data",)),
    Variable("VAL_SHARE", "data.val_share"),
    Variable("DATA_SOURCE", "data.data_source"),
    Variable("SYSTEM_PROMPT", "data.system_prompt"),
    Variable("FORMAT_PROMPT", "data.format_prompt", options=("template",)),
    Variable("MAX_PROMPT_LENGTH", "data.max_prompt_length"),
    Variable("MAX_RESPONSE_LENGTH", "data.max_response_length"),
    Variable("ROLLOUT_BATCH_SIZE", "data.rollout_batch_size", ("TRAIN_BATCH_SIZE",)),
    Variable("VAL_BATCH_SIZE", "data.val_batch_size"),
    Variable("MIN_PIXELS", "data.min_pixels"),
    Variable("MAX_PIXELS", "data.max_pixels"),
    Variable("SEED", "data.seed", also=("worker.rollout.seed",)),
    Variable("ALGORITHM", "algorithm.preset"),
    Variable("ADV_ESTIMATOR", "algorithm.adv_estimator"),
    Variable("NORM_ADV_BY_STD", "algorithm.norm_adv_by_std", ("NORM_ADV_BY_STD_IN_GRPO",)),
    Variable("DISABLE_KL", "algorithm.disable_kl"),
    Variable("USE_KL_LOSS", "algorithm.use_kl_loss"),
    Variable("KL_COEF", "algorithm.kl_coef"),
    Variable("KL_PENALTY", "algorithm.kl_penalty"),
    Variable("KL_LOSS_COEF", "algorithm.kl_loss_coef"),
    Variable("KL_LOSS_TYPE", "algorithm.kl_loss_type"),
    Variable("ONLINE_FILTERING", "algorithm.online_filtering"),
    Variable("GLOBAL_BATCH_SIZE", "worker.actor.global_batch_size", ("PPO_MINI_BATCH_SIZE",)),
    Variable(
        "MICRO_BATCH_SIZE", "worker.actor.micro_batch_size_per_device_for_update", ("MICRO_BATCH_SIZE_FOR_UPDATE",)
    ),
    Variable("MICRO_BATCH_SIZE_FOR_EXPERIENCE", "worker.actor.micro_batch_size_per_device_for_experience"),
    Variable("LR", "worker.actor.optim.lr", ("LEARNING_RATE",)),
    Variable("LR_SCHEDULER_TYPE", "worker.actor.optim.lr_scheduler_type"),
    Variable("LORA_RANK", "worker.actor.model.lora.rank"),
    Variable("LORA_ALPHA", "worker.actor.model.lora.alpha"),
    Variable("ENTROPY_COEFF", "worker.actor.entropy_coeff"),
    Variable("CLIP_RATIO_LOW", "worker.actor.clip_ratio_low"),
    Variable("CLIP_RATIO_HIGH", "worker.actor.clip_ratio_high"),
    Variable("LOSS_AGG_MODE", "worker.actor.loss_agg_mode"),
    Variable("PADDING_FREE", "worker.actor.padding_free"),
    Variable("ROLLOUT_N", "worker.rollout.n"),
    Variable("TEMPERATURE", "worker.rollout.temperature"),
    Variable("TOP_P", "worker.rollout.top_p"),
    Variable("TENSOR_PARALLEL_SIZE", "worker.rollout.tensor_parallel_size"),
    Variable("GPU_MEMORY_UTIL", "worker.rollout.gpu_memory_utilization", ("GPU_MEMORY_UTILIZATION",)),
    Variable("REWARD_FUNCTION", "worker.reward.reward_function", options=("reward_func",)),
    Variable("TOTAL_EPOCHS", "trainer.total_epochs", options=("epochs",)),
    Variable("MAX_STEPS", "trainer.max_steps"),
    Variable("NNODES", "trainer.nnodes"),
    Variable("GPUS_PER_NODE", "trainer.n_gpus_per_node", ("N_GPUS_PER_NODE",), options=("n_gpus",)),
    Variable("PROJECT_NAME", "trainer.project_name"),
    Variable("EXPERIMENT_NAME", "trainer.experiment_name"),
    Variable("LOGGER", "trainer.logger"),
    Variable("VAL_FREQ", "trainer.val_freq", ("TEST_FREQ",)),
    Variable("VAL_BEFORE_TRAIN", "trainer.val_before_train"),
    Variable("SAVE_FREQ", "trainer.save_freq"),
    Variable("SAVE_LIMIT", "trainer.save_limit"),
    Variable("CHECKPOINT_DIR", "trainer.save_checkpoint_path"),
    Variable("RESUME", "trainer.find_last_checkpoint"),
    Variable("RESUME_FROM", "trainer.load_checkpoint_path"),
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
    Control("IGNORE_VARIABLES", "names, joined by commas, that belong to another program and are no typing mistake"),
)

# Families of variables that belong to other programs, so that a likeness to one of ours is chance.
_OTHERS = (
    "AWS_", "AZURE_", "CONDA_", "CUDA_", "DOCKER_", "GIT_", "GITHUB_", "GOOGLE_", "HF_", "JAX_", "KUBERNETES_", "LC_",
    "LS_", "MKL_", "MLFLOW_", "NCCL_", "NVIDIA_", "OMP_", "OPENAI_", "PIP_", "PYTHON", "PYTORCH_", "RAY_", "SLURM_",
    "SSH_", "SWANLAB_", "TF_", "TOKENIZERS_", "TORCH_", "TRANSFORMERS_", "UV_", "VERL_", "VIRTUAL_", "VLLM_", "WANDB_",
    "XDG_",
)  # fmt: skip


def variable_names(variables: Iterable[Variable] = VARIABLES) -> set[str]:
    """Every variable that means something here, aliases included."""
    return {name for variable in variables for name in variable.names} | {control.name for control in CONTROLS}


def read_settings(environ: Mapping[str, str], variables: Sequence[Variable] = VARIABLES) -> list[Setting]:
    """The settings that the environment makes, as text; an empty variable counts as unset.

    Raises RecipeError when two variables for one key disagree, or a variable looks like a mistyped one.
    """
    _refuse_mistyped(environ, variable_names(variables))
    settings = []
    for variable in variables:
        given = {name: environ[name] for name in variable.names if environ.get(name, "").strip()}
        if len({text.strip() for text in given.values()}) > 1:
            raise RecipeError(
                "two variables for one key disagree: " + ", ".join(f"{name}={text}" for name, text in given.items()),
                where=f"both set {variable.key}",
                fix=f"unset {' or '.join(given)}",
            )
        for name, text in list(given.items())[:1]:
            source = Source("environment", f"variable {name}={text}")
            settings += [Setting(key, text, source) for key in (variable.key, *variable.also)]
    return settings


def is_on(environ: Mapping[str, str], name: str) -> bool | None:
    """A switch such as DRY_RUN or EMBEDDED; None where it is not set."""
    text = environ.get(name, "").strip().lower()
    if not text:
        return None
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise RecipeError(f"{name}={environ[name]} is neither on nor off", where=f"variable {name}", fix="use 1 or 0")


def dry_run(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether DRY_RUN is on."""
    return bool(is_on(environ, "DRY_RUN"))


def mistyped(environ: Mapping[str, str], known: Iterable[str] | None = None) -> dict[str, str]:
    """Variables that are not ours but nearly: mistyped name -> the name that was meant."""
    names = set(variable_names() if known is None else known)
    ignored = {name.strip() for name in environ.get("IGNORE_VARIABLES", "").split(",")}
    found = {}
    for name, text in environ.items():
        if not text.strip() or name in names or name in ignored or name.startswith(_OTHERS):
            continue
        meant = _meant(name, names)
        if meant:
            found[name] = meant
    return found


def _meant(name: str, names: set[str]) -> str | None:
    """The name that `name` is a slip of, or the end of.

    Underscores and case aside, one letter may be off, two in long names, none in short ones. `BATCH_SIZE` is the end
    of ROLLOUT_BATCH_SIZE; a single word, such as PATH, is nobody's.
    """
    shape = name.replace("_", "").upper()
    best: tuple[int, str] | None = None
    for candidate in sorted(names):
        other = candidate.replace("_", "")
        allowed = 0 if len(other) < 6 else 1 if len(other) < 12 else 2
        if len(other) < 5 or abs(len(shape) - len(other)) > allowed:
            continue
        distance = edits(shape, other)
        if distance <= allowed and (best is None or distance < best[0]):
            best = (distance, candidate)
    if best:
        return best[1]
    longer = sorted((candidate for candidate in names if candidate.endswith(f"_{name}")), key=_common_first)
    return longer[0] if "_" in name and longer else None


def _common_first(name: str) -> tuple[int, str]:
    order = [variable.name for variable in VARIABLES]
    return (order.index(name) if name in order else len(order), name)


def _refuse_mistyped(environ: Mapping[str, str], known: Iterable[str]) -> None:
    wrong = mistyped(environ, known)
    if wrong:
        name, meant = next(iter(wrong.items()))
        more = "".join(f"; {other}: did you mean {its}?" for other, its in list(wrong.items())[1:])
        raise RecipeError(
            f"the environment variable {name} is unknown here: did you mean {meant}?{more}",
            where=f"variable {name}={environ[name]}",
            fix=f"rename it to {meant}; if it belongs to another program, set IGNORE_VARIABLES={','.join(wrong)}",
        )


def read_arguments(arguments: Sequence[str]) -> list[Setting]:
    """The settings that arguments make, checked by name; verl's own keys come back below `verl.`.

    Raises RecipeError for an argument that is neither an option nor `key=value`, for an unknown key, or for one key
    with two values.
    """
    settings: dict[str, Setting] = {}
    for given in read_words(arguments):
        key, text, source = given.key, given.text, Source("argument", given.shown)
        setting = Setting(key, text, source)
        if verl_names.is_native(key):
            setting = Setting(f"{NATIVE}{key}", _plain(text), source)
        if setting.path not in CONTROLS_OPTIONS:
            check_names([setting])
        earlier = settings.get(setting.path)
        if earlier is not None and earlier.value != setting.value:
            raise RecipeError(
                f"{key} is given twice: {earlier.value!r} and {setting.value!r}",
                where=f"{earlier.source}; {source}",
                fix="give it once",
            )
        settings[setting.path] = setting
    return list(settings.values())


def _plain(text: str) -> object:
    try:
        return parse(text)
    except yaml.YAMLError:
        return text


CONTROLS_OPTIONS = ("hardware", "embedded")
"""Options that steer the launcher and are arguments too: `hardware=cpu`."""

FLAGS = ("dry_run", "help")
"""Options without a value; the launcher reads them before these."""


class Given(NamedTuple):
    """One setting of the command line: a dotted key, its text, and the words as they were typed."""

    key: str
    text: str
    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        """For messages."""
        kind = "option" if self.words[0].startswith("--") else "argument"
        return f"{kind} {' '.join(self.words)}"


@cache
def options() -> dict[str, Variable]:
    """Every option without its dashes, the usual name of each variable first."""
    return {
        name: variable
        for variable in VARIABLES
        for name in (*variable.options, *(name.lower() for name in variable.names))
    }


def usual_name(variable: Variable) -> str:
    """The option that the documentation uses."""
    return variable.options[0] if variable.options else variable.name.lower()


def read_words(words: Sequence[str]) -> Iterator[Given]:
    """Options and `key=value` arguments in their order; the keys are not checked here.

    Raises:
        RecipeError: an unknown option, one without a value, or an argument that is neither.
    """
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("--"):
            yield from _option(word, waiting)
            continue
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise RecipeError(
                f"the argument {word!r} is not key=value",
                where="arguments",
                fix="for instance trainer.max_steps=1, or --max_steps 1; a data file is --data FILE",
            )
        yield Given(key.strip(), text, (word,))


def _option(word: str, waiting: list[str]) -> Iterator[Given]:
    """One option; its value may be the next word."""
    typed, equals, text = word[2:].partition("=")
    name = typed.replace("-", "_").lower()
    known = options()
    if name not in known and name not in CONTROLS_OPTIONS:
        meant = _meant_options(name)
        raise RecipeError(
            f"unknown option --{typed}",
            where="arguments",
            fix=f"did you mean --{meant}?" if meant else "see --help for every option; any other key is key=value",
        )
    if not equals:
        if not waiting or waiting[0].startswith("--"):
            raise RecipeError(f"the option --{typed} has no value", where="arguments", fix=f"write --{typed} VALUE")
        text = waiting.pop(0)
    words = (word,) if equals else (word, text)
    if name in CONTROLS_OPTIONS:
        yield Given(name, text, words)
        return
    variable = known[name]
    for key in (variable.key, *variable.also):
        yield Given(key, text, words)


def _meant_options(name: str) -> str | None:
    """The option that `name` is a slip of, or a part of whose name it is."""
    names = [*options(), *CONTROLS_OPTIONS, *FLAGS]
    distance, nearest = min((edits(name.replace("_", ""), other.replace("_", "")), other) for other in names)
    if distance <= max(1, len(name) // 4):
        return nearest
    parts = name.split("_")
    inside = [other for other in names if other.endswith(f"_{name}") or name in other.split("_") or other in parts]
    return inside[0] if inside else None
