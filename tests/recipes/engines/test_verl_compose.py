"""verl itself reads what we hand it: its own Hydra composition, its own check, its own dataclasses."""

from __future__ import annotations

import pytest
from omegaconf import DictConfig, OmegaConf

from recipes.config import load, tasks
from recipes.config.layers import flatten
from recipes.config.names import verl_defaults
from recipes.engines import verl
from recipes.paths import CONFIGS

MACHINES = sorted(path.stem for path in (CONFIGS / "hardware").glob("*.yaml"))


def check(config: DictConfig) -> None:
    """What verl's `main_ppo` calls before it starts Ray."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))


def test_the_file_that_verl_ships_is_what_it_composes(compose_with):
    """The launcher reads verl's generated file instead of composing; they must agree."""
    truth = flatten(OmegaConf.to_container(compose_with([]), resolve=False))
    truth.pop("model_engine")
    assert truth == verl_defaults()


@pytest.mark.parametrize("task", tasks())
@pytest.mark.parametrize("hardware", MACHINES)
def test_verl_accepts_every_recipe_on_every_machine(composed, task, hardware):
    config = composed(task=task, hardware=hardware)
    check(config)
    expected = verl.translate(load(task, environ={}, hardware=hardware))
    for name, value in expected.items():
        found = OmegaConf.select(config, name)
        found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        assert (isinstance(value, str) and "${" in value) or found == value, name


def test_what_only_some_gpus_use_reaches_verls_dataclasses(composed):
    from verl.utils.config import omega_conf_to_dataclass

    settings = ("strategy=fsdp2", "dynamic_batching=true", "fsdp.mp_param_dtype=fp16", "fsdp.torch_dtype=bf16")
    vllm = ("worker.rollout.limit_images=2", "worker.rollout.engine_kwargs.max_logprobs=5")
    config = composed(*(f"worker.actor.{setting}" for setting in settings), *vllm)
    check(config)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert (actor.engine.strategy, actor.engine.model_dtype) == ("fsdp2", "bf16")
    assert actor.engine.mixed_precision["param_dtype"] == "fp16"
    assert (rollout.limit_images, rollout.engine_kwargs["vllm"]) == (2, {"max_logprobs": 5})
