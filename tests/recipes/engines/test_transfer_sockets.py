"""Both ends of the sockets for weights have one name, and two runs on one machine have two."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from recipes.engines.verl import upstream


@pytest.fixture
def ends(monkeypatch, vllm_named):
    """`ends(address)`: names of the sockets of two ranks, as trainer and vLLM form them in the cluster at `address`."""
    from verl.workers.rollout.base import BaseRollout, get_rollout_class
    from verl.workers.rollout.vllm_rollout import vllm_rollout
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    upstream.apply("model", "server")
    config = SimpleNamespace(
        tensor_model_parallel_size=2, data_parallel_size=1, pipeline_model_parallel_size=1, layered_summon=False
    )
    monkeypatch.setattr(BaseRollout, "__init__", lambda self, *_: setattr(self, "config", config))
    monkeypatch.setattr(vllm_rollout, "is_support_ipc", lambda: True)
    monkeypatch.setenv("RAY_LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("VERL_REPLICA_RANK", "0")
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")

    def of(address: str) -> tuple[list[str], list[str]]:
        context = SimpleNamespace(get_job_id=lambda: "01000000", gcs_address=address)
        monkeypatch.setattr("ray.get_runtime_context", lambda: context)
        server = SimpleNamespace(replica_rank=0, node_rank=0)
        for name in ("address", "port"):
            for kind in ("master", "data_parallel_rpc", "dp_rpc", "dp_master"):
                setattr(server, f"_{kind}_{name}", None)
        vLLMHttpServer._post_init(server, "0,1")
        sent, received = [], []
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            sent.append(get_rollout_class("vllm")(config, None, None).zmq_handle)
            worker = SimpleNamespace(local_rank=rank, model_runner=None)
            received.append(vLLMColocateWorkerExtension._get_zmq_handle(worker))
        return sent, received

    return of


def test_two_runs_on_one_machine_have_sockets_of_their_own(ends):
    (first, in_vllm), (second, in_other) = ends("10.0.0.1:51234"), ends("10.0.0.1:51235")
    assert first == in_vllm
    assert second == in_other
    assert len({*first, *second}) == 4, "by Ray's job id alone there would be two"
    assert all(len(name) < 107 for name in ends("[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:51234")[0])
    assert os.environ["VERL_RAY_JOB_ID"].startswith("01000000-2001-")
