"""Keys under `trainer`, and the recipe as a whole."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PrivateAttr

from recipes.config.layers import DEFAULT, Source
from recipes.config.schema.algorithm import Algorithm
from recipes.config.schema.data import Data
from recipes.config.schema.field import Section, key, only_verl
from recipes.config.schema.worker import Worker

Backend = Literal["console", "file", "wandb", "tensorboard", "swanlab", "mlflow"]


class Trainer(Section):
    """How long, on what, and what is written when."""

    total_epochs: int = key(
        15, "passes over the training rows", verl="trainer.total_epochs", via="rule", twin=True, gt=0
    )
    max_steps: int | None = key(
        None,
        "steps; null: by total_epochs",
        verl=("trainer.total_training_steps", "trainer.total_epochs"),
        via="rule",
        twin=True,
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
        via="rule",
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
        via="rule",
    )
    save_model_only: bool = key(
        False,
        "leave the optimiser out of checkpoints, which then cannot be resumed",
        verl="actor_rollout_ref.actor.checkpoint.save_contents",
        via="rule",
    )
    save_hf_model: bool = key(
        True,
        "write the whole model to actor/huggingface, for vLLM and transformers",
        verl="actor_rollout_ref.actor.checkpoint.save_contents",
        via="rule",
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
        via="rule",
        path="input",
    )
    ray_timeline: str | None = key(None, "file for Ray's timeline", verl="ray_kwargs.timeline_json_file", path="output")
    find_last_checkpoint: bool = key(
        True, "go on from the last checkpoint of the experiment", verl="trainer.resume_mode", via="rule"
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


class Recipe(Section):
    """A resolved recipe: every key has its value, and `source_of` says which layer set it."""

    name: str = key("recipe", "name of the recipe; default: the file's")
    engine: EngineName = key("verl", "trainer that runs the recipe")
    hardware: Hardware = key("cpu", "machine class, which chooses configs/hardware/HARDWARE.yaml")
    prepare: list[str] = key(list, "script and arguments that make the data when it is missing")
    data: Data = Data()
    algorithm: Algorithm = Algorithm()
    worker: Worker = Worker()
    trainer: Trainer = Trainer()
    verl: dict[str, Any] = key(dict, "verl's own keys, dotted, handed to it as they are")

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)
    _embedded_on: bool = PrivateAttr(default=False)

    @property
    def embedded_on(self) -> bool:
        """Whether the `embedded` block of the recipe (tiny model, tiny data) took part."""
        return self._embedded_on

    def source_of(self, path: str) -> Source:
        """The layer that set the key at `path`; the schema's default where none did."""
        return self._sources.get(path, DEFAULT)

    @property
    def sources(self) -> dict[str, Source]:
        """Every key that a layer set, with that layer."""
        return dict(self._sources)

    def value(self, path: str) -> Any:
        """The value at a dotted path, for instance `worker.rollout.n`."""
        found: Any = self
        for part in path.split("."):
            found = getattr(found, part)
        return found

    @property
    def n_gpus(self) -> int:
        """GPUs of all machines (ranks, without GPUs)."""
        return self.trainer.nnodes * self.trainer.n_gpus_per_node
