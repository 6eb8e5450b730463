"""Keys under `trainer`, and the recipe as a whole."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PrivateAttr

from recipes.config.schema.algorithm import Algorithm
from recipes.config.schema.data import Data
from recipes.config.schema.field import Resolved, Section, key, only_verl
from recipes.config.schema.monitor import Monitor
from recipes.config.schema.worker import Worker

Backend = Literal["console", "file", "wandb", "tensorboard", "swanlab", "mlflow"]


class EarlyStop(Section):
    """When a run that no longer gains ends before its last step. The checkpoint it ends with is saved first."""

    metric: str = key(
        "validation",
        "what has to rise: validation (accuracy, mean over data sources), val-core/..., or critic/score/mean; "
        "keep_best goes by it too",
        not_on=only_verl(),
    )
    patience: int | None = key(
        None, "values of the metric in a row without a gain that end the run; null: never", not_on=only_verl(), gt=0
    )
    min_delta: float = key(0.0, "a smaller gain counts as none", not_on=only_verl(), ge=0)


class Trainer(Section):
    """How long, on what, and what is written when."""

    total_epochs: int = key(
        15, "passes over the training rows", verl="trainer.total_epochs", computed=True, alias=True, gt=0
    )
    max_steps: int | None = key(
        None,
        "steps; null: by total_epochs",
        verl=("trainer.total_training_steps", "trainer.total_epochs"),
        computed=True,
        alias=True,
        gt=0,
    )
    project_name: str = key("grpo-recipes", "project, for loggers", verl="trainer.project_name")
    experiment_name: str | None = key(
        None,
        "name of the run and of its folders; null: the recipe's name",
        verl="trainer.experiment_name",
        pattern=r"^\w[\w.-]*$",
    )
    logger: list[Backend] = key(
        lambda: ["console", "file"],
        "where metrics go; wandb takes part if you are logged in or ask for it, offline without a login",
        verl="trainer.logger",
    )
    nnodes: int = key(1, "machines", verl="trainer.nnodes", gt=0)
    n_gpus_per_node: int = key(
        8, "GPUs of a machine (ranks, on a machine without)", verl="trainer.n_gpus_per_node", gt=0
    )
    max_try_make_batch: int = key(
        20,
        "with online_filtering: batches of prompts generated for one step before it is given up; -1: no limit",
        verl="algorithm.filter_groups.max_num_gen_batches",
        computed=True,
    )
    critic_warmup: int = key(0, "steps in which only the critic learns", verl="trainer.critic_warmup", ge=0)
    val_freq: int = key(-1, "validate every so many steps (not epochs); -1: never", verl="trainer.test_freq")
    val_before_train: bool = key(True, "validate at step 0", verl="trainer.val_before_train")
    val_only: bool = key(False, "validate and stop", verl="trainer.val_only")
    val_generations_to_log: int = key(0, "validation responses shown by W&B", verl="trainer.log_val_generations", ge=0)
    save_freq: int = key(-1, "save every so many steps (not epochs); -1: never", verl="trainer.save_freq")
    save_limit: int = key(
        -1,
        "checkpoints to keep; -1: all",
        verl=("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"),
        computed=True,
    )
    keep_best: bool = key(
        False,
        "keep the checkpoint with the best validation as best/, whatever save_limit says",
        not_on=only_verl(),
    )
    early_stop: EarlyStop = EarlyStop()
    save_model_only: bool = key(
        False,
        "leave the optimiser out of checkpoints, which then cannot be resumed",
        verl="actor_rollout_ref.actor.checkpoint.save_contents",
        computed=True,
    )
    save_hf_model: bool = key(
        True,
        "write the whole model to actor/huggingface, for vLLM and transformers",
        verl="actor_rollout_ref.actor.checkpoint.save_contents",
        computed=True,
        not_on=only_verl("EasyR1 merges its shards with a script of its own afterwards"),
    )
    save_checkpoint_path: str | None = key(
        None,
        "folder of the checkpoints; null: artifacts/checkpoints/EXPERIMENT_NAME",
        verl="trainer.default_local_dir",
        path="output",
    )
    load_checkpoint_path: str | None = key(
        None,
        "checkpoint (…/global_step_N) to go on from; null: by find_last_checkpoint",
        verl=("trainer.resume_mode", "trainer.resume_from_path"),
        computed=True,
        path="input",
    )
    ray_timeline: str | None = key(None, "file for Ray's timeline", verl="ray_kwargs.timeline_json_file", path="output")
    find_last_checkpoint: bool = key(
        True, "go on from the last checkpoint of the experiment", verl="trainer.resume_mode", computed=True
    )
    rollout_data_dir: str | None = key(
        None,
        "folder for the training responses; null: artifacts/runs/EXPERIMENT_NAME/rollouts",
        verl="trainer.rollout_data_dir",
        not_on=only_verl(),
        path="output",
    )
    validation_data_dir: str | None = key(
        None,
        "folder for the validation responses; null: artifacts/runs/EXPERIMENT_NAME/validation",
        verl="trainer.validation_data_dir",
        not_on=only_verl(),
        path="output",
    )
    balance_batch: bool = key(
        True, "give every rank as many tokens", verl="trainer.balance_batch", not_on=only_verl("EasyR1 always does")
    )


EngineName = Literal["verl", "easyr1"]
Hardware = Literal["cpu", "gpu"]


class Recipe(Resolved):
    """A resolved recipe for verl or EasyR1."""

    name: str = key("recipe", "name of the recipe; default: the file's")
    engine: EngineName = key("verl", "trainer that runs the recipe")
    hardware: Hardware = key("cpu", "machine class, which chooses configs/hardware/HARDWARE.yaml")
    prepare: list[str] = key(list, "script and arguments that make the data when it is missing")
    data: Data = Data()
    algorithm: Algorithm = Algorithm()
    worker: Worker = Worker()
    trainer: Trainer = Trainer()
    monitor: Monitor = Monitor()
    verl: dict[str, Any] = key(dict, "verl's own keys, dotted, handed to it as they are")

    _embedded_on: bool = PrivateAttr(default=False)
    _notes: list[str] = PrivateAttr(default_factory=list)

    @property
    def embedded_on(self) -> bool:
        """Whether the `embedded` block of the recipe (tiny model, tiny data) took part."""
        return self._embedded_on

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should hear about variables that were guessed, or not read."""
        return tuple(self._notes)

    @property
    def n_gpus(self) -> int:
        """GPUs of all machines (ranks, without GPUs)."""
        return self.trainer.nnodes * self.trainer.n_gpus_per_node

    @property
    def has_critic(self) -> bool:
        """Whether there is a value network."""
        return self.algorithm.adv_estimator == "gae"

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: prompt and response."""
        return self.data.max_prompt_length + self.data.max_response_length
