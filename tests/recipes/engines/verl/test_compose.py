"""verl itself reads what we hand it: its command line, its Hydra composition, its check, its dataclasses."""

import importlib
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from recipes.config import load, tasks
from recipes.config.names import verl_defaults
from recipes.config.schema import Recipe, leaves
from recipes.engines.verl import translation as verl
from recipes.paths import CONFIGS, ROOT
from recipes.settings import flatten

MACHINES = sorted(path.stem for path in (CONFIGS / "hardware").glob("*.yaml"))


def check(config: DictConfig) -> None:
    """What verl's `main_ppo` calls before it starts Ray."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))


def test_the_file_that_verl_ships_is_what_it_composes(compose_with):
    """The launcher reads verl's generated file instead of composing; they must agree."""
    truth = flatten(OmegaConf.to_container(compose_with(), resolve=False))
    truth.pop("model_engine")
    assert truth == verl_defaults()


@pytest.mark.parametrize("task", tasks())
@pytest.mark.parametrize("hardware", MACHINES)
def test_verl_accepts_every_recipe_on_every_machine(compose_with, task, hardware):
    recipe = load(task, environ={}, hardware=hardware)
    config = compose_with(*verl.overrides(recipe))
    check(config)
    for name, value in verl.translate(recipe).items():
        found = OmegaConf.select(config, name)
        found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        assert (isinstance(value, str) and "${" in value) or found == value, name


COMPILATION = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


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
    assert rollout.limit_images == 2
    assert rollout.engine_kwargs["vllm"] == {"max_logprobs": 5, "compilation_config": COMPILATION}


def listed(annotation: Any) -> list[Any]:
    """The values that a type lists, in an option or a list too."""
    inner = get_args(annotation)
    return list(inner) if get_origin(annotation) is Literal else [value for each in inner for value in listed(each)]


LISTED = {
    path: [
        value for value in leaf.info.values_on.get("verl") or listed(leaf.field.annotation) if isinstance(value, str)
    ]
    for path, leaf in leaves(Recipe).items()
    if not path.startswith("worker.ref.")  # the actor's types again
    if listed(leaf.field.annotation) and leaf.info.verl and "verl" in leaf.info.engines
}
"""Key -> its values; each test takes one of each key."""


@pytest.mark.parametrize("turn", range(max(map(len, LISTED.values()))))
def test_verl_takes_every_value_that_the_schema_lists(composed, turn):
    """In its check, in the dataclasses of its workers, and in the registries in which it looks names up."""
    from verl.trainer.ppo import core_algos
    from verl.utils.config import omega_conf_to_dataclass

    given = {path: values[turn % len(values)] for path, values in LISTED.items()}
    written = {**given, "trainer.logger": f"[console,{given['trainer.logger']}]"}
    config = composed(*(f"{key}={value}" for key, value in written.items()))
    check(config)
    for part in (config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout):
        omega_conf_to_dataclass(part)
    assert core_algos.get_adv_estimator_fn(config.algorithm.adv_estimator)
    importlib.import_module(config.actor_rollout_ref.model.external_lib)  # as verl does
    assert core_algos.get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)
    ones = torch.ones(1, 2)
    for name in ("algorithm.kl_penalty", "algorithm.kl_loss_type"):
        core_algos.kl_penalty(torch.zeros(1, 2), ones, given[name])
    core_algos.agg_loss(ones, ones, config.actor_rollout_ref.actor.loss_agg_mode)


def test_verl_takes_the_keys_of_an_algorithm_that_the_recipes_lack(composed):
    from verl.utils.config import omega_conf_to_dataclass

    tiny = str(ROOT / "recipes" / "tasks" / "countdown" / "tiny")
    keys = ("+algorithm.adv_estimator=gae", f"critic.model.path={tiny}", "critic.optim.lr=1e-5")
    check(config := composed(*keys, f"worker.actor.model.model_path={tiny}"))
    assert config.algorithm.adv_estimator == "gae"
    assert omega_conf_to_dataclass(config.critic).optim.lr == 1e-5


PARSER = OverridesParser.create()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
    st.text("a'\"\\,=[]{}():$ \n\t.-+", max_size=12),
)


@given(SCALARS | st.lists(SCALARS, max_size=4))
@settings(max_examples=40, deadline=None)
def test_hydra_reads_back_what_was_written(value):
    if "${" in str(value):
        return
    found = PARSER.parse_override(verl.override("data.name", value, known=True)).value()
    assert found == value
    assert type(found) is type(value)


def test_only_changes_of_verls_defaults_are_written_and_all_keys_of_the_user():
    def written(*arguments: str) -> list[str]:
        return verl.overrides(load("countdown", arguments=arguments, environ={}, hardware="gpu"))

    plain = written()
    assert "actor_rollout_ref.rollout.n=16" in plain
    assert not [item for item in plain if item.startswith(("actor_rollout_ref.rollout.top_k=", "critic."))]
    attention = "model.override_config.attn_implementation=sdpa"
    natives = ("actor_rollout_ref.rollout.ignore_eos=false", "+ray_kwargs.ray_init.num_gpus=3")
    given = written(*natives, "+trainer.use_v1=false", f"worker.actor.{attention}")
    assert set(given) >= {*natives, "trainer.use_v1=false", f"+actor_rollout_ref.{attention}"}
