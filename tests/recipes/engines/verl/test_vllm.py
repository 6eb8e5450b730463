"""vLLM as verl's server, and verl's client of it: sockets of two runs, a receiver that fails, whole responses."""

import asyncio
import inspect
import os
import threading
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from recipes.config import load
from recipes.engines.verl import upstream
from recipes.evaluation.options import Options
from recipes.paths import ROOT
from tests.mistakes import mistake

TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"
TOKENS = [5, 9, 7, 11, 3]


@pytest.fixture
def server(monkeypatch, vllm_named):
    """What the two changes replace, put back after each test: the module with `SamplingParams`, and a processor."""
    from transformers import AutoTokenizer
    from verl.workers.rollout.vllm_rollout import vllm_async_server
    from vllm import SamplingParams
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    monkeypatch.setattr(vllm_async_server, "SamplingParams", SamplingParams)
    monkeypatch.setattr(RequestState, "make_request_output", inspect.unwrap(RequestState.make_request_output))
    processor = OutputProcessor(AutoTokenizer.from_pretrained(TINY), log_stats=False)
    return SimpleNamespace(sampling_params=vllm_async_server, processor=processor)


def answers(server: SimpleNamespace, abort_after: int | None = None, **given: Any) -> list[Any]:
    """What a request's task gets while the model gives it `TOKENS`, with `given` as verl's server passes it."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import RequestOutputCollector
    from vllm.v1.outputs import LogprobsLists

    parameters = server.sampling_params.SamplingParams(max_tokens=len(TOKENS), logprobs=0, **given)
    none = dict.fromkeys(("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank"))
    named = {"request_id": "r", "external_req_id": "r", "prompt_token_ids": [1, 2], "arrival_time": 0.0}
    request = EngineCoreRequest(**named, sampling_params=parameters, **none)
    queue, found = RequestOutputCollector(parameters.output_kind, "r"), []
    server.processor.add_request(request, None, None, 0, queue)
    for position, token in enumerate(TOKENS[:abort_after]):
        lists = LogprobsLists(np.array([[token]]), np.array([[-float(token)]]), np.array([0]), None)
        last = position == len(TOKENS) - 1
        output = EngineCoreOutput("r", [token], new_logprobs=lists, finish_reason=FinishReason.LENGTH if last else None)
        server.processor.process_outputs([output], 0.0, None)
        found.append(queue.get_nowait())
    if abort_after is not None:
        server.processor.abort_requests(["r"], internal=True)
        found.append(queue.get_nowait())
    return [answer for answer in found if answer is not None]


def read(answer: Any) -> tuple[list[int], list[float], str | None]:
    """What verl reads of an answer (vllm_async_server.py, `generate`)."""
    output = answer.outputs[0]
    probabilities = [entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True)]
    return list(output.token_ids), probabilities, output.finish_reason


@pytest.mark.parametrize("abort_after", [None, 0, 3])
def test_the_last_answer_is_vllms_own_and_only_the_first_comes_before_it(server, abort_after):
    before = answers(server, abort_after)
    upstream.whole_responses.__wrapped__()
    now = answers(server, abort_after)
    assert len(before) == (len(TOKENS) if abort_after is None else abort_after + 1)
    assert len(now) == (1 if abort_after == 0 else 2)
    assert read(now[-1])[0] == TOKENS[:abort_after]
    assert read(now[-1]) == read(before[-1])
    assert before[-1].outputs[0].text or abort_after == 0
    assert not now[-1].outputs[0].text
    if abort_after is None:
        assert answers(server, stop=["nowhere in it"])[-1].outputs[0].text, "a request that ends at a text keeps it"


def test_two_runs_on_one_machine_have_sockets_of_their_own(monkeypatch, vllm_named):
    """The sockets of two ranks, as trainer and vLLM name them, in two clusters whose first job has one id."""
    from verl.workers.rollout.base import BaseRollout, get_rollout_class
    from verl.workers.rollout.vllm_rollout import vllm_rollout
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    upstream.apply("model", "server")
    sizes = dict.fromkeys(("data_parallel_size", "pipeline_model_parallel_size"), 1)
    config = SimpleNamespace(tensor_model_parallel_size=2, layered_summon=False, **sizes)
    monkeypatch.setattr(BaseRollout, "__init__", lambda self, *_: setattr(self, "config", config))
    monkeypatch.setattr(vllm_rollout, "is_support_ipc", lambda: True)
    for name, value in (("RAY_LOCAL_WORLD_SIZE", "2"), ("VERL_REPLICA_RANK", "0"), ("VERL_RAY_JOB_ID", "01000000")):
        monkeypatch.setenv(name, value)
    places = [f"_{a}_{b}" for a in ("master", "data_parallel_rpc", "dp_rpc", "dp_master") for b in ("address", "port")]

    def ends(address: str) -> list[str]:
        context = SimpleNamespace(get_job_id=lambda: "01000000", gcs_address=address)
        monkeypatch.setattr("ray.get_runtime_context", lambda: context)
        vLLMHttpServer._post_init(SimpleNamespace(replica_rank=0, node_rank=0, **dict.fromkeys(places)), "0,1")
        sent = []
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            sent.append(get_rollout_class("vllm")(config, None, None).zmq_handle)
            worker = SimpleNamespace(local_rank=rank, model_runner=None)
            assert vLLMColocateWorkerExtension._get_zmq_handle(worker) == sent[-1]
        return sent

    assert len({*ends("10.0.0.1:51234"), *ends("10.0.0.1:51235")}) == 4, "by Ray's job id alone there would be two"
    assert all(len(name) < 107 for name in ends("[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:51234"))
    assert os.environ["VERL_RAY_JOB_ID"].startswith("01000000-2001-")


@pytest.fixture
def vllm_client(monkeypatch, vllm_named):
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer

    from recipes.engines.verl import vllm_client

    nothing = SimpleNamespace(synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None)
    monkeypatch.setattr(bucketed_weight_transfer, "get_torch_device", lambda: nothing)
    monkeypatch.setattr(vllm_client, "POLL_MILLISECONDS", 20)
    return vllm_client


class Receiver(threading.Thread):
    """vLLM's worker: it acknowledges so many messages, and then it fails, or closes its end as verl's does."""

    def __init__(self, address: str, acknowledged: int) -> None:
        super().__init__()
        self.address, self.acknowledged, self.ended = address, acknowledged, threading.Event()

    def run(self) -> None:
        socket = zmq.Context.instance().socket(zmq.REP)
        socket.setsockopt(zmq.RCVTIMEO, 20_000)  # a sender that failed sends nothing: the test fails and does not hang
        socket.connect(self.address)
        for _ in range(self.acknowledged):
            socket.recv_pyobj()
            socket.send(b"")
        self.ended.set()
        socket.close(linger=100)


def send(vllm_client, receiver: Receiver) -> None:
    """Send five messages: one that announces four buckets, and the buckets."""
    import torch

    sender = vllm_client.WatchfulSender(zmq_handle=receiver.address, bucket_size_mb=1, use_shm=True)
    weights = ((f"layer {number}", torch.zeros(200_000)) for number in range(4))
    receiver.start()
    try:
        asyncio.run(sender.async_send_weights(weights))
    finally:
        receiver.join()


@pytest.mark.parametrize(("acknowledged", "call"), [(0, "the call"), (2, "the call"), (1, None)])
def test_the_receivers_error_ends_the_sending(vllm_client, monkeypatch, tmp_path, acknowledged, call):
    """vLLM's worker fails before it receives anything, or while it loads the first tensors.

    The second worker of an engine over two GPUs fails: its rank did not make the call.
    """
    receiver = Receiver(f"ipc://{tmp_path}/weights.sock", acknowledged)

    def result(_: object) -> None:
        raise RuntimeError("Worker failed")

    def wait(calls: list, timeout: float) -> tuple[list, list]:
        return (calls, []) if receiver.ended.wait(timeout) else ([], calls)

    monkeypatch.setattr(vllm_client.ray, "wait", wait)
    monkeypatch.setattr(vllm_client.ray, "get", result)
    called = vllm_client.RECEIVING.set(call)
    with pytest.raises(RuntimeError, match="Worker failed" if call else "vLLM"):
        send(vllm_client, receiver)
    vllm_client.RECEIVING.reset(called)
    assert not list(tmp_path.iterdir()), "the socket's file is gone"


def test_a_receiver_that_ends_after_its_last_answer_has_received_all(vllm_client, monkeypatch, tmp_path):
    """Also where the sender looks only when the answer, the end of the call and of the socket are all there."""
    receiver = Receiver(f"ipc://{tmp_path}/weights.sock", 5)
    monkeypatch.setattr(vllm_client.ray, "wait", lambda calls, timeout: (calls, []))
    monkeypatch.setattr(vllm_client.ray, "get", lambda call: None)
    poll = zmq.Poller.poll

    def late(self: zmq.Poller, limit: int) -> list:
        if receiver.ended.wait(0.05):
            receiver.join()
        return poll(self, limit)

    monkeypatch.setattr(zmq.Poller, "poll", late)
    send(vllm_client, receiver)


BIG = 1 << 70
SAMPLED = {  # name -> what is taken for it, and what is not
    "temperature": ((0.01, 2.0), (-1.0, 2.1, BIG)),
    "top_p": ((1e-12, 1.0), (-0.1, 0.0, 1.1)),
    "top_k": ((-1, 0, 5), (-2, BIG)),
    "n": ((2, 16384), (-1, 0, 16385, BIG)),
    "seed": ((0, 7, (1 << 31) - 1), (-BIG, -1, 1 << 32, BIG)),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_what_is_taken_for_sampling_vllm_takes_as_it_is(vllm_named, name):
    """Bounds that were wider than vLLM's let a run start that died at its first request."""
    import msgspec
    from vllm import SamplingParams

    own = "data.seed" if name == "seed" else f"worker.rollout.val_override_config.{name}"
    keys, option = (f"worker.rollout.{name}", own), {"n": "rollout_n"}.get(name, name)
    for value in SAMPLED[name][0]:
        parameters = SamplingParams(**{name: value})
        assert getattr(parameters, name) == value
        assert msgspec.msgpack.encode(parameters), "as it goes to the engine's process"
        np.random.RandomState(value + 8 if name == "seed" else 0)  # of the ninth replica
        load("countdown", arguments=[f"{key}={value}" for key in keys], environ={})
        assert name == "top_k" or getattr(Options(**{option: value}), option) == value
    low = [(keys[0], "0.001")] * (name == "temperature")  # vLLM takes 0.01 in its place, and verl would not
    for key, value in [*low, *product(keys, SAMPLED[name][1])]:
        assert f"{key}={value}" in mistake(partial(load, "countdown", arguments=[f"{key}={value}"])).where
    for value in SAMPLED[name][1] if name != "top_k" else ():
        mistake(partial(Options, **{option: value}), f"--{option} is {value}")
