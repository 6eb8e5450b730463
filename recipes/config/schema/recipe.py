"""The keys of a recipe: `data`, `algorithm`, `trainer`, and the recipe as a whole."""

import re
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import PrivateAttr, field_validator

from recipes.config.schema.worker import Worker
from recipes.errors import RecipeError
from recipes.memory.gpus import Gpu
from recipes.settings import CONVERTED, ONLY_EASYR1, ONLY_VERL, SEED, Resolved, Resume, Section, key, leaves


def _as_list(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def template_text(path: str | None) -> str | None:
    """Return the text of a template's file, which verl takes instead of a path. Raises RecipeError if there is none."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        what, where = f"cannot read the chat template: {error.strerror}", f"data.override_chat_template: {path}"
        raise RecipeError(what, where=where, fix="name a file that exists") from error


def _count(number: int) -> int:
    if number < -1 or number == 0:
        raise ValueError("a number above 0, or -1 for none or all")
    return number


class Data(Section):
    """Files to read, longest lengths, and the number of prompts in a step."""

    when_resumed: ClassVar[Resume] = "order"

    train_files: str | list[str] = key(
        "", "TRAIN_FILES", convert=_as_list, path="data", resume="setting", option="data"
    )
    """training rows: parquet, JSON, JSONL or CSV, a pattern such as `train-*.parquet`, or a hub's `org/set@split`"""
    val_files: str | list[str] = key(
        "", "VAL_FILES TEST_FILES", convert=_as_list, path="data", resume="setting", option="val_data"
    )
    """validation rows, in the formats of train_files; empty or null: a share of the converted rows"""
    val_share: float = key(0.05, "VAL_SHARE", engines=CONVERTED, gt=0, lt=1, resume="setting")
    """share of each data source's prompts that validates, where a file is converted and val_files is empty"""
    data_source: str | None = key(None, "DATA_SOURCE", engines=CONVERTED, resume="setting")
    """data source of all rows, whatever their column says; null: each row's own"""
    system_prompt: str | None = key(None, "SYSTEM_PROMPT", engines=CONVERTED, path="input", resume="setting")
    """text file with the system message, where a file is converted"""
    prompt_key: str | None = key(None, "PROMPT_KEY", convert=lambda value: value or "prompt")
    """column of the prompt, in your file too; null: `prompt` (chat messages) on verl, `problem` (text) on EasyR1"""
    answer_key: str | None = key(None, "ANSWER_KEY", engines=ONLY_EASYR1, resume="content")
    """column of the gold answer; null: `ground_truth` in your own file, `answer` in EasyR1's rows"""
    image_key: str = key("images", "IMAGE_KEY")
    """column of the images"""
    video_key: str = key("videos")
    """column of the videos, which is refused where a row has any: no recipe shows them"""
    image_dir: str | None = key(None, engines=ONLY_EASYR1, path="input", resume="content")
    """folder that image paths in the rows are relative to; null: the folder of their file"""
    video_fps: float = key(2.0, gt=0, engines=ONLY_EASYR1, resume="content")
    """frames a second taken from a video"""
    max_prompt_length: int = key(512, "MAX_PROMPT_LENGTH", gt=0)
    """longest prompt, in tokens, image tokens included"""
    max_response_length: int = key(512, "MAX_RESPONSE_LENGTH", gt=0, resume="content")
    """longest response, in tokens"""
    rollout_batch_size: int = key(512, "ROLLOUT_BATCH_SIZE TRAIN_BATCH_SIZE", verl="data.train_batch_size", gt=0)
    """prompts a step (not responses)"""
    mini_rollout_batch_size: int | None = key(None, verl="data.gen_batch_size", gt=0, resume="setting")
    """prompts sent to generation at a time; null: all of a step's"""
    val_batch_size: int = key(
        -1, "VAL_BATCH_SIZE", convert=lambda value: None if value < 0 else value, resume="setting"
    )
    """validation prompts generated at a time; -1: all at once"""
    format_prompt: str | None = key(
        None, "FORMAT_PROMPT", engines=ONLY_EASYR1, path="input", option="template", resume="content"
    )
    """Jinja file that wraps the prompt, with the row's columns (EasyR1's finished rows: content alone)"""
    override_chat_template: str | None = key(
        None, verl="{model}.custom_chat_template", convert=template_text, path="input"
    )
    """Jinja file that replaces the model's chat template"""
    enable_thinking: bool | None = key(
        None,
        "ENABLE_THINKING",
        verl="data.apply_chat_template_kwargs.enable_thinking",
        computed=True,
        engines=ONLY_VERL,
        resume="content",
    )
    """whether a model that can (Qwen3) thinks before it answers; null: as its chat template has it, for Qwen3 yes"""
    shuffle: bool = key(True)
    """shuffle the training rows every epoch"""
    seed: int = key(1, "SEED", **SEED)
    """seed of the shuffling"""
    min_pixels: int | None = key(262144, "MIN_PIXELS", verl="data.mm_processor_kwargs.min_pixels", computed=True, gt=0)
    """smallest image, in pixels; smaller ones are enlarged"""
    max_pixels: int | None = key(4194304, "MAX_PIXELS", verl="data.mm_processor_kwargs.max_pixels", computed=True, gt=0)
    """largest image, in pixels; larger ones are reduced"""
    filter_overlong_prompts: bool = key(True)
    """drop rows whose prompt is too long"""
    filter_overlong_prompts_workers: int = key(16, gt=0, resume="setting")
    """processes that measure the prompts"""
    train_max_samples: int = key(-1, engines=ONLY_VERL)
    """train on so many rows at most; -1: all"""

    _counts = field_validator("val_batch_size", "train_max_samples")(_count)


BY_CONVERSION = (
    "data.system_prompt", "data.format_prompt", "data.data_source", "data.val_share",
    "data.prompt_key", "data.answer_key", "data.image_key", "data.video_key", "data.image_dir",
)  # fmt: skip
"""Keys that act while rows are converted, on every engine; converted rows have our columns and finished texts."""

AdvantageEstimator = Literal[
    "grpo", "grpo_passk", "reinforce_plus_plus", "remax", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg",
    "grpo_vectorized", "rloo_vectorized",
]  # fmt: skip
EASYR1_ESTIMATORS = ("grpo", "grpo_passk", "reinforce_plus_plus", "remax", "rloo")
# verl 0.9.1 still lists remax, but its V1 trainer never computes the greedy baseline that remax subtracts.
VERL_ESTIMATORS = tuple(name for name in get_args(AdvantageEstimator) if name != "remax")

KlPenalty = Literal["kl", "abs", "mse", "low_var_kl", "full", "kl+", "low_var_kl+"]
VERL_PENALTIES = ("kl", "abs", "mse", "low_var_kl", "kl+", "low_var_kl+")  # "full" raises NotImplementedError there
PENALTIES = {"verl": VERL_PENALTIES, "easyr1": ("kl", "abs", "mse", "low_var_kl", "full")}


class Algorithm(Section):
    """Advantages from rewards, and the place of the KL term."""

    preset: str | None = key(None, "ALGORITHM", resume="setting", launcher=True)
    """an algorithm's name: sets the keys of configs/algorithms/NAME.yaml, which other keys then change"""
    adv_estimator: AdvantageEstimator = key(
        "grpo", "ADV_ESTIMATOR", values_on={"easyr1": EASYR1_ESTIMATORS, "verl": VERL_ESTIMATORS}
    )
    """advantage estimator"""
    norm_adv_by_std: bool = key(
        True, "NORM_ADV_BY_STD NORM_ADV_BY_STD_IN_GRPO", verl="algorithm.norm_adv_by_std_in_grpo", engines=ONLY_VERL
    )
    """divide the group's advantages by its standard deviation (false: Dr.GRPO)"""
    disable_kl: bool = key(
        False, "DISABLE_KL", verl=("algorithm.use_kl_in_reward", "{actor}.use_kl_loss"), computed=True
    )
    """no KL term and no reference model"""
    use_kl_loss: bool = key(False, "USE_KL_LOSS", verl="{actor}.use_kl_loss")
    """KL is a term of the loss; false: it is taken from the reward"""
    use_kl_in_reward: bool | None = key(None, computed=True, engines=ONLY_VERL)
    """subtract KL from the reward; null: if it is not in the loss; true together with use_kl_loss: in both"""
    kl_penalty: KlPenalty = key(
        "kl", "KL_PENALTY", verl=("algorithm.kl_penalty", "{actor}.kl_loss_type"), computed=True, values_on=PENALTIES
    )
    """estimator of KL; kl (k1) is right in the reward, low_var_kl (k3) in the loss"""
    kl_coef: float = key(
        1e-3, "KL_COEF", verl=("algorithm.kl_ctrl.kl_coef", "{actor}.kl_loss_coef"), computed=True, ge=0
    )
    """weight of KL, wherever it acts"""
    kl_loss_coef: float | None = key(
        None, "KL_LOSS_COEF", verl="{actor}.kl_loss_coef", computed=True, ge=0, needs="use_kl_loss"
    )
    """weight of KL in the loss; null: kl_coef"""
    kl_loss_type: KlPenalty | None = key(
        None,
        "KL_LOSS_TYPE",
        verl="{actor}.kl_loss_type",
        computed=True,
        values_on={engine: (None, *values) for engine, values in PENALTIES.items()},
        needs="use_kl_loss",
    )
    """estimator of KL in the loss; null: kl_penalty"""
    online_filtering: bool = key(False, "ONLINE_FILTERING", verl="algorithm.filter_groups.enable")
    """drop groups that give no signal and generate others (DAPO)"""
    filter_key: str = key(
        "overall",
        verl="algorithm.filter_groups.metric",
        convert=lambda value: "reward" if value == "overall" else value,
        needs="online_filtering",
    )
    """reward part that decides whether a group is dropped"""
    filter_low: float = key(0.01, engines=ONLY_EASYR1, needs="online_filtering")
    """drop groups whose mean is not above this"""
    filter_high: float = key(0.99, engines=ONLY_EASYR1, needs="online_filtering")
    """drop groups whose mean is not below this"""


Backend = Literal["console", "file", "wandb", "tensorboard", "swanlab", "mlflow"]


class Trainer(Section):
    """Length of the run, its machines, and when it writes."""

    when_resumed: ClassVar[Resume] = "setting"

    total_epochs: int = key(15, "TOTAL_EPOCHS", gt=0, option="epochs")
    """passes over the training rows"""
    max_steps: int | None = key(None, "MAX_STEPS", verl=("trainer.total_training_steps", "trainer.total_epochs"), gt=0)
    """steps; null: by total_epochs"""
    project_name: str = key("grpo-recipes", "PROJECT_NAME WANDB_PROJECT")
    """project, for loggers"""
    experiment_name: str | None = key(None, "EXPERIMENT_NAME", resume="place")
    """name of the run and of its folders; null: the recipe's name"""
    logger: list[Backend] = key(lambda: ["console", "file"], "LOGGER")
    """where metrics go; wandb takes part if you are logged in or ask for it, offline without a login"""
    nnodes: int = key(1, "NNODES", gt=0)
    """machines"""
    n_gpus_per_node: int = key(8, "GPUS_PER_NODE N_GPUS_PER_NODE", gt=0, option="n_gpus")
    """GPUs of a machine (ranks, on a machine without)"""
    max_try_make_batch: int = key(
        20, verl="algorithm.filter_groups.max_num_gen_batches", computed=True, needs="algorithm.online_filtering"
    )
    """with online_filtering: batches of prompts generated for one step before it is given up; -1: no limit"""
    val_freq: int = key(-1, "VAL_FREQ TEST_FREQ", verl="trainer.test_freq")
    """validate every so many steps (not epochs); -1: never"""
    val_before_train: bool = key(True, "VAL_BEFORE_TRAIN")
    """validate at step 0"""
    val_only: bool = key(False, needs="val_before_train")
    """validate and stop"""
    val_generations_to_log: int = key(0, verl="trainer.log_val_generations", ge=0)
    """validation responses shown by W&B"""
    save_freq: int = key(-1, "SAVE_FREQ")
    """save every so many steps (not epochs); -1: never"""
    save_limit: int = key(-1, "SAVE_LIMIT", verl="trainer.max_actor_ckpt_to_keep", computed=True)
    """checkpoints to keep; -1: all"""
    keep_best: bool = key(False, launcher=True)
    """keep the checkpoint with the best validation as best/, whatever save_limit says"""
    stop_on_nan: bool = key(True, resume="setting", launcher=True)
    """end a run whose loss, gradient or weights are no numbers, before it saves them"""
    save_model_only: bool = key(False, verl="{actor}.checkpoint.save_contents", computed=True, resume="content")
    """leave optimiser, schedule and random state out of checkpoints; a run that goes on from one begins these anew"""
    save_hf_model: bool = key(True, verl="{actor}.checkpoint.save_contents", computed=True)
    """write the whole model to actor/huggingface, for vLLM and transformers"""
    save_checkpoint_path: str | None = key(
        None, "CHECKPOINT_DIR", verl="trainer.default_local_dir", path="output", resume="place"
    )
    """folder of the checkpoints; null: artifacts/checkpoints/EXPERIMENT_NAME"""
    load_checkpoint_path: str | None = key(
        None,
        "RESUME_FROM",
        verl=("trainer.resume_mode", "trainer.resume_from_path"),
        computed=True,
        path="input",
        resume="place",
    )
    """checkpoint (…/global_step_N) to go on from; null: by find_last_checkpoint"""
    patches: bool = key(True, "RECIPES_PATCHES", verl=(), computed=True, engines=ONLY_VERL)
    """changes inside verl (docs/ARCHITECTURE.md); false trains with verl as it is, more slowly"""
    find_last_checkpoint: bool | Literal["changed"] = key(
        True, "RESUME", verl="trainer.resume_mode", computed=True, resume="place"
    )
    """go on from the last checkpoint of the experiment; changed: also if reward, rows, algorithm or optimiser have
    changed since"""
    rollout_data_dir: str | None = key(None, path="output", resume="place")
    """folder for the training responses; null: artifacts/runs/EXPERIMENT_NAME/rollouts"""
    validation_data_dir: str | None = key(None, path="output", resume="place")
    """folder for the validation responses; null: artifacts/runs/EXPERIMENT_NAME/validation"""

    _counts = field_validator("val_freq", "save_freq", "save_limit", "max_try_make_batch")(_count)

    @field_validator("experiment_name")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is not None and not (re.fullmatch(r"\w[\w.-]*", name) and len(name.encode()) <= 200):
            raise ValueError("a name of at most 200 letters, digits, _ . and -, beginning with a letter, a digit or _")
        return name


EngineName = Literal["verl", "easyr1"]
Hardware = Literal["cpu", "gpu"]


class Resolution(NamedTuple):
    """Facts of a resolved recipe that are no keys."""

    is_tiny: bool = False  # the `tiny` block of the recipe (tiny model, tiny data) was applied
    planned_gpus: tuple[Gpu, ...] | None = None  # GPUs of a plan, which need not be here; None: this machine's
    notes: tuple[str, ...] = ()  # sentences for the user, on what was set and does not apply
    unread: tuple[str, ...] = ()  # those of the notes that name variables which nothing reads


class Recipe(Resolved):
    """A resolved recipe for verl or EasyR1."""

    name: str = key("recipe", resume="place", launcher=True)
    """name of the recipe; default: the file's"""
    engine: EngineName = key("verl", "ENGINE", fixed="each engine writes checkpoints of its own form", launcher=True)
    """trainer that runs the recipe"""
    hardware: Hardware = key("cpu", resume="setting", launcher=True)
    """machine class, which chooses configs/hardware/HARDWARE.yaml"""
    prepare: list[str] = key(list, resume="place", launcher=True)
    """script and arguments that make the data when it is missing"""
    data: Data = Data()
    algorithm: Algorithm = Algorithm()
    worker: Worker = Worker()
    trainer: Trainer = Trainer()
    verl: dict[str, Any] = key(dict, launcher=True)
    """verl's own keys, dotted, handed to it as they are"""
    easyr1: dict[str, Any] = key(dict, launcher=True)
    """EasyR1's own keys, dotted, handed to it as they are"""

    _resolution: Resolution = PrivateAttr(default=Resolution())

    @property
    def resolution(self) -> Resolution:
        return self._resolution

    @property
    def experiment(self) -> str:
        """Name of the run and its folders; the recipe's own where none is given."""
        return self.trainer.experiment_name or self.name

    @property
    def n_gpus(self) -> int:
        """Number of GPUs on all machines together; without GPUs, of ranks."""
        return self.trainer.nnodes * self.trainer.n_gpus_per_node

    def uses(self, path: str) -> bool:
        """Return whether a key applies; with `lora.rank` 0 no other LoRA key does."""
        needed = leaves(Recipe)[path].info.needs
        return not needed.endswith(".lora.rank") or self.value(needed) > 0

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: prompt and response."""
        return self.data.max_prompt_length + self.data.max_response_length


LAUNCHERS = frozenset(path for path, leaf in leaves(Recipe).items() if leaf.info.launcher)
"""Keys that the launcher reads and no engine does."""
