"""Environment variables, `--options` and `key=value` arguments: one table, variable -> key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import NamedTuple

from recipes.config.layers import Name, flow, parse, parse_as
from recipes.config.schema import Setting, Source
from recipes.errors import RecipeError


@dataclass(frozen=True)
class Variable:
    """A variable that sets a key, and the keys in `also`. Several names are separated by blanks.

    Attributes:
        synonyms: other names of the same standing.
        options: short names on the command line, besides --name and --synonym in small letters; the first is the usual.
        each: pattern of a value, where there may be several: with commas or blanks between them, and as the words
            behind an option.
    """

    name: str
    key: str
    synonyms: str = ""
    also: tuple[str, ...] = ()
    options: str = ""
    each: str = ""

    @property
    def names(self) -> list[str]:
        return [self.name, *self.synonyms.split()]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.also)


class Control(NamedTuple):
    """A variable that steers the launcher and sets no key."""

    name: str
    doc: str


_MODEL, _ACTOR, _ROLLOUT = "worker.actor.model", "worker.actor", "worker.rollout"
# Each row sets a recipe key. verl's name for it: the key's `verl=` in config/schema, or, where that is left out, the
# same name in the group of VERL_GROUPS (config/schema/keys.py). engines/verl/translation.py `_renamed` writes it.
VARIABLES: tuple[Variable, ...] = (
    Variable("ENGINE", "engine"),
    Variable("MODEL_PATH", f"{_MODEL}.model_path", options="model"),
    Variable("TRAIN_FILES", "data.train_files", options="data"),
    Variable("VAL_FILES", "data.val_files", "TEST_FILES", options="val_data"),
    Variable("VAL_SHARE", "data.val_share"),
    Variable("PROMPT_KEY", "data.prompt_key"),
    Variable("ANSWER_KEY", "data.answer_key"),
    Variable("IMAGE_KEY", "data.image_key"),
    Variable("DATA_SOURCE", "data.data_source"),
    Variable("SYSTEM_PROMPT", "data.system_prompt"),
    Variable("FORMAT_PROMPT", "data.format_prompt", options="template"),
    Variable("MAX_PROMPT_LENGTH", "data.max_prompt_length"),
    Variable("MAX_RESPONSE_LENGTH", "data.max_response_length"),
    Variable("ROLLOUT_BATCH_SIZE", "data.rollout_batch_size", "TRAIN_BATCH_SIZE"),
    Variable("VAL_BATCH_SIZE", "data.val_batch_size"),
    Variable("MIN_PIXELS", "data.min_pixels"),
    Variable("MAX_PIXELS", "data.max_pixels"),
    Variable("SEED", "data.seed", also=(f"{_ROLLOUT}.seed",)),
    Variable("ALGORITHM", "algorithm.preset"),
    Variable("ADV_ESTIMATOR", "algorithm.adv_estimator"),
    Variable("NORM_ADV_BY_STD", "algorithm.norm_adv_by_std", "NORM_ADV_BY_STD_IN_GRPO"),
    Variable("DISABLE_KL", "algorithm.disable_kl"),
    Variable("USE_KL_LOSS", "algorithm.use_kl_loss"),
    Variable("KL_COEF", "algorithm.kl_coef"),
    Variable("KL_PENALTY", "algorithm.kl_penalty"),
    Variable("KL_LOSS_COEF", "algorithm.kl_loss_coef"),
    Variable("KL_LOSS_TYPE", "algorithm.kl_loss_type"),
    Variable("ONLINE_FILTERING", "algorithm.online_filtering"),
    Variable("GLOBAL_BATCH_SIZE", f"{_ACTOR}.global_batch_size", "PPO_MINI_BATCH_SIZE"),
    Variable("MICRO_BATCH_SIZE", f"{_ACTOR}.micro_batch_size_per_device_for_update", "MICRO_BATCH_SIZE_FOR_UPDATE"),
    Variable("MICRO_BATCH_SIZE_FOR_EXPERIENCE", f"{_ACTOR}.micro_batch_size_per_device_for_experience"),
    Variable("LR", f"{_ACTOR}.optim.lr", "LEARNING_RATE"),
    Variable("LR_SCHEDULER_TYPE", f"{_ACTOR}.optim.lr_scheduler_type"),
    Variable("WEIGHT_DECAY", f"{_ACTOR}.optim.weight_decay"),
    Variable("LR_WARMUP_RATIO", f"{_ACTOR}.optim.lr_warmup_ratio"),
    Variable("LR_WARMUP_STEPS", f"{_ACTOR}.optim.lr_warmup_steps"),
    Variable("MAX_GRAD_NORM", f"{_ACTOR}.max_grad_norm"),
    Variable("PPO_EPOCHS", f"{_ACTOR}.ppo_epochs"),
    Variable("LORA_RANK", f"{_MODEL}.lora.rank"),
    Variable("LORA_ALPHA", f"{_MODEL}.lora.alpha"),
    Variable("ENTROPY_COEFF", f"{_ACTOR}.entropy_coeff"),
    Variable("CLIP_RATIO_LOW", f"{_ACTOR}.clip_ratio_low"),
    Variable("CLIP_RATIO_HIGH", f"{_ACTOR}.clip_ratio_high"),
    Variable("LOSS_AGG_MODE", f"{_ACTOR}.loss_agg_mode"),
    Variable("PADDING_FREE", f"{_ACTOR}.padding_free"),
    Variable("ROLLOUT_N", f"{_ROLLOUT}.n"),
    Variable("TEMPERATURE", f"{_ROLLOUT}.temperature"),
    Variable("TOP_P", f"{_ROLLOUT}.top_p"),
    Variable("TOP_K", f"{_ROLLOUT}.top_k"),
    Variable("TENSOR_PARALLEL_SIZE", f"{_ROLLOUT}.tensor_parallel_size"),
    Variable("GPU_MEMORY_UTIL", f"{_ROLLOUT}.gpu_memory_utilization", "GPU_MEMORY_UTILIZATION"),
    Variable(
        "REWARD_FUNCTION",
        "worker.reward.reward_function",
        "REWARD_FUNC",
        options="reward_func",
        each=r"[^\s,].*?\.py(?::\w+)?(?=[\s,]|$)",
    ),
    Variable("REWARD_WEIGHTS", "worker.reward.reward_weights", each=r"[^\s,]+"),
    Variable("TOTAL_EPOCHS", "trainer.total_epochs", options="epochs"),
    Variable("MAX_STEPS", "trainer.max_steps"),
    Variable("NNODES", "trainer.nnodes"),
    Variable("GPUS_PER_NODE", "trainer.n_gpus_per_node", "N_GPUS_PER_NODE", options="n_gpus"),
    Variable("WANDB_PROJECT", "trainer.project_name"),  # PROJECT_NAME, which is later, wins over it
    Variable("PROJECT_NAME", "trainer.project_name"),
    Variable("EXPERIMENT_NAME", "trainer.experiment_name"),
    Variable("LOGGER", "trainer.logger"),
    Variable("RECIPES_PATCHES", "trainer.patches"),
    Variable("VAL_FREQ", "trainer.val_freq", "TEST_FREQ"),
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
        "1 or 0: use the recipe's tiny model, its data and sizes; default: 1 without a GPU, unless you give a model",
    ),
    Control("RAY_WAIT_MINUTES", "minutes to wait for the GPUs of the other machines; default: 10"),
    Control("CHROMIUM", "path of Chromium, for the number game's page; default: the one on the search path"),
    Control("DRY_RUN", "1: print the resolved recipe, the trainer's command and the accounting, and stop"),
    Control("EASYR1_HOME", "folder with EasyR1's source; default: .easyr1, which scripts/setup_env.sh easyr1 clones"),
    Control("ARTIFACTS_DIR", "folder for everything a run makes; default: artifacts"),
    Control(
        "MAX_ROLLOUT_KL",
        "nats a token that vLLM may differ from the trainer on prompts with images; default: 0.02",
    ),
    Control(
        "WATCHDOG_MINUTES",
        "minutes without output and work before a run is given up, longer by what it measured; default: 5",
    ),
)


def variable_names(variables: Iterable[Variable] = VARIABLES) -> set[str]:
    """Every variable that is read: those of the table with their synonyms, and the launcher's own."""
    return {name for variable in variables for name in variable.names} | {control.name for control in CONTROLS}


