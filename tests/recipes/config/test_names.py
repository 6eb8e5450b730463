"""One key may be written by the recipe's name or by verl's, in full; what is unknown is answered with the full name."""

import pytest

from recipes.config.names import canonical
from recipes.config.schema import Source
from tests.mistakes import mistake

HERE = Source("argument", "here")
ACTOR, NATIVE = "worker.actor", "verl.actor_rollout_ref"


@pytest.mark.parametrize(
    ("written", "key"),
    [
        # verl's own names
        ("data.train_batch_size", "data.rollout_batch_size"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", f"{ACTOR}.global_batch_size"),
        ("trainer.test_freq", "trainer.val_freq"),
        # what only verl has
        ("actor_rollout_ref.rollout.over_sample_rate", f"{NATIVE}.rollout.over_sample_rate"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.a.b", f"{NATIVE}.rollout.engine_kwargs.vllm.a.b"),
        ("actor_rollout_ref.rollout.dtype", f"{NATIVE}.rollout.dtype"),  # bf16 is bfloat16 there
    ],
)
def test_a_key_by_every_name(written, key):
    assert canonical(written, HERE) == key


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        # endings, as the headings of documents have them
        ("n", "worker.rollout.n"),
        ("actor.ppo_mini_batch_size", f"{ACTOR}.global_batch_size"),
        ("over_sample_rate", "actor_rollout_ref.rollout.over_sample_rate"),
        # other words for one of its parts
        ("optim.learning_rate", f"{ACTOR}.optim.lr"),
        ("data.train_batchsize", "data.train_batch_size"),
        ("actor_rollout_ref.rollout.nn", "actor_rollout_ref.rollout.n"),
    ],
)
def test_what_is_no_key_is_answered_with_the_whole_name(written, meant):
    error = mistake(lambda: canonical(written, HERE))
    assert error.where == "here"
    assert written in error.what
    assert meant in error.fix
