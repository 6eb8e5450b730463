"""verl itself reads what we hand it: its own Hydra composition, its own check, its own dataclasses, its own KL."""

from __future__ import annotations

import pytest
from omegaconf import DictConfig, OmegaConf

from recipes.config import Recipe, load, tasks
from recipes.config.layers import flatten, validated
from recipes.config.names import verl_defaults
from recipes.engines import verl
from recipes.paths import CONFIGS

MACHINES = sorted(path.stem for path in (CONFIGS / "hardware").glob("*.yaml"))
EVERYTHING = (
    "worker.actor.strategy=fsdp2",
    "worker.actor.dynamic_batching=true",
    "worker.actor.micro_batch_size_per_device_for_update=4",
    "worker.actor.micro_batch_size_per_device_for_experience=8",
    "worker.actor.recompute_old_log_probs=true",
    "worker.actor.model.lora.rank=8",
    "worker.actor.model.lora.target_modules=q_proj,v_proj",
    "worker.actor.loss_type=gspo",
    "worker.actor.fsdp.mp_param_dtype=fp16",
    "worker.actor.fsdp.torch_dtype=bf16",
    "worker.rollout.limit_images=2",
    "worker.rollout.engine_kwargs.max_logprobs=5",
    "worker.reward.overlong_buffer.enable=true",
    "worker.reward.overlong_buffer.len=512",
    "worker.reward.reward_function_kwargs.credit=0.1",
    "algorithm.use_kl_loss=true",
    "algorithm.online_filtering=true",
    "data.mini_rollout_batch_size=32",
    "trainer.load_checkpoint_path=/checkpoints/global_step_3",
    "actor_rollout_ref.rollout.over_sample_rate=0.1",
)


def check(config: DictConfig) -> None:
    """What verl's `main_ppo` calls before it starts Ray."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))


def as_dataclass(config: DictConfig):
    from verl.utils.config import omega_conf_to_dataclass

    return omega_conf_to_dataclass(config)


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


def test_everything_at_once_reaches_verls_dataclasses(composed):
    config = composed(*EVERYTHING)
    without_adapter = OmegaConf.merge(config, {"actor_rollout_ref": {"model": {"lora_rank": 0}}})
    check(without_adapter)  # with one, the check imports vLLM, to ask for the ranks that it knows
    actor = as_dataclass(config.actor_rollout_ref.actor)
    rollout = as_dataclass(config.actor_rollout_ref.rollout)
    assert actor.policy_loss.loss_mode == "gspo"
    assert actor.engine.mixed_precision["param_dtype"] == "fp16"
    assert actor.engine.model_dtype == "bf16"
    assert (actor.engine.strategy, actor.use_kl_loss, actor.kl_loss_coef) == ("fsdp2", True, 0.01)
    assert actor.ppo_max_token_len_per_gpu == 4 * 2304
    assert rollout.log_prob_max_token_len_per_gpu == 8 * 2304
    assert (rollout.limit_images, rollout.load_format, rollout.over_sample_rate) == (2, "safetensors", 0.1)
    assert rollout.engine_kwargs["vllm"] == {"max_logprobs": 5}
    assert config.data.mm_processor_kwargs.max_pixels == 4194304
    assert config.reward.reward_kwargs.overlong_buffer_cfg.len == 512
    assert config.reward.custom_reward_function.reward_kwargs.credit == 0.1
    model, trainer = config.actor_rollout_ref.model, config.trainer
    assert (model.lora_rank, model.lora_alpha, list(model.target_modules)) == (8, 64, ["q_proj", "v_proj"])
    assert (trainer.resume_mode, trainer.resume_from_path) == ("resume_path", "/checkpoints/global_step_3")


def test_verl_has_the_values_that_the_schema_allows():
    """Estimators, losses and reward managers by name, in verl's own registries."""
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    from recipes.config.schema import leaves, verl_loss
    from recipes.config.schema.recipe import VERL_ESTIMATORS

    assert set(VERL_ESTIMATORS) <= set(ADV_ESTIMATOR_REGISTRY)
    losses = leaves(Recipe)["worker.actor.loss_type"].field.annotation.__args__
    assert {verl_loss(name) for name in losses} <= set(POLICY_LOSS_REGISTRY)
    assert {"naive", "dapo"} <= set(REWARD_MANAGER)


def test_kl_from_the_reward_changes_token_level_rewards(composed):
    """The recipe's own switch, controller and estimator, through verl's own penalty."""
    import torch
    from verl import DataProto
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty
    from verl.trainer.ppo.utils import need_reference_policy

    assert not need_reference_policy(composed("algorithm.disable_kl=true"))
    config = composed()
    assert need_reference_policy(config)
    assert config.algorithm.use_kl_in_reward, "verl penalises nothing without it, whatever the coefficient"
    policy = torch.tensor([[-1.0, -2.0, -0.5], [-0.1, -0.2, -0.3]])
    reference = torch.tensor([[-1.5, -1.0, -0.5], [-0.1, -0.9, -0.3]])
    scores = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    data = DataProto.from_single_dict(
        {"token_level_scores": scores, "old_log_probs": policy, "ref_log_prob": reference, "response_mask": mask}
    )
    controller = core_algos.get_kl_controller(config.algorithm.kl_ctrl)
    data, metrics = apply_kl_penalty(data, controller, kl_penalty=config.algorithm.kl_penalty)
    torch.testing.assert_close(data.batch["token_level_rewards"], scores - 0.01 * (policy - reference) * mask)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.01


def test_an_unknown_key_would_be_refused_by_verl_too(compose_with):
    recipe = validated(Recipe, {"hardware": "gpu", "verl": {"+actor_rollout_ref.rollout.no_such_key": 1}}, {})
    config = compose_with(verl.overrides(recipe))
    with pytest.raises(Exception, match="no_such_key"):
        as_dataclass(config.actor_rollout_ref.rollout)
