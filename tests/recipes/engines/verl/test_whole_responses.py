"""vLLM's output processor answers verl twice a request, and the last answer is the one it gave before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipes.engines.verl import upstream

TINY = Path(__file__).parents[4] / "recipes" / "tasks" / "countdown" / "tiny"
TOKENS = [5, 9, 7, 11, 3]


@dataclass
class Server:
    """The names that the two patches replace, put back after each test."""

    sampling_params: Any
    processor: Any


@pytest.fixture
def server(monkeypatch, vllm_named):
    from transformers import AutoTokenizer
    from verl.workers.rollout.vllm_rollout import vllm_async_server
    from vllm import SamplingParams
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    processor = "vllm.v1.engine.output_processor:RequestState"
    monkeypatch.setattr(vllm_async_server, "SamplingParams", SamplingParams)
    monkeypatch.setattr(RequestState, "make_request_output", upstream.original(processor, "make_request_output"))
    return Server(vllm_async_server, OutputProcessor(AutoTokenizer.from_pretrained(TINY), log_stats=False))


def answers(server: Server, abort_after: int | None = None, **given: Any) -> list[Any]:
    """What a request's task gets while the model gives it `TOKENS`, with `given` as verl's server passes it."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import RequestOutputCollector
    from vllm.v1.outputs import LogprobsLists

    parameters = server.sampling_params.SamplingParams(max_tokens=len(TOKENS), logprobs=0, **given)
    request = EngineCoreRequest(
        request_id="r",
        external_req_id="r",
        prompt_token_ids=[1, 2],
        mm_features=None,
        sampling_params=parameters,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
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


@pytest.mark.parametrize("abort_after", [None, 0, 1, 3])
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


def test_a_request_that_ends_at_a_text_keeps_its_text(server):
    upstream.whole_responses.__wrapped__()
    assert answers(server, stop=["nowhere in it"])[-1].outputs[0].text
    assert server.sampling_params.SamplingParams(max_tokens=1, detokenize=True).detokenize
