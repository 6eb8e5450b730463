"""Every leaf of verl's configuration is a recipe's key in another spelling, a copy of one, refused, or verl's alone."""

from importlib.metadata import version

import pytest

from recipes.config import Recipe, load
from recipes.config.names import NAMES, UNREAD, aliases, followed, refusal, verl_defaults, verl_package
from recipes.config.schema import leaves
from recipes.config.variables import table
from recipes.engines.verl.translation import overrides, translate
from recipes.yaml_text import flow
from tests.mistakes import mistake
from tests.recipes.engines.verl.test_translation import ALL_ON, another
from tools.verl_keys import unread_keys

REWARD, CONTENTS = "reward.custom_reward_function", "actor_rollout_ref.actor.checkpoint.save_contents"
VALIDATION = "worker.rollout.val_override_config"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
EVERY_KEY_ACTS = {**ALL_ON, "worker.actor.recompute_old_log_probs": True}
TOGETHER = (f"{REWARD}.path", f"{REWARD}.name", CONTENTS, "trainer.resume_mode", "trainer.resume_from_path")
SPELLINGS = [
    (name, key)
    for name, key in aliases().items()
    if name not in (key, *TOGETHER) and not refusal(name) and not leaves(Recipe)[key].is_open
]


def gsm8k(*arguments: str) -> Recipe:
    return load("gsm8k", environ={}, hardware="gpu", arguments=arguments)


@pytest.mark.parametrize(("name", "key"), SPELLINGS)
def test_verls_spelling_of_a_key_is_that_key(name, key):
    others = [f"{other}={flow(value)}" for other, value in EVERY_KEY_ACTS.items() if other not in (key, "hardware")]
    leaf = leaves(Recipe)[key]
    ours = gsm8k(*others, f"{key}={flow(another(leaf, leaf.default))}")
    theirs = gsm8k(*others, f"{name}={flow(translate(ours)[name])}")
    assert theirs.model_dump() == ours.model_dump()
    assert overrides(theirs) == overrides(ours)


def test_every_other_name_passes_through_or_is_refused_with_the_key_that_acts():
    others = [name for name in verl_defaults() if not (name in aliases() or name in leaves(Recipe))]
    alone = {name: flow(verl_defaults()[name]) for name in others if not (refusal(name) or followed(name))}
    moved = tuple(table(NAMES)["moved"])
    alone = {name: value for name, value in alone.items() if "${" not in value and not name.startswith(moved)}
    keys = translate(gsm8k(*(f"{name}={value}" for name, value in alone.items())))
    assert {name: flow(keys.get(name)) for name in alone} == alone
    for name in others:
        if refusal(name):
            assert mistake(lambda name=name: gsm8k(f"{name}=1")).fix
        elif key := followed(name):
            for written in (name, f"+{name}"):
                assert mistake(lambda written=written: gsm8k(f"{written}=nothing")).fix == f"set {key}"


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["trainer.resume_mode=disable"], {"trainer.find_last_checkpoint": False}),
        (
            ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/x/global_step_3"],
            {"trainer.load_checkpoint_path": "/x/global_step_3"},
        ),
        ([f"{REWARD}.path=/a.py", f"{REWARD}.name=f"], {"worker.reward.reward_function": "/a.py:f"}),
        (["custom_reward_function.path=/a.py"], {"worker.reward.reward_function": "/a.py"}),
        ([f"{CONTENTS}=[model,hf_model]"], {"trainer.save_model_only": True, "trainer.save_hf_model": True}),
        (["+reward.reward_kwargs.overlong_buffer_cfg.len=12"], {"worker.reward.overlong_buffer.len": 12}),
        (["actor_rollout_ref.rollout.val_kwargs.do_sample=false"], {f"{VALIDATION}.temperature": 0.0}),
        (
            ["actor_rollout_ref.rollout.val_kwargs={do_sample: true, temperature: 0.6}"],
            {f"{VALIDATION}.temperature": 0.6},
        ),
        (["data.mm_processor_kwargs={min_pixels: 900}"], {"data.min_pixels": 900}),
        (["actor_rollout_ref.actor.optim.warmup_style=constant"], {"worker.actor.optim.lr_scheduler_type": "constant"}),
        (["actor_rollout_ref.actor.optim.warmup_style=null"], {"worker.actor.optim.lr_scheduler_type": "cosine"}),
        (["+actor_rollout_ref.model.override_config.a=1"], {"worker.actor.model.override_config": {"a": 1}}),
        ([f"+{LOSS}=dro"], {"verl": {f"+{LOSS}": "dro"}}),
        (["actor_rollout_ref.rollout.response_length=9", "data.max_response_length=9"], {"verl": {}}),
    ],
)
def test_names_that_make_a_key_together_and_values_that_only_verl_knows(arguments, keys):
    assert {key: gsm8k(*arguments).value(key) for key in keys} == keys


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("verl={data: {train_batch_size: 4}}", "write verl.KEY=value"),
        ("actor_rollout_ref.rollout.mode=sync", "leave it out"),
        ("actor_rollout_ref.rollout.val_kwargs.do_sample=true", f"give {VALIDATION}.temperature"),
        ("actor_rollout_ref.rollout.do_sample=false", "set worker.rollout.temperature"),
        ("actor_rollout_ref.actor.checkpoint.async_save=true", "leave it out"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size=8", "micro_batch_size_per_device_for_update"),
        ("actor_rollout_ref.actor.optim.total_training_steps=7", "trainer.max_steps"),
        ("actor_rollout_ref.actor.use_torch_compile=false", "actor.fsdp_config.use_torch_compile"),
        (f"{CONTENTS}=null", "trainer.save_model_only"),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=abc", "worker.actor.optim.lr_warmup_steps is 'abc'"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype=[bf16]", "worker.actor.fsdp.torch_dtype is"),
    ],
)
def test_what_does_not_act_is_a_mistake_that_names_what_does(argument, words):
    assert words in str(mistake(lambda: gsm8k(argument)))


def test_what_nothing_reads_is_listed_from_the_installed_verl():
    listed = table(UNREAD)
    assert (listed["version"], listed["names"]) == (version("verl"), unread_keys(verl_package()))
