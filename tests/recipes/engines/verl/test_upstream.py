"""`RECIPES_PATCHES=0` leaves every change out, and says so; a machine without a GPU keeps what it needs."""

import inspect

import pytest

from recipes.config import load
from recipes.engines.verl import translation, upstream

OFF = {"RECIPES_PATCHES": "0"}


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_a_run_of_verl_as_it_is_names_nothing_of_ours_but_the_reward_and_what_cpus_need(hardware):
    recipe = load("gsm8k", environ=OFF, hardware=hardware)
    keys = translation.translate(recipe)
    ours = {name for name in keys if "recipes.engines" in str(keys[name]) and not name.startswith("reward.")}
    needed = {"actor_rollout_ref.model.external_lib"} if hardware == "cpu" else set()
    assert ours == {"trainer.checkpoint_callback_class"} | needed
    assert "verl.trainer.main_ppo" in translation.command(recipe)
    assert translation.environment(recipe, {})[upstream.SWITCH] == "0"
    assert any("whole_responses" in line for line in translation.notes(recipe))
    assert translation.notes(load("gsm8k", environ={}, hardware=hardware)) == []
    assert not str(keys["actor_rollout_ref.actor.policy_loss.loss_mode"]).startswith(translation.ON_POLICY_PREFIX)
    assert "algorithm.rollout_correction.bypass_mode" not in keys
    adapters = load("gsm8k", arguments=["worker.actor.model.lora.rank=8"], environ=OFF, hardware=hardware)
    assert len(translation.notes(adapters)) == 2, "the saved model is said to keep its adapters apart"


def test_changes_are_made_once_and_not_where_they_are_switched_off(monkeypatch):
    made = []
    monkeypatch.setattr(upstream, "CHANGES", [])
    for name, needed in (("needed", True), ("other", False)):
        upstream.change("model", needed=needed)(lambda name=name: made.append(name))
    monkeypatch.setenv(upstream.SWITCH, "0")
    upstream.apply("model", "server")
    assert made == ["needed"]
    monkeypatch.delenv(upstream.SWITCH)
    upstream.apply("model")
    assert made == ["needed", "other"]


def test_the_engine_is_found_by_its_vendor_and_verls_own_by_another(monkeypatch):
    from verl.workers.engine import base

    from recipes.engines.verl.engine import RecipesEngine

    monkeypatch.setattr(base, "get_device_name", lambda: "cuda")
    monkeypatch.setattr(base, "get_vendor", lambda: "nvidia")
    monkeypatch.delenv("VERL_ENGINE_VENDOR", raising=False)
    recipe = load("countdown", environ={}, hardware="gpu")
    # What the launcher sets and nothing else: a process that is forked has no variables of its parent.
    for given, ours in (({}, True), ({"VERL_ENGINE_VENDOR": "nvidia"}, False)):
        monkeypatch.setenv("VERL_ENGINE_VENDOR", translation.environment(recipe, given)["VERL_ENGINE_VENDOR"])
        for backend in ("fsdp", "fsdp2"):
            found = base.EngineRegistry.get_engine_cls("language_model", backend)
            assert issubclass(found, RecipesEngine) == ours


@pytest.mark.parametrize("chosen", [[3, 0, 2], [1]])
def test_rows_selected_together_are_the_rows_that_verl_selects(chosen):
    import torch
    from verl.utils import tensordict_utils as tu

    jagged = [torch.arange(length) + 10 * length for length in (3, 1, 7, 2)]
    columns = {
        "ids": torch.nested.as_nested_tensor(jagged, layout=torch.jagged),
        "positions": tu.nested_tensor_from_tensor_list([row.repeat(3, 1) for row in jagged]),  # three axes of an image
        "plain": torch.arange(4),
        "text": ["a", "b", "c", "d"],
    }
    batch = tu.get_tensordict(columns, {"temperature": 0.5})
    batch["strided"] = torch.nested.as_nested_tensor(jagged, layout=torch.strided)  # where jagged is not to be had
    verls = inspect.unwrap(tu.index_select_tensor_dict)
    upstream.rows_selected_together()
    ours, theirs = tu.index_select_tensor_dict(batch, chosen), verls(batch, chosen)
    assert set(ours.keys()) == set(theirs.keys())
    assert ours["temperature"] == theirs["temperature"]
    assert list(ours["text"]) == list(theirs["text"])
    assert torch.equal(ours["plain"], theirs["plain"])
    for name in ("ids", "positions", "strided"):
        for row, expected in zip(ours[name].unbind(), theirs[name].unbind(), strict=True):
            assert torch.equal(row, expected)
    assert ours["ids"]._max_seqlen == theirs["ids"]._max_seqlen


@pytest.mark.parametrize("lengths", [(6, 6, 6, 6), (5, 7, 6, 5)])
def test_positions_of_pictures_are_divided_where_all_rows_have_one_length(lengths):
    """verl's queue makes them; torch takes equal rows for ragged in the first dimension, and verl in the last."""
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine import base

    rows = [torch.arange(4 * length).view(4, length) + length for length in lengths]
    made, batch = (
        tu.get_tensordict({"position_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, {}) for _ in "ab"
    )
    upstream.positions_of_equal_rows()
    if len({*lengths}) == 1:  # where verl mends it, the change goes
        inspect.unwrap(base.maybe_fix_3d_position_ids)(made)
        with pytest.raises(RuntimeError):
            tu.chunk_tensordict(made, 2)
    for _ in range(2):  # verl calls it before each division
        base.maybe_fix_3d_position_ids(batch)
    assert torch.equal(batch["position_ids"].values(), torch.cat(rows, dim=1))  # as the engine packs them
    divided = [row for part in tu.chunk_tensordict(batch, 2) for row in part["position_ids"].unbind()]
    divided += tu.index_select_tensor_dict(batch, [1, 3])["position_ids"].unbind()
    for row, expected in zip(divided, [*rows, rows[1], rows[3]], strict=True):
        assert torch.equal(row, expected)


def test_one_rank_has_the_rows_that_verl_gives_it_and_more_ranks_are_verls():
    from verl.trainer.ppo.v1 import trainer_base

    name, lengths = "get_seqlen_balanced_partitions", [7, 1, 30, 4, 12, 9]
    verls = inspect.unwrap(getattr(trainer_base, name))
    upstream.one_rank_has_all_rows()
    ours = getattr(trainer_base, name)
    for ranks in (1, 2, 3):
        assert ours(lengths, k_partitions=ranks, equal_size=True) == verls(lengths, k_partitions=ranks, equal_size=True)
