"""Official examples are what upstream's launchers say, and each difference of a recipe has its kind and its reason."""

from recipes.config import load
from recipes.config.schema import Recipe, leaves
from recipes.engines.verl import translation as verl
from recipes.official import compare, examples, names
from recipes.settings import nest
from recipes.yaml_text import dump
from tests.mistakes import mistake

# What examples/tuning/lora/run_qwen3_8b_fsdp.sh sets, in verl's own keys.
RUN_LORA = {
    "algorithm.use_kl_in_reward": False,
    "data.train_batch_size": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 12288,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    "trainer.test_freq": 5,
}


def test_an_example_of_verl_as_a_recipe_is_translated_to_what_its_launcher_sets(tmp_path):
    (example,) = examples(["verl:qwen3_8b_gsm8k_lora"])
    assert examples(["easyr1, verl:8b"]) == examples(["easyr1", "verl:8b"])
    path = tmp_path / "official.yaml"
    path.write_text(
        dump(nest({key: example.values[key] for key in example.chosen & leaves(Recipe).keys()})), encoding="utf-8"
    )
    keys = verl.translate(load(str(path), environ={"WANDB_API_KEY": "x"}, hardware="gpu"))
    assert {name: keys[name] for name in RUN_LORA} == RUN_LORA
    assert example.outside["data.truncation"][0] == "error"


def test_countdown_has_a_reason_for_every_difference_from_every_example():
    for name in names():
        compare("countdown", [name]).require_reasons()
    for wrong in ("trl:toy", "easyr1:qwen3_4b_maths"):
        assert "easyr1:qwen3_4b_math" in mistake(lambda wrong=wrong: examples([wrong])).fix


def test_where_no_example_is_named_a_text_task_is_compared_with_text_and_images_with_images():
    for task, texts in (("countdown", True), ("number_game", False)):
        assert all(("VL" not in example.title) == texts for example in compare(task).official)