def variable_settings(environ: Mapping[str, str], variables: Sequence[Variable] = VARIABLES) -> list[Setting]:
    """The settings that the environment makes, as text; an empty variable counts as unset.

    Raises RecipeError when two names of one variable disagree.
    """
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
            settings += [Setting(key, listed(variable, [text]), source) for key in variable.keys]
    return settings


def listed(variable: Variable, words: Sequence[str]) -> str:
    """The text of a value that was typed as one word or several: a list where there are several values."""
    if not variable.each or words[0].lstrip().startswith("["):
        return " ".join(words)
    values: list[str] = []
    for word in words:
        found = re.findall(variable.each, word)
        rest = re.sub(variable.each, "", word)
        values += [word] if rest.strip(", \t\n") else found
    return flow(values) if len(values) > 1 else " ".join(words)


def not_read(environ: Mapping[str, str], variables: Sequence[Variable] = VARIABLES) -> tuple[str, ...]:
    """One note on all variables that are set, are not read, and resemble one that is; none where there are none."""
    known = variable_names(variables)
    strangers = {name: text for name, text in environ.items() if name not in known and text.strip()}
    meant = {name: resembling(name, known, type(parse(text)) is not str) for name, text in strangers.items()}
    likely = [f"{name} (did you mean {' or '.join(others[:2])}?)" for name, others in meant.items() if others]
    return (f"set, but not read: {', '.join(likely)}",) if likely else ()


