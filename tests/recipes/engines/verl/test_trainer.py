"""verl's trainer with our changes: what it writes of a validation, and whole groups in each update.

Responses of a prompt with pictures stay together where every update's share of a rank has whole groups.
"""

import importlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.transferqueue_utils import KVBatchMeta

from recipes.engines.verl import tools, trainer
from recipes.responses.files import read_responses


@pytest.mark.parametrize("given", [None, "{}"])
def test_rows_that_name_verls_loop_with_tools_get_it_where_the_recipe_has_none(monkeypatch, given):
    """verl's own GSM8K with tools has a column `agent_name`, which is `tool_agent`."""
    if given is not None:
        monkeypatch.setenv(tools.VARIABLE, given)
    monkeypatch.setattr(agent_loop, "_agent_loop_registry", dict(agent_loop._agent_loop_registry))
    loops = importlib.reload(importlib.import_module("recipes.engines.verl.agent_loops"))
    found = agent_loop._agent_loop_registry["tool_agent"]["_target_"]
    assert found.startswith(loops.__name__) == (given is not None)


def test_no_part_of_a_reward_takes_the_place_of_prompt_response_truth_or_score(tmp_path):
    verls = object.__new__(trainer.Trainer)
    verls._results, verls.global_steps, verls._dump_futures = {}, 3, []
    verls._dump_executor = ThreadPoolExecutor(1)
    keys = ["a_0_0", "b_0_0"]
    trainer._known.update({"a": {"row_id": "r0"}, "b": {"row_id": "r1"}})
    parts = {"input": ["stdin"] * 2, "output": ["42"] * 2, "gts": ["tests"] * 2, "score": [1.0] * 2, "length": [7, 8]}
    texts = (["what?", "who?"], ["this", "they"], ["truth", "none"])
    given = dict(zip(("inputs", "outputs", "gts"), texts, strict=True), scores=[0.4, 0.2], dump_path=str(tmp_path))
    verls._dump_generations(**given, reward_extra_infos_dict={**parts, "uid": keys})
    verls._dump_executor.shutdown()
    responses = read_responses(tmp_path / "3.jsonl").responses
    assert [(each.prompt, each.text, each.truth) for each in responses] == list(zip(*texts, strict=True))
    assert [(each.score, each.row_id) for each in responses] == [(0.4, "r0"), (0.2, "r1")]
    assert '"length": 8' in (tmp_path / "3.jsonl").read_text()


@pytest.mark.parametrize(
    ("of_update", "shuffle", "budget", "together"),
    [(8, False, 40, 2), (2, False, 40, 1), (8, True, 40, 1), (8, False, 19, 1)],
)
def test_whole_groups_in_each_update(monkeypatch, of_update, shuffle, budget, together):
    monkeypatch.setattr(PPOTrainerSync, "_balance_batch", lambda self, batch, metrics: batch)
    passes = {"log_prob_max_token_len_per_gpu": budget}
    actor = {"use_dynamic_bsz": True, "shuffle": shuffle, "ppo_mini_batch_size": of_update}
    actor["ppo_max_token_len_per_gpu"] = budget
    settings = {"actor_rollout_ref": {"actor": actor, "rollout": {**passes, "n": 2}, "ref": passes}}
    ours = object.__new__(trainer.Trainer)
    ours.config, ours.processor = OmegaConf.create(settings), object()
    ours.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1, 2, 3]})
    keys = [f"{prompt}_{session}_0" for session in range(2) for prompt in "abcdefgh"]
    batch = KVBatchMeta(keys=keys, tags=[{"seq_len": 10} for _ in keys], partition_id="train")
    ours._balance_batch(batch, {})
    assert ours._together == together
    pairs = zip(batch.keys[::2], batch.keys[1::2], strict=True)
    assert all(one[0] == other[0] for one, other in pairs) == (together == 2)
