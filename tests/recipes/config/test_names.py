"""A name that is no key is answered with the full name of the one that may be meant."""

import pytest

from recipes.config import load
from recipes.config.names import canonical
from recipes.config.schema import Source
from recipes.engines.verl.translation import overrides, translate
from recipes.errors import RecipeError
from tests.mistakes import mistake

HERE = Source("argument", "here")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        # endings, as the headings of documents have them
        ("n", "worker.rollout.n"),
        ("actor.ppo_mini_batch_size", "worker.actor.global_batch_size"),
        ("actor.ppo_micro_batch_size_per_gpu", "worker.actor.micro_batch_size_per_device_for_update"),
        ("model.path", "worker.actor.model.model_path"),
        ("ignore_eos", "actor_rollout_ref.rollout.ignore_eos"),
        # verl's names in EasyR1's groups
        ("worker.rollout.val_kwargs.n", "worker.rollout.val_override_config.n"),
        ("worker.rollout.free_cache_engine", "actor_rollout_ref.rollout.free_cache_engine"),
        ("worker.actor.model.use_remove_padding", "worker.actor.padding_free"),
        # other words for one of its parts, and another program's
        ("num_generations", "--rollout_n"),
        ("optim.learning_rate", "worker.actor.optim.lr"),
        ("data.train_batchsize", "data.train_batch_size"),
        # a variable behind the command
        ("HARDWARE", "before the command"),
        ("actor_rollout_ref.rollout.nn", "actor_rollout_ref.rollout.n"),
    ],
)
def test_what_is_no_key_is_answered_with_the_whole_name(written, meant):
    error = mistake(lambda: canonical(written, HERE))
    assert error.where == "here"
    assert written in error.what
    assert meant in error.fix


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("actor_rollout_ref.actor.clip_ratio_c=abc", "verl's own value is 3.0"),
        ("actor_rollout_ref.actor.optim.betas=0.9,0.95", "verl's own value is [0.9, 0.999]"),
        ("data.apply_chat_template_kwargs=abc", "verl's own value is {}"),
        ("actor_rollout_ref.rollout=4", "did you mean actor_rollout_ref.rollout.n?"),
        ("trainer.nnodes.x=1", "did you mean trainer.nnodes?"),
    ],
)
def test_a_text_for_a_number_and_a_value_for_a_group_are_refused(argument, said):
    with pytest.raises(RecipeError) as caught:
        translate(load("countdown", arguments=[argument], environ={}, hardware="cpu"))
    assert said in str(caught.value)


def test_a_mapping_in_hydras_form_acts():
    words = ["worker.rollout.engine_kwargs={seed:3,a:{b:x}}", "worker.reward.reward_function_kwargs={x: null}"]
    recipe = load("countdown", arguments=words, environ={}, hardware="cpu")
    assert recipe.worker.rollout.engine_kwargs == {"seed": 3, "a": {"b": "x"}}
    null = "+reward.custom_reward_function.reward_kwargs.arguments.x=null"
    assert null in overrides(recipe), "a null that is asked for"