def resembling(name: str, known: Iterable[str], is_number: bool = True) -> list[str]:
    """The known names that `name` may have been meant for, the likeliest first; underscores part words.

    Likely are a slip of the pen and some of a name's words from its first (`MODEL`, `CLIP_HIGH`). Where the value is a
    number or a truth value, so are any of its words (`STEPS`, `WARMUP`), and a name that begins alike (`KL_BETA`);
    without that, PATH would be taken for MODEL_PATH.
    """
    words = name.upper().split("_")
    likeness: dict[str, float] = {}
    for other in known:
        parts = other.upper().split("_")
        ratio = SequenceMatcher(None, name.upper(), other.upper()).ratio()
        begins, within = words[0] == parts[0], set(words) < set(parts)
        alike = is_number and (within or (begins and ratio > HALF_ALIKE))
        if ratio > (SLIP if len(name) > SHORT else SLIP_OF_SHORT) or (begins and within) or alike:
            likeness[other] = ratio
    return sorted(likeness, key=lambda other: (-likeness[other], other))


# Likeness by `difflib`. Short words are alike by chance, but one letter more of LR is a fifth of it.
SLIP, SLIP_OF_SHORT, SHORT, HALF_ALIKE = 0.84, 0.79, 4, 0.5


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


def dry_run(environ: Mapping[str, str]) -> bool:
    """Return whether DRY_RUN is on."""
    return bool(is_on(environ, "DRY_RUN"))


CONTROL_OPTIONS = ("hardware", "embedded", "gpus")
"""Options that steer the launcher and are arguments too: `hardware=cpu`."""


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
        for name in (*variable.options.split(), *map(str.lower, variable.names))
    }


def usual_name(variable: Variable) -> str:
    """The option that the documentation uses."""
    return (variable.options or variable.name.lower()).split()[0]


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
        is_option = word.startswith("--")
        typed, equals, text = word.removeprefix("--").partition("=")
        name = typed if is_option else typed.strip()
        variable = options(variables).get(name if is_option else name.lower())
        if is_option and variable is None and name not in CONTROL_OPTIONS:
            raise _unknown_option(name, variables)
        if not is_option and not (equals and name):
            example = "trainer.max_steps=1, or --max_steps 1; a data file is --data FILE"
            raise RecipeError(
                f"the argument {word!r} is not key=value",
                where="arguments",
                fix=f"for instance {example if variables is VARIABLES else f'{variables[0].key}=1'}",
            )
        texts = [text] if equals else _values_behind(word, variable, waiting)
        value = listed(variable, texts) if variable else texts[0]
        for path in variable.keys if variable else (name,):
            yield Argument(path, value, (word,) if equals else (word, *texts))


def _values_behind(option: str, variable: Variable | None, waiting: list[str]) -> list[str]:
    """Take an option's value from the waiting words; where it may have several, all up to the next option or key."""
    if not waiting or waiting[0].startswith("--"):
        raise RecipeError(f"the option {option} has no value", where="arguments", fix=f"write {option} VALUE")
    texts = [waiting.pop(0)]
    while variable and variable.each and waiting and not waiting[0].startswith("--") and "=" not in waiting[0]:
        texts.append(waiting.pop(0))
    return texts


def _unknown_option(name: str, variables: tuple[Variable, ...]) -> RecipeError:
    known = [*options(variables), *CONTROL_OPTIONS, "dry_run", "help"]
    meant = " or ".join(f"--{other}" for other in resembling(name.replace("-", "_"), known)[:3])
    fix = f"did you mean {meant}?" if meant else "see --help for every option; any other key is key=value"
    return RecipeError(f"unknown option --{name}", where="arguments", fix=fix)
