"""Numbers that do not fit are refused before a start, with keys, layers and the nearest that fit."""

import pytest

from recipes.config import check, load, remarks
from recipes.config.objective import kl_in_loss, kl_in_reward
from recipes.config.resolve import algorithms
from tests.mistakes import mistake

MICRO = "worker.actor.micro_batch_size_per_device_for_"
FIXED = "worker.actor.dynamic_batching=false"
FILTERED = "algorithm.adv_estimator=reinforce_plus_plus algorithm.online_filtering=true"
EIGHT = "trainer.n_gpus_per_node=3 data.rollout_batch_size=8 worker.actor.global_batch_size=8"
SMALL = "worker.rollout.max_num_batched_tokens=100"


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ("data.rollout_batch_size=100", "global_batch_size to 50 or 100"),
        ("worker.rollout.tensor_parallel_size=3", "to 2 or 4"),
        ("trainer.n_gpus_per_node=7 worker.rollout.n=5", "63 or 70"),
        (f"{FIXED} {MICRO}update=5", "to 4 or 8"),
        ("worker.rollout.n=1", "ROLLOUT_N"),
        ("worker.actor.max_token_len_per_device=100", "1024 or more"),
        (f"{FILTERED} worker.rollout.n=1", "ONLINE_FILTERING=false"),
        ("worker.actor.clip_ratio_low=0.4", "exchange"),
        ("engine=easyr1 worker.actor.loss_type=cispo worker.actor.clip_ratio_low=10", "to 1"),
        ("algorithm.use_kl_in_reward=false", "algorithm.disable_kl"),
        ("worker.actor.recompute_old_log_probs=false worker.actor.global_batch_size=16", "to null"),
        ("worker.actor.recompute_old_log_probs=false worker.rollout.top_p=0.9", "to null"),
        (f"engine=easyr1 {SMALL}", "1024"),
        ("engine=easyr1 worker.rollout.max_model_len=1000", "leave it out"),
        ("engine=easyr1 algorithm.online_filtering=true algorithm.filter_high=0", "exchange them"),
        ("trainer.save_freq=0", "such as -1"),
        ("trainer.save_limit=0", "such as -1"),
        ("trainer.max_steps=0", "leave it out"),
        ("worker.actor.optim.lr=inf", "such as"),
        ("actor_rollout_ref.actor.fsdp_config.fsdp_size=1", "fsdp2"),
        (f"{EIGHT} worker.rollout.n=8", "data.rollout_batch_size and worker.actor.global_batch_size to 6 or 9"),
        ("trainer.experiment_name=a/b", "letters, digits"),
        (f"trainer.experiment_name={'a' * 300}", "at most 200"),
        # what nothing reads
        ("algorithm.preset=dapo algorithm.kl_coef=0.5", "algorithm.disable_kl"),
        ("algorithm.kl_loss_coef=0.1", "algorithm.use_kl_loss"),
        ("algorithm.use_kl_loss=true algorithm.kl_loss_coef=0.1 algorithm.kl_coef=0.2", "algorithm.kl_loss_coef"),
        ("algorithm.filter_key=accuracy", "algorithm.online_filtering"),
        ("worker.actor.model.lora.alpha=16", "worker.actor.model.lora.rank"),
        ("trainer.val_before_train=false trainer.val_only=true", "trainer.val_before_train"),
    ],
)
def test_what_does_not_fit_names_its_key_its_layer_and_what_fits(resolve, arguments, fix):
    last = arguments.split()[-1]
    error = mistake(lambda: check(resolve(*arguments.split())))
    assert last.split("=")[0] in error.where
    assert f"argument {last}" in error.where
    assert fix in error.fix


def test_no_kl_is_one_variable_whatever_a_file_says_of_it():
    for environ in ({"DISABLE_KL": "true"}, {"DISABLE_KL": "true", "ALGORITHM": "grpo"}):
        check(recipe := load("custom", environ=environ, hardware="gpu"))
        assert kl_in_loss(recipe) is kl_in_reward(recipe) is None
    error = mistake(lambda: check(load("custom", environ=environ, arguments=["--use_kl_loss", "true"], hardware="gpu")))
    assert "DISABLE_KL=true" in error.where
    assert "--use_kl_loss true" in error.where


