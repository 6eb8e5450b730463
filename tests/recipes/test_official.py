"""Official examples are what upstream's launchers say, and each difference of a recipe has its kind and its reason."""

from recipes.config import load
from recipes.engines.verl import translation as verl
from recipes.official import compare, examples, names
from recipes.settings.layers import nest
from recipes.yaml_text import dump
from tests.mistakes import mistake

# What examples/grpo_trainer/run_qwen3-8b.sh sets, in verl's own keys.
RUN_QWEN3_8B = {
    "algorithm.use_kl_in_reward": False,
    "data.train_batch_size": 1024,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 32,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    "trainer.test_freq": 5,
}


def test_an_example_of_verl_as_a_recipe_is_translated_to_what_its_launcher_sets(tmp_path):
    (example,) = examples(["verl:qwen3_8b_gsm8k"])
    path = tmp_path / "official.yaml"
    path.write_text(dump(nest({key: example.values[key] for key in example.chosen})), encoding="utf-8")
    keys = verl.translate(load(str(path), environ={"WANDB_API_KEY": "x"}, hardware="gpu"))
    assert {name: keys[name] for name in RUN_QWEN3_8B} == RUN_QWEN3_8B
    assert example.outside["data.truncation"][0] == "error"


def test_countdown_has_a_reason_for_every_difference_from_every_example():
    for name in names():
        compare("countdown", examples([name])).require_reasons()
    for wrong in ("trl:toy", "easyr1:qwen3_4b_maths"):
        assert "easyr1:qwen3_4b_math" in mistake(lambda wrong=wrong: examples([wrong])).fix
