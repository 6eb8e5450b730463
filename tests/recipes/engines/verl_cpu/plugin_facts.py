"""Run in a process of its own, with the plug-in's environment: prints what verl, vLLM and Ray look like through it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

ATTRIBUTES = ("filter_groups_metric", "train_batch_size", "gen_batch_size", "max_inflight_gen_batches")


def composed(changes: dict[str, Any]) -> Any:
    """verl's configuration with these keys."""
    from hydra import compose, initialize_config_module

    overrides = [f"++{key}={'null' if value is None else value}" for key, value in changes.items()]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def buffers(keys: dict[str, Any], changes: dict[str, Any]) -> list[dict[str, Any]]:
    """What verl's own replay buffer and ours are made with."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    class Trainer:
        trainer_mode = "sync"
        _build_replay_buffer = PPOTrainer._build_replay_buffer
        _resolve_filter_groups_metric = PPOTrainer._resolve_filter_groups_metric

        def _add_prompts_to_generate(self) -> None:
            raise NotImplementedError

    made = []
    for sampler in ({"trainer.v1.sampler.custom_sampler.path": None}, {}):
        trainer = Trainer()
        trainer.config = composed({**keys, **changes, **sampler})
        buffer = trainer._build_replay_buffer()
        values = {name: getattr(buffer, name) for name in (*ATTRIBUTES, "sync_refill_failed_groups", "poll_interval")}
        made.append({"class": type(buffer).__name__, **values})
    return made


def kl_in_reward(keys: dict[str, Any]) -> dict[str, Any]:
    """Token-level rewards of one response before and after verl's KL penalty, as the composed keys configure it."""
    import torch
    from verl import DataProto
    from verl.trainer.ppo.core_algos import get_kl_controller
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty

    config = composed({**keys, "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.5}).algorithm
    tensors = {
        "responses": torch.zeros(1, 3, dtype=torch.long),
        "response_mask": torch.tensor([[1.0, 1.0, 0.0]]),
        "token_level_scores": torch.tensor([[0.0, 1.0, 0.0]]),
        "old_log_probs": torch.tensor([[-1.0, -1.0, -1.0]]),
        "ref_log_prob": torch.tensor([[-1.5, -1.0, -9.0]]),
    }
    data, _ = apply_kl_penalty(
        DataProto.from_dict(tensors), kl_ctrl=get_kl_controller(config.kl_ctrl), kl_penalty=config.kl_penalty
    )
    return {"used": config.use_kl_in_reward, "rewards": data.batch["token_level_rewards"].tolist()}


def random_ids_of_forks() -> list[str]:
    """A random id of Ray's from each of two processes forked from this one."""
    from ray._raylet import UniqueID

    ids = []
    for _ in range(2):
        mine, other = os.pipe()
        if os.fork() == 0:
            os.write(other, UniqueID.from_random().hex().encode())
            os._exit(0)
        os.wait()
        ids.append(os.read(mine, 100).decode())
    return ids


def linear_layer() -> dict[str, bool]:
    """Whether a layer that vLLM prepares for CPUs keeps its weight, and follows it when it changes."""
    import torch
    from vllm.model_executor.layers import utils

    layer = torch.nn.Linear(4, 4, bias=False)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    inputs = torch.ones(1, 4)
    kept = layer.weight.shape == (4, 4)
    layer.weight.data.fill_(2.0)
    return {"kept": kept, "follows": layer.cpu_linear(inputs, layer.weight, None).tolist() == [[8.0] * 4]}


def main() -> None:
    keys = json.loads(sys.argv[1])
    import ray  # noqa: F401 - as the fork server does: Ray, its patches, the rest

    from recipes.engines.verl_cpu import forkserver, main, patches

    patches.apply_to_ray()
    forkserver.preload(main.AFTER_RAY)
    from verl.plugin.platform import get_platform
    from verl.utils.distributed import initialize_global_process_group_ray
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    initialize_global_process_group_ray()
    filtered = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "acc"}
    facts = {
        "ids": random_ids_of_forks(),
        "platform": [get_platform().device_name, get_platform().current_device(), get_platform().is_ipc_supported()],
        "engines": [
            EngineRegistry.get_engine_cls(kind, backend).__name__
            for kind in ("language_model", "value_model")
            for backend in ("fsdp", "fsdp2")
        ],
        "replica": RolloutReplicaRegistry.get("vllm").__module__,
        "rollout": get_rollout_class("vllm").__name__,
        "linear": linear_layer(),
        "buffers": [buffers(keys, {}), buffers(keys, filtered), buffers(keys, {"data.gen_batch_size": 2})],
        "kl": kl_in_reward(keys),
    }
    print("\n" + json.dumps(facts))


if __name__ == "__main__":
    main()