def test_what_hardly_acts_is_remarked_on_and_what_the_papers_do_is_not(resolve):
    for environ in ({"ALGORITHM": "dapo"}, {"CLIP_RATIO_HIGH": "0.28"}):
        assert any("one update a step" in remark for remark in remarks(resolve(**environ)))
    for name in algorithms():
        found = remarks(resolve(ALGORITHM=name, GLOBAL_BATCH_SIZE="16"))
        assert [remark for remark in found if "algorithm.kl_coef has no effect" not in remark] == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("MICRO_BATCH_SIZE=2", "lower worker.actor.max_token_len_per_device"),
        ("MICRO_BATCH_SIZE=2 worker.actor.dynamic_batching=false", ""),
        ("ENGINE=easyr1 MICRO_BATCH_SIZE=2", ""),
        ("worker.actor.dynamic_batching=false worker.actor.max_token_len_per_device=9000", "dynamic_batching is false"),
        ("MAX_STEPS=3 TOTAL_EPOCHS=15", "trainer.max_steps is 3"),
        ("data.shuffle=false data.seed=3", "data.shuffle is false"),
        ("data.shuffle=false SEED=3", ""),  # also vLLM's
        ("worker.actor.loss_type=sapo CLIP_RATIO_HIGH=0.4", "worker.actor.loss_type is sapo"),
        ("ADV_ESTIMATOR=rloo NORM_ADV_BY_STD=false", "algorithm.adv_estimator is rloo"),
        ("critic.optim.lr=2e-5", "algorithm.adv_estimator is grpo"),
        ("+algorithm.adv_estimator=gae critic.optim.lr=1e-5", ""),
        ("distillation.distillation_loss.loss_mode=k1", "distillation.enabled is false"),
        ("ENGINE=easyr1 algorithm.kl_horizon=500", "algorithm.kl_type is fixed"),
        ("ENGINE=easyr1 algorithm.use_kl_loss=false algorithm.kl_type=adaptive algorithm.kl_target=0.2", ""),
        ("ENGINE=easyr1 algorithm.use_kl_loss=true algorithm.kl_type=adaptive", "algorithm.use_kl_loss is true"),
        (
            "ENGINE=easyr1 worker.actor.loss_type=cispo worker.actor.clip_ratio_dual=5",
            "worker.actor.loss_type is cispo",
        ),
        ("ENGINE=easyr1 worker.ref.offload.offload_optimizer=true", "a reference has no optimiser"),
        ("VAL_FREQ=-1 VAL_BEFORE_TRAIN=false worker.rollout.val_override_config.n=4", "trainer.val_freq is -1"),
        ("VAL_FREQ=-1 VAL_BEFORE_TRAIN=false VAL_BATCH_SIZE=4", "trainer.val_freq is -1"),
        ("VAL_FREQ=-1 worker.rollout.val_override_config.n=4", ""),
        ("ENGINE=easyr1 VAL_FREQ=-1 VAL_BEFORE_TRAIN=false worker.rollout.val_override_config.n=4", ""),
        ("VAL_FILES=a.parquet VAL_SHARE=0.2", "since data.val_files is"),
        ("VAL_FILES= VAL_SHARE=0.2", ""),
        ("transfer_queue.backend.SimpleStorage.num_data_storage_units=2", ""),
        (
            "trainer.use_v1=false transfer_queue.backend.SimpleStorage.num_data_storage_units=2",
            "trainer.use_v1 is false",
        ),
        ("data.custom_cls.name=Rows", "data.custom_cls.path is null"),
        ("algorithm.rollout_correction.rollout_is_threshold=3.0", "rollout_is is null"),
        (
            "worker.rollout.calculate_log_probs=false algorithm.rollout_correction.rollout_is=token",
            "log_probs is false",
        ),
        (
            "algorithm.rollout_correction.bypass_mode=true algorithm.rollout_correction.rollout_rs=token_k1",
            "mode is true",
        ),
        ("algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=3.0", ""),
        (
            "trainer.use_v1=false algorithm.rollout_correction.bypass_mode=true "
            "algorithm.rollout_correction.rollout_is=token",
            "",
        ),
        ("algorithm.rollout_correction.rollout_rs_threshold=null", ""),
        ("LORA_RANK=0 actor_rollout_ref.rollout.layered_summon=false", ""),
        ("algorithm.rollout_correction.loss_type=reinforce", "trainer.use_v1 is true"),
        ("actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3", "worker.rollout.name is vllm"),
        ("LORA_RANK=0 actor_rollout_ref.rollout.layered_summon=true", "worker.actor.model.lora.rank is 0"),
        ("LORA_RANK=4 actor_rollout_ref.model.lora_adapter_path=/a", ""),
        ("LORA_RANK=0 actor_rollout_ref.model.lora_adapter_path=/a", "takes the policy for its own reference"),
        ("RECIPES_PATCHES=false worker.actor.recompute_old_log_probs=true", "trainer.patches is false"),
    ],
)
def test_a_key_that_another_decides_is_answered_by_one_line(resolve, arguments, why):
    words = arguments.split()
    said = [remark for remark in remarks(resolve(*words)) if "has no effect" in remark]
    assert [words[-1] in remark and why in remark for remark in said] == [True] * bool(why)


def test_kl_that_is_divided_by_a_groups_deviation_is_remarked_on_where_the_user_put_it_there(resolve):
    for engine in ("verl", "easyr1"):
        assert remarks(resolve(ENGINE=engine)) == []
        moved, divided = remarks(resolve(ENGINE=engine, USE_KL_LOSS="false"))
        assert "algorithm.disable_kl=true leaves it out" in moved
        assert "USE_KL_LOSS" in divided
    for cure in ("USE_KL_LOSS=true", "NORM_ADV_BY_STD=false", "ONLINE_FILTERING=true", "DISABLE_KL=true", "KL_COEF=0"):
        name, _, value = cure.partition("=")
        assert not any(
            "USE_KL_LOSS" in remark for remark in remarks(resolve("algorithm.use_kl_in_reward=null", **{name: value}))
        ), cure
